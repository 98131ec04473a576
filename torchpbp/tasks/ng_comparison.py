"""What the experiments with normal graphs share: one learner per rule, and which rule does better how often."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from torchpbp.baselines.normal_graph import RULES, NormalGraphLearner, learn
from torchpbp.baselines.normal_graph.learning import Rows, Trace
from torchpbp.errors import DataError, StructureError
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.tasks.ng_plots import Floats
from torchpbp.tasks.results import Metrics, write_csv, write_json

MakeLearner = Callable[..., NormalGraphLearner]
"""Makes a learner from a graph and options such as ``rule``."""

Line = dict[str, float | int | str]
"""One line of metrics.csv."""

TIE = 1e-9
"""Values that differ by no more than this share count as equal."""


def check_learner(learner: Any) -> None:
    """Refuse learners that have no learning rules."""
    made = getattr(learner, "func", learner)
    if not (isinstance(made, type) and issubclass(made, NormalGraphLearner)):
        raise StructureError(
            f"Normal graphs: expected a learner whose blocks learn by rules, got {made!r}. Choose learner=normal_graph."
        )


def check_positive(**numbers: int | Sequence[int]) -> None:
    """Refuse numbers below 1, and empty lists."""
    for name, value in numbers.items():
        values = [value] if isinstance(value, int) else list(value)
        if not values or min(values) < 1:
            raise DataError(f"{name}: expected at least 1, got {value}.")


def seeds_of(seed: int, repeat: int, number: int) -> list[int]:
    """Independent seeds of one repeat; they depend on nothing but ``seed`` and its number."""
    return [int(s) for s in np.random.SeedSequence([seed, repeat]).generate_state(number)]


def learn_by_rules(
    learner: MakeLearner,
    graph: LatentGraph,
    samples: Sequence[dict[str, Tensor]],
    seeds: Sequence[int],
    rules: Sequence[str] = RULES,
    mask: Tensor | None = None,
    history: bool = False,
    **options: Any,
) -> dict[str, Trace]:
    """Learn from several samples at once, each with a start of its own that all rules share.

    Args:
        learner: makes a learner; its graph, rule, epochs and kind of start are used.
        graph: to learn.
        samples: complete rows of each repeat, equally many.
        seeds: of the start of each repeat.
        rules: which to learn by.
        mask: (rows,) 1 for rows to learn from, 0 for rows to test, the same for all samples; all by default.
        history: keep the matrices of each epoch.
        options: of the learner, in place of its own.

    Returns:
        Rule -> course of learning, one entry per repeat.
    """
    rows = len(next(iter(samples[0].values())))
    learned = torch.ones(rows, dtype=torch.float64) if mask is None else mask.double()
    own = torch.eye(len(samples), dtype=torch.float64)  # each start sees its own sample only
    masks, held_out = (torch.kron(own, w[None]) for w in (learned, (learned == 0).double()))
    result = {}
    for rule in rules:
        model = learner(graph, rule=rule, progress=False, **options)
        evidence = {
            model.converted.entry[v]: torch.eye(graph.num_states(v), dtype=torch.float64)[
                torch.cat([s[v] for s in samples])
            ]
            for v in graph.observed
        }
        together = Rows(evidence, masks, held_out)
        normal = model.converted.graph
        _, result[rule] = learn(normal, together, model.rule, model.epochs, seeds, model.start, history)
    return result


def lines_of(case: str, traces: dict[str, Trace], held_out: bool) -> list[Line]:
    """A line for each rule and repeat: what it reached after its last epoch.

    With ``held_out`` the sums over rows held out are added.
    """
    lines: list[Line] = []
    for rule, trace in traces.items():
        reached = {"aggregated": trace.aggregated[-1], "log_evidence": trace.evidence[-1]}
        if held_out:
            reached |= {
                "test_aggregated": trace.held_out_aggregated[-1],
                "test_log_evidence": trace.held_out_evidence[-1],
            }
        for repeat in range(len(trace.evidence[-1])):
            values: Line = {name: float(tensor[repeat]) for name, tensor in reached.items()}
            lines.append({"case": case, "repeat": repeat, "rule": rule, **values})
    return lines


def courses_of(traces: dict[str, Trace], held_out: bool = False) -> dict[str, Floats]:
    """Rule -> (repeats, epochs) aggregated log-likelihood."""
    chosen = {rule: t.held_out_aggregated if held_out else t.aggregated for rule, t in traces.items()}
    return {rule: torch.stack(values).T.numpy() for rule, values in chosen.items()}


def coefficients_of(traces: dict[str, Trace]) -> dict[str, dict[str, Floats]]:
    """Rule -> matrix -> (epochs, entries) of the first repeat, where the history was kept."""
    return {
        rule: {
            name: torch.stack([thetas[name][0].flatten() for thetas in trace.thetas]).numpy()
            for name in trace.thetas[0]
        }
        for rule, trace in traces.items()
    }


def truth_line(case: str, repeat: int, network: DiscreteNetwork, data: dict[str, Tensor], mask: Tensor | None) -> Line:
    """The same figures for the network that the rows come from."""
    own = torch.zeros(len(next(iter(data.values()))), dtype=torch.float64)
    for v, states in data.items():
        posterior = network.posterior(v, {u: x for u, x in data.items() if u != v})
        own += posterior.gather(1, states[:, None])[:, 0].log()
    evidence = network.log_evidence(data)
    line: Line = {"case": case, "repeat": repeat, "rule": "truth"}
    if mask is None:
        return line | {"aggregated": float(own.sum()), "log_evidence": float(evidence.sum())}
    for prefix, chosen in (("", mask > 0), ("test_", mask == 0)):
        line |= {
            f"{prefix}aggregated": float(own[chosen].sum()),
            f"{prefix}log_evidence": float(evidence[chosen].sum()),
        }
    return line


def compare(table: pd.DataFrame, measures: Sequence[str]) -> Metrics:
    """Mean and standard error of each rule, and in how many repeats each rule does at least as well as the next.

    Args:
        table: columns case, repeat, rule and the measures.
        measures: columns to compare; larger is better. NaN: not measured in this case.

    Returns:
        "<measure>/<case>/<rule>", "<measure>_standard_error/<case>/<rule>" (None for one repeat), "<measure>_holds/<case>/
        ml>=kl" and so on (repeats), "<measure>_gain/<case>/ml>=kl" (mean difference within a repeat) with its standard
        error, and "repeats/<case>".
    """
    metrics: Metrics = {}
    for case, part in table.groupby("case", sort=False):
        for measure in measures:
            wide = part.pivot(index="repeat", columns="rule", values=measure).dropna(axis=1, how="all")
            for rule in [r for r in part["rule"].unique() if r in wide]:
                values = wide[rule].dropna()
                metrics[f"{measure}/{case}/{rule}"] = float(values.mean())
                metrics[f"{measure}_standard_error/{case}/{rule}"] = _standard_error(values)
            for better, worse in itertools.pairwise([r for r in RULES if r in wide]):
                difference = wide[better] - wide[worse]
                holds = difference >= -TIE * wide[worse].abs()
                metrics[f"{measure}_holds/{case}/{better}>={worse}"] = int(holds.sum())
                metrics[f"{measure}_gain/{case}/{better}>={worse}"] = float(difference.mean())
                metrics[f"{measure}_gain_standard_error/{case}/{better}>={worse}"] = _standard_error(difference)
        metrics[f"repeats/{case}"] = int(part.loc[part["rule"].isin(RULES), "repeat"].nunique())
    return metrics


def _standard_error(values: pd.Series[float]) -> float | None:
    return float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else None


def finish(
    table: pd.DataFrame,
    measures: Sequence[str],
    facts: Metrics,
    output_dir: str | os.PathLike[str] | None,
    verbose: bool,
) -> Metrics:
    """Compare the rules, write metrics.json and metrics.csv, and print a table.

    Args:
        table: as for :func:`compare`.
        measures: columns to compare.
        facts: of the run, added to the metrics.
        output_dir: folder for the files; None: no files.
        verbose: whether to print.
    """
    metrics = compare(table, measures) | facts | {"threads": torch.get_num_threads(), "torch": str(torch.__version__)}
    if output_dir is not None:
        write_json(Path(output_dir) / "metrics.json", metrics)
        write_csv(Path(output_dir) / "metrics.csv", table)
    if verbose:
        print(format_comparison(metrics), flush=True)
    return metrics


def format_comparison(metrics: Metrics) -> str:
    """A line for each measure and case: mean ± standard error of each rule, and how often the order holds."""
    lines = []
    for repeats in [k for k in metrics if k.startswith("repeats/")]:
        case = repeats.removeprefix("repeats/")
        for measure in dict.fromkeys(k.split("/")[0] for k in metrics if k.split("/")[1:2] == [case]):
            prefix = f"{measure}/{case}/"
            if measure.endswith(("_holds", "_gain", "_standard_error", "repeats")):
                continue
            cells = []
            for key in [k for k in metrics if k.startswith(prefix)]:
                rule = key.removeprefix(prefix)
                error = metrics[f"{measure}_standard_error/{case}/{rule}"]
                cells.append(f"{rule} {metrics[key]:.1f}" + ("" if error is None else f" ± {error:.1f}"))
            holds = f"{measure}_holds/{case}/"
            order = []
            for key in [k for k in metrics if k.startswith(holds)]:
                pair = key.removeprefix(holds)
                gain, error = (metrics[f"{measure}_{g}/{case}/{pair}"] for g in ("gain", "gain_standard_error"))
                spread = "" if error is None else f" ± {error:.2f}"
                order.append(f"{pair} {metrics[key]}/{metrics[repeats]} ({gain:+.2f}{spread})")
            lines.append(f"{case}, {measure}: {'; '.join(cells)}\n    {', '.join(order)}")
    return "\n".join(lines)
