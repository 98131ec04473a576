"""Joint probabilities on four latent structures, against the spectral algorithm and EM: the experiment of [JT 9.1].

The paper draws ten sets of parameters per structure, samples N training points and 1,000 test points of each, and
measures error = |P̂(x) − P(x)| / P(x) at the test points x, and the time to train. It prints neither the lengths of its
chains nor how parameters were drawn, and shows its synthetic junction tree as a picture only: those are choices here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from torchpbp.baselines.spectral import SpectralJunctionTree
from torchpbp.distributed import own_share
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.experiments.jt_synthetic.plots import write_error_and_time_plot
from torchpbp.experiments.running.experiment import MakeModel, check_graphs, named_learners, row_counts, seeds_of
from torchpbp.experiments.running.grid import measure_grid
from torchpbp.experiments.running.results import Metrics, environment, metrics_of, text_table, write_results
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.models.operator_model import OperatorModel
from torchpbp.settings import Settings, positive, setting, whole

Row = dict[str, float | int | str]
"""One line of metrics.csv."""
COLUMNS = {
    "rows": ("N", "{:,}"),
    "learner": ("learner", "{}"),
    "error": ("error", "{:.4f}"),
    "error_standard_error": ("std err", "{:.4f}"),
    "median_error": ("median", "{:.4f}"),
    "seconds": ("seconds", "{:.3f}"),
}
MEASURED = ("error", "signed_error", "median_error", "negative_share", "seconds")


@dataclass(frozen=True)
class JTSyntheticSettings(Settings):
    """Settings of :func:`run_jt_synthetic`.

    Args:
        sizes: numbers of training rows.
        repeats: networks drawn for each structure.
        test_rows: of each network.
        concentration: of the Dirichlet distribution behind the networks' tables. With 1, observables that each depend on
            one or two binary latents are nearly independent of each other.
    """

    sizes: tuple[int, ...] = setting((100, 1_000, 10_000), row_counts())
    repeats: int = setting(2, whole(1))
    test_rows: int = setting(1_000, whole(1))
    concentration: float = setting(0.3, positive())


class TestedNetwork:
    """A network drawn at random, with test rows and their exact log-probabilities.

    Args:
        graph: its structure.
        seeds: of the network, of training rows and of test rows.
        settings: of the experiment.
    """

    def __init__(self, graph: LatentGraph, seeds: list[int], settings: JTSyntheticSettings) -> None:
        self.network_seed, self._data_seed, test_seed = seeds
        self._truth = DiscreteNetwork.random(graph, self.network_seed, settings.concentration)
        self.test = self._truth.sample(settings.test_rows, seed=test_seed)
        self.exact = self._truth.log_evidence(self.test)

    def training_rows(self, size: int) -> dict[str, Tensor]:
        """This process's share of the rows to learn from."""
        share = own_share(size)
        return {v: x[share] for v, x in self._truth.sample(size, seed=self._data_seed).items()}

    @cached_property
    def error_of_independence(self) -> float:
        """Mean error of the product of exact marginals at the test rows: the cost of ignoring all dependence."""
        marginals = self._truth.posteriors()
        logs = sum((marginals[v][0][x].log() for v, x in self.test.items()), start=torch.zeros_like(self.exact))
        return float(((logs - self.exact).exp() - 1).abs().mean())


def run_jt_synthetic(
    graphs: Mapping[str, LatentGraph],
    learner: MakeModel,
    others: Mapping[str, MakeModel] | None = None,
    seed: int = 0,
    output_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
    **options: Any,
) -> Metrics:
    """Learn random networks of each structure and compare estimates of P(all observables) with the truth.

    A repeat's network, data and test rows depend on ``seed`` and its number alone. Test rows are drawn from the network
    itself, as in the paper, so rare rows count as often as they occur.

    Args:
        graphs: name -> structure, known to the learners.
        learner: makes a new model for a graph; it goes by the name of its class.
        others: name -> the same for learners to compare with.
        seed: of networks and data.
        output_dir: folder for metrics.json, metrics.csv (a line per fit) and errors.png. ``None``: no files.
        verbose: show a progress bar (stderr) and the table of results (stdout).
        options: see :class:`JTSyntheticSettings`.

    Returns:
        For each structure, learner and size, averaged over repeats: "error/…" (mean over test rows, of estimates as the model
        answers them, negative ones clipped), "error_standard_error/…" (over repeats), "signed_error/…" (of estimates as they
        are), "median_error/…", "negative_share/…" (of test rows with an estimate that is not positive) and "seconds/…"
        (to plan the structure and to fit). "error_of_independence/<structure>" is that of the product of the exact
        marginals.
    """
    settings = JTSyntheticSettings.from_dict(options)
    check_graphs(graphs)
    main = _name(learner)
    makers = named_learners(main, learner, others)

    @lru_cache(maxsize=1)
    def network(structure: str, repeat: int) -> TestedNetwork:
        return TestedNetwork(graphs[structure], seeds_of(seed, repeat, 3), settings)

    @lru_cache(maxsize=1)
    def data(structure: str, repeat: int, size: int) -> dict[str, Tensor]:
        return network(structure, repeat).training_rows(size)

    def one_fit(structure: str, repeat: int, size: int, name: str) -> Row:
        drawn = network(structure, repeat)
        rows = data(structure, repeat, size)
        return measure(makers[name], graphs[structure], rows, drawn.test, drawn.exact)[1]

    repeats = range(settings.repeats)
    points = [
        (g, repeat, size, name) for g in graphs for repeat in repeats for size in settings.sizes for name in makers
    ]
    rows: list[Row] = []
    for (structure, repeat, size, name), measured in measure_grid("jt_synthetic", points, one_fit, output_dir, verbose):
        drawn = network(structure, repeat)
        facts: Row = {"structure": structure, "repeat": repeat, "network_seed": drawn.network_seed}
        facts |= {"error_of_independence": drawn.error_of_independence, "rows": size, "learner": name}
        rows.append({**facts, **measured})
    table = pd.DataFrame(rows)
    summary = summarise(table)
    names = {m: m for m in (*MEASURED, "error_standard_error")}
    metrics = metrics_of(summary, ("structure", "learner", "rows"), names)
    independent = table.groupby("structure", sort=False)["error_of_independence"].mean()
    metrics |= {f"error_of_independence/{name}": float(value) for name, value in independent.items()}
    metrics |= {f"graph/{name}": repr(graph) for name, graph in graphs.items()}
    metrics |= {
        "learner": main,
        "seed": seed,
        "repeats": settings.repeats,
        "test_rows": settings.test_rows,
        "concentration": settings.concentration,
        **environment(),
    }
    if output_dir is not None:
        folder = write_results(output_dir, metrics, table)
        write_error_and_time_plot(folder / "errors.png", summary, {str(k): float(v) for k, v in independent.items()})
    if verbose:
        for structure, part in summary.sort_values("rows", kind="stable").groupby("structure", sort=False):
            print(structure, text_table(part, COLUMNS), "", sep="\n", flush=True)
    return metrics


@torch.no_grad()
def measure(
    maker: MakeModel, graph: LatentGraph, data: dict[str, Tensor], test: dict[str, Tensor], exact: Tensor
) -> tuple[Any, Row]:
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
    if isinstance(model, OperatorModel | SpectralJunctionTree):
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


def _name(learner: MakeModel) -> str:
    """Name of the class behind a learner, which may be a partial one."""
    made = getattr(learner, "func", learner)
    return str(getattr(made, "__name__", type(made).__name__))
