"""Joint probabilities on four latent structures, against the spectral algorithm and EM: the experiment of [JT 9.1].

The paper draws ten sets of parameters per structure, samples N training points and 1,000 test points of each, and
measures error = |P̂(x) − P(x)| / P(x) at the test points x, and the time to train. It prints neither the lengths of its
chains nor how parameters were drawn, and shows its synthetic junction tree as a picture only: those are choices here.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm

from torchpbp.baselines.spectral import SpectralJunctionTree
from torchpbp.distributed import own_share
from torchpbp.errors import DataError, StructureError
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.experiments.jt_synthetic.plots import write_error_and_time_plot
from torchpbp.experiments.running.experiment import ascending, check_positive, check_takes_graph, seeds_of
from torchpbp.experiments.running.results import Metrics, environment, metrics_of, write_results
from torchpbp.experiments.running.run_folder import Parts
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.models.answers import Answers

Row = dict[str, float | int | str]
"""One line of metrics.csv."""
MEASURED = ("error", "signed_error", "median_error", "negative_share", "seconds")


class JointLearner(Protocol):
    """What this experiment asks of a model."""

    def fit(self, data: dict[str, Tensor]) -> Any: ...

    def log_evidence(self, evidence: dict[str, Tensor]) -> Tensor: ...


Maker = Callable[[LatentGraph], JointLearner]


def run_jt_synthetic(
    graphs: Mapping[str, LatentGraph],
    learner: Maker,
    others: Mapping[str, Maker] | None = None,
    sizes: Sequence[int] = (100, 1_000, 10_000),
    repeats: int = 2,
    test_rows: int = 1_000,
    seed: int = 0,
    concentration: float = 0.3,
    output_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
) -> Metrics:
    """Learn random networks of each structure and compare estimates of P(all observables) with the truth.

    A repeat's network, data and test rows depend on ``seed`` and its number alone. Test rows are drawn from the network
    itself, as in the paper, so rare rows count as often as they occur.

    Args:
        graphs: name -> structure, known to the learners.
        learner: makes a new model for a graph; it goes by the name of its class.
        others: name -> the same for learners to compare with.
        sizes: numbers of training rows.
        repeats: networks drawn for each structure.
        test_rows: of each network.
        seed: of networks and data.
        concentration: of the Dirichlet distribution behind the networks' tables. With 1, observables that each depend on
            one or two binary latents are nearly independent of each other.
        output_dir: folder for metrics.json, metrics.csv (a line per fit) and errors.png. ``None``: no files.
        verbose: show a progress bar (stderr) and the table of results (stdout).

    Returns:
        For each structure, learner and size, averaged over repeats: "error/…" (mean over test rows, of estimates as the model
        answers them, negative ones clipped), "error_standard_error/…" (over repeats), "signed_error/…" (of estimates as they
        are), "median_error/…", "negative_share/…" (of test rows with an estimate that is not positive) and "seconds/…"
        (to plan the structure and to fit). "error_of_independence/<structure>" is that of the product of the exact
        marginals.

    Raises:
        DataError: numbers that make no experiment, or two learners of one name.
        StructureError: no graphs, or a learner with a graph of its own.
    """
    check_takes_graph("jt_synthetic", learner)
    if not graphs:
        raise StructureError("graphs: expected one or more structures, got none.")
    sizes = ascending("sizes", sizes)
    check_positive(repeats=repeats, test_rows=test_rows)
    main = _name(learner)
    if main in (others or {}):
        raise DataError(f"others: '{main}' is the name of the main learner. Give it another name.")
    makers = {main: learner, **(others or {})}
    rows: list[Row] = []
    parts = Parts(output_dir)
    total = len(graphs) * repeats * len(sizes) * len(makers)
    with tqdm(total=total, desc="jt_synthetic", unit="fit", disable=not verbose) as bar:
        for structure, graph in graphs.items():
            for repeat in range(repeats):
                network_seed, data_seed, test_seed = seeds_of(seed, repeat, 3)
                truth = DiscreteNetwork.random(graph, network_seed, concentration)
                test = truth.sample(test_rows, seed=test_seed)
                exact = truth.log_evidence(test)
                facts: Row = {
                    "structure": structure,
                    "repeat": repeat,
                    "network_seed": network_seed,
                    "error_of_independence": _error_of_independence(truth, test, exact),
                }
                for size in sizes:
                    share = own_share(size)
                    data = {v: x[share] for v, x in truth.sample(size, seed=data_seed).items()}
                    for name, maker in makers.items():
                        ask = partial(_measured, maker, graph, data, test, exact)
                        measured = parts.get(f"{structure},{repeat},{size},{name}", ask)
                        rows.append({**facts, "rows": size, "learner": name, **measured})
                        bar.set_postfix_str(f"{structure} N={size:,} {name}", refresh=False)
                        bar.update()
    table = pd.DataFrame(rows)
    summary = summarise(table)
    metrics = as_metrics(summary)
    independent = table.groupby("structure", sort=False)["error_of_independence"].mean()
    metrics |= {f"error_of_independence/{name}": float(value) for name, value in independent.items()}
    metrics |= {f"graph/{name}": repr(graph) for name, graph in graphs.items()}
    metrics |= {
        "learner": main,
        "seed": seed,
        "repeats": repeats,
        "test_rows": test_rows,
        "concentration": concentration,
        **environment(),
    }
    if output_dir is not None:
        folder = write_results(output_dir, metrics, table)
        write_error_and_time_plot(folder / "errors.png", summary, {str(k): float(v) for k, v in independent.items()})
    if verbose:
        print(format_summary(summary), flush=True)
    return metrics


@torch.no_grad()
def measure(
    maker: Maker, graph: LatentGraph, data: dict[str, Tensor], test: dict[str, Tensor], exact: Tensor
) -> tuple[JointLearner, Row]:
    """Fit one model and measure its estimates at the test rows.

    Args:
        maker: makes the model.
        graph: structure.
        data: training rows.
        test: test rows.
        exact: (rows,) their true log-probabilities.
    """
    start = time.perf_counter()
    model = maker(graph)
    planned = time.perf_counter()
    with torch.enable_grad():  # EM derives its counts
        model.fit(data)
    done = time.perf_counter()
    ratio = (model.log_evidence(test) - exact).exp()
    signed = ratio
    if isinstance(model, Answers | SpectralJunctionTree):
        sign, size = model.log_evidence(test, raw=True)
        signed = sign * (size - exact).exp()
    error = (ratio - 1).abs()
    return model, {
        "error": float(error.mean()),
        "signed_error": float((signed - 1).abs().mean()),
        "median_error": float(error.median()),
        "negative_share": float((signed <= 0).double().mean()),
        "seconds": done - start,
        "fit_seconds": done - planned,
    }


def _measured(maker: Maker, graph: LatentGraph, data: dict[str, Tensor], test: dict[str, Tensor], exact: Tensor) -> Row:
    return measure(maker, graph, data, test, exact)[1]


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """Means over repeats, with the standard error of the error (NaN for a single repeat).

    Args:
        table: columns structure, learner, rows, repeat and what was measured.

    Returns:
        Columns structure, learner, rows, what was measured, and error_standard_error.
    """
    groups = table.groupby(["structure", "learner", "rows"], sort=False)
    summary = groups[list(MEASURED)].mean()
    summary["error_standard_error"] = groups["error"].sem()
    return summary.reset_index()


def as_metrics(summary: pd.DataFrame) -> Metrics:
    """Flat names "what/structure/learner/N"."""
    return metrics_of(summary, ("structure", "learner", "rows"), {m: m for m in (*MEASURED, "error_standard_error")})


def format_summary(summary: pd.DataFrame) -> str:
    """Errors and seconds as text for a terminal, a block for each structure."""
    blocks = []
    for structure, part in summary.groupby("structure", sort=False):
        lines = [
            f"{structure}",
            f"{'N':>10}  {'learner':<14}  {'error':>8}  {'std err':>8}  {'median':>8}  {'seconds':>8}",
        ]
        for line in part.sort_values("rows", kind="stable").to_dict("records"):
            spread = float(line["error_standard_error"])
            shown = f"{spread:.4f}" if math.isfinite(spread) else "-"
            lines.append(
                f"{line['rows']:>10,}  {line['learner']:<14}  {line['error']:>8.4f}  {shown:>8}  "
                f"{line['median_error']:>8.4f}  {line['seconds']:>8.3f}"
            )
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _name(learner: Maker) -> str:
    """Name of the class behind a learner, which may be a partial one."""
    made = getattr(learner, "func", learner)
    return str(getattr(made, "__name__", type(made).__name__))


def _error_of_independence(truth: DiscreteNetwork, test: Mapping[str, Tensor], exact: Tensor) -> float:
    """Mean error of the product of exact marginals at the test rows: what ignoring all dependence costs."""
    marginals = truth.posteriors()
    logs = sum((marginals[v][0][x].log() for v, x in test.items()), start=torch.zeros_like(exact))
    return float(((logs - exact).exp() - 1).abs().mean())
