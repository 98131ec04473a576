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

from torchpbp.baselines.normal_graph import RULES, NormalGraphLearner
from torchpbp.errors import DataError, StructureError
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.graph.latent_graph import LatentGraph
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


def fit_rules(
    learner: MakeLearner,
    graph: LatentGraph,
    data: dict[str, Tensor],
    rules: Sequence[str] = RULES,
    mask: Tensor | None = None,
    **options: Any,
) -> dict[str, NormalGraphLearner]:
    """Rule -> learner fitted to the same rows from the same starts.

    Args:
        learner: makes an unfitted one.
        graph: to learn.
        data: complete rows.
        rules: which to fit.
        mask: (rows,) 1 for rows to learn from; all by default.
        options: of the learner, in place of its own.
    """
    return {rule: learner(graph, rule=rule, progress=False, **options).fit(data, mask) for rule in rules}


def lines_of(case: str, repeat: int, fitted: dict[str, NormalGraphLearner], held_out: bool) -> list[Line]:
    """A line for each rule and start: what it reached after its last epoch.

    Starts are numbered on from ``repeat``. With ``held_out`` the sums over rows held out are added.
    """
    lines: list[Line] = []
    for rule, model in fitted.items():
        for number, run in enumerate(model.runs):
            line: Line = {"case": case, "repeat": repeat + number, "rule": rule}
            line |= {"aggregated": run.aggregated[-1], "log_evidence": run.log_evidence[-1]}
            if held_out:
                line["test_aggregated"] = run.held_out_aggregated[-1]
                line["test_log_evidence"] = run.held_out_log_evidence[-1]
            lines.append(line)
    return lines


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
        ml>=kl" and so on, and "repeats/<case>".
    """
    metrics: Metrics = {}
    for case, part in table.groupby("case", sort=False):
        for measure in measures:
            wide = part.pivot(index="repeat", columns="rule", values=measure).dropna(axis=1, how="all")
            for rule in [r for r in part["rule"].unique() if r in wide]:
                values = wide[rule].dropna()
                metrics[f"{measure}/{case}/{rule}"] = float(values.mean())
                error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else None
                metrics[f"{measure}_standard_error/{case}/{rule}"] = error
            for better, worse in itertools.pairwise([r for r in RULES if r in wide]):
                holds = wide[better] >= wide[worse] - TIE * wide[worse].abs()
                metrics[f"{measure}_holds/{case}/{better}>={worse}"] = int(holds.sum())
        metrics[f"repeats/{case}"] = int(part.loc[part["rule"].isin(RULES), "repeat"].nunique())
    return metrics


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
            if measure.endswith(("_holds", "_standard_error", "repeats")):
                continue
            cells = []
            for key in [k for k in metrics if k.startswith(prefix)]:
                rule, error = (
                    key.removeprefix(prefix),
                    metrics[f"{measure}_standard_error/{case}/{key.removeprefix(prefix)}"],
                )
                cells.append(f"{rule} {metrics[key]:.1f}" + ("" if error is None else f" ± {error:.1f}"))
            holds = f"{measure}_holds/{case}/"
            order = [
                f"{k.removeprefix(holds)} {v}/{metrics[repeats]}" for k, v in metrics.items() if k.startswith(holds)
            ]
            lines.append(f"{case}, {measure}: {'; '.join(cells)}\n    {', '.join(order)}")
    return "\n".join(lines)
