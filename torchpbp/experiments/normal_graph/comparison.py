"""Which rule does better, by how much and how often: the results of the experiments with normal graphs."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Sequence

import pandas as pd

from torchpbp.baselines.normal_graph import RULES
from torchpbp.experiments.running.results import Metrics, environment, publish

TIE = 1e-9
"""Values that differ by no more than this share count as equal."""


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
    metrics = compare(table, measures) | facts | environment()
    publish(output_dir, metrics, table, format_comparison(metrics), verbose)
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
