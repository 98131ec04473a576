"""What a sweep says about its settings: combinations ranked, and the effect of each setting by itself."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from torchpbp.experiments.running.reading import read_mapping
from torchpbp.experiments.running.sweeps import Run

LARGER = {"accuracy", "likelihood", "evidence", "score", "gain", "lead", "recall", "precision"}
SMALLER = {"kl", "error", "loss", "perplexity", "distance", "ratio", "seconds"}
MOST_VALUES = 6
"""A numeric setting with more values, as a search draws them, is cut into thirds."""


class Criterion(NamedTuple):
    """What combinations are ranked by.

    Args:
        metric: name of the metric.
        larger: whether larger is better.
    """

    metric: str
    larger: bool


def criterion(folder: str | os.PathLike[str], runs: Sequence[Run], metrics: Sequence[str]) -> Criterion | None:
    """The objective of a search among the metrics, else the first one whose name says which values are better.

    Args:
        folder: of the multirun.
        runs: of it.
        metrics: those to report.
    """
    for run in runs:
        records = Path(folder) / run.job / ".hydra"
        if (records / "resolved.yaml").is_file() and (records / "hydra.yaml").is_file():
            objective = str(read_mapping(records / "resolved.yaml").get("objective"))
            if objective in metrics:
                hydra = read_mapping(records / "hydra.yaml").get("hydra") or {}
                direction = (hydra.get("sweeper") or {}).get("direction")
                if direction in ("minimize", "maximize"):
                    return Criterion(objective, direction == "maximize")
            break  # the jobs of a sweep share it
    for metric in metrics:
        words = [w for w in reversed(re.split(r"[/_]", metric)) if w in LARGER | SMALLER]
        if words:
            return Criterion(metric, words[0] in LARGER)
    return None


def add_ranks(summary: pd.DataFrame, by: Criterion | None) -> pd.DataFrame:
    """The summary with a first column "rank": 1 for the best mean, equal means share a rank, none without results.

    Args:
        summary: of :func:`torchpbp.experiments.running.sweeps.summarise`.
        by: the criterion; ``None`` leaves the summary as it is.
    """
    if by is None or len(summary) < 2:
        return summary
    ranks = summary[by.metric].rank(method="min", ascending=not by.larger).astype("Int64")
    return pd.concat([ranks.rename("rank"), summary], axis=1)


def effects(summary: pd.DataFrame, varied: Sequence[str], metrics: Sequence[str], by: Criterion | None) -> pd.DataFrame:
    """Means of the metrics for each value of each setting, over the combinations of all other settings.

    Args:
        summary: of :func:`torchpbp.experiments.running.sweeps.summarise`.
        varied: the settings that differ between runs.
        metrics: which to average.
        by: settings come in the order of the range of its means, the largest first.

    Returns:
        Columns: setting, value, combinations (with results), runs, and the metrics.
    """
    done = summary[summary["runs"] > 0]
    tables = []
    for name in varied:
        parts = [(value, part) for value, part in done.groupby(_values(done[name]), sort=False) if len(part)]
        rows = [
            {"setting": name, "value": str(value) or "default", "combinations": len(part), "runs": part["runs"].sum()}
            | {metric: part[metric].mean() for metric in metrics}
            for value, part in parts
        ]
        if len(rows) > 1:
            tables.append(pd.DataFrame(rows))
    if by is not None:
        tables.sort(key=lambda table: -float(np.nan_to_num(np.ptp(table[by.metric]))))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def balanced(summary: pd.DataFrame, varied: Sequence[str]) -> bool:
    """Whether every combination of the values has results, so that effects are not those of other settings in part."""
    done = summary[summary["runs"] > 0]
    return len(done) == int(np.prod([done[name].nunique() for name in varied], initial=1))


def _values(column: pd.Series) -> pd.Series:
    """The values of a setting; those of a search as thirds of about equal numbers."""
    numbers = pd.to_numeric(column, errors="coerce")
    if column.nunique() <= MOST_VALUES or numbers.isna().any():
        return column
    thirds = pd.qcut(numbers, 3, labels=False, duplicates="drop")
    names = {third: f"{part.min():.3g} to {part.max():.3g}" for third, part in numbers.groupby(thirds)}
    return thirds.map(names)
