"""The table of a multirun: mean ± standard error over seeds, made by pandas."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import yaml
from hydra.experimental.callback import Callback

from torchpbp.lazy import pandas as pd

MOST_COLUMNS = 6
"""Metrics that are printed; the file has all."""

log = logging.getLogger(__name__)


class SweepTable(Callback):
    """Prints a row per combination of overrides at the end of a multirun, and writes sweep.csv into its folder."""

    def on_multirun_end(self, config: Any, **kwargs: Any) -> None:
        folder = Path(config.hydra.sweep.dir)
        settings, numbers = read_jobs(folder)
        if not numbers.empty:
            table = averaged(settings, numbers)
            table.to_csv(folder / "sweep.csv", index=False)
            title = f"{len(numbers)} jobs with results: mean ± standard error over seeds; all metrics: {folder / 'sweep.csv'}"
            log.info("%s\n%s", title, printed(table))


def read_jobs(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Overrides, as texts, and numeric metrics of the jobs that have results, a row per job in both."""
    settings, numbers = [], []
    for path in sorted(folder.glob("*/metrics.json"), key=lambda p: (len(p.parent.name), p.parent.name)):
        texts = yaml.safe_load((path.parent / ".hydra" / "overrides.yaml").read_text(encoding="utf-8"))
        settings.append({k: v for k, _, v in (text.lstrip("+").partition("=") for text in texts) if k != "resume"})
        metrics = json.loads(path.read_text(encoding="utf-8"))
        numbers.append(
            {k: v for k, v in metrics.items() if isinstance(v, int | float) and k not in ("seed", "threads")}
        )
    return pd.DataFrame(settings).fillna(""), pd.DataFrame(numbers)


def averaged(settings: pd.DataFrame, numbers: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds, a row per combination of the other settings that differ.

    Args:
        settings: a row per job.
        numbers: metrics, a row per job.

    Returns:
        The settings that differ, "jobs", and for each metric its mean and its standard error "<metric> ±" (NaN for a single seed).
    """
    differing = [str(c) for c in settings if c != "seed" and settings[c].nunique() > 1]
    keys = settings[differing].apply(tuple, axis=1) if differing else pd.Series([()] * len(numbers), dtype=object)
    groups = numbers.groupby(keys, sort=False)
    columns: dict[str, Any] = {"jobs": groups.size()}
    for metric in numbers:
        columns |= {str(metric): groups[str(metric)].mean(), f"{metric} ±": groups[str(metric)].sem()}
    table = pd.DataFrame(columns)
    for place, name in enumerate(differing):
        table.insert(place, name, [key[place] for key in table.index])
    return table.reset_index(drop=True)


def printed(table: pd.DataFrame) -> str:
    """The table for a terminal, with the first metrics as "mean ± standard error"."""
    metrics = [str(c).removesuffix(" ±") for c in table if str(c).endswith(" ±")]
    shown = table[[c for c in table if c not in metrics and not str(c).endswith(" ±")]].copy()
    for metric in metrics[:MOST_COLUMNS]:
        pairs = zip(table[metric], table[f"{metric} ±"], strict=True)
        shown[metric] = [f"{m:.5g} ± {e:.2g}" if e == e else f"{m:.5g}" for m, e in pairs]
    return shown.to_string(index=False)
