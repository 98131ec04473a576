"""The table of a multirun: mean ± standard error over seeds, made by pandas."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback

from torchpbp.lazy import pandas as pd

MOST_COLUMNS = 6
"""Metrics that are printed; the file has all."""

log = logging.getLogger(__name__)


class SweepTable(Callback):
    """Prints a row per combination of overrides at the end of a multirun, and writes sweep.csv into its folder."""

    def on_multirun_end(self, config: Any, **kwargs: Any) -> None:
        folder = Path(config.hydra.sweep.dir)
        jobs = read_jobs(folder)
        if not jobs.empty:
            table = averaged(jobs)
            table.to_csv(folder / "sweep.csv", index=False)
            log.info(f"Sweep, {len(jobs)} jobs: mean ± standard error over seeds (all metrics: {folder / 'sweep.csv'})")
            log.info("\n%s", printed(table))


def read_jobs(folder: Path) -> pd.DataFrame:
    """A row per job that has results: its overrides, as texts in columns "setting …", and its numeric metrics."""
    rows = []
    for path in sorted(folder.glob("*/metrics.json"), key=lambda p: (len(p.parent.name), p.parent.name)):
        overrides = json.loads(json.dumps(_overrides(path.parent)))
        metrics = json.loads(path.read_text(encoding="utf-8"))
        numbers = {k: v for k, v in metrics.items() if isinstance(v, int | float) and k not in ("seed", "threads")}
        rows.append({**{f"setting {k}": v for k, v in overrides.items() if k != "resume"}, **numbers})
    jobs = pd.DataFrame(rows)
    settings = [c for c in jobs if c.startswith("setting ")]
    return jobs.fillna(dict.fromkeys(settings, ""))


def averaged(jobs: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds, a row per combination of the other settings that differ.

    Args:
        jobs: of :func:`read_jobs`.

    Returns:
        The settings that differ, "jobs", and for each metric its mean and "<metric> ± " (NaN for a single seed).
    """
    settings = [c for c in jobs if c.startswith("setting ")]
    differing = [c for c in settings if c != "setting seed" and jobs[c].nunique() > 1]
    metrics = [c for c in jobs if c not in settings]
    groups = jobs.groupby(differing, sort=False) if differing else jobs.groupby(lambda _: 0)
    table = pd.concat([groups.size().rename("jobs"), groups[metrics].mean()], axis=1)
    for metric in metrics:
        table.insert(table.columns.get_loc(metric) + 1, f"{metric} ±", groups[metric].sem())
    table = table.reset_index(drop=not differing)
    return table.rename(columns=lambda c: str(c).removeprefix("setting "))


def printed(table: pd.DataFrame) -> str:
    """The table for a terminal, with the first metrics as "mean ± standard error"."""
    metrics = [c.removesuffix(" ±") for c in table if c.endswith(" ±")]
    shown = table[[c for c in table if c not in metrics and not c.endswith(" ±")]].copy()
    for metric in metrics[:MOST_COLUMNS]:
        pairs = zip(table[metric], table[f"{metric} ±"], strict=True)
        shown[metric] = [f"{m:.5g} ± {e:.2g}" if e == e else f"{m:.5g}" for m, e in pairs]
    return shown.to_string(index=False)


def _overrides(folder: Path) -> dict[str, str]:
    import yaml

    path = folder / ".hydra" / "overrides.yaml"
    texts = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else []
    return dict(text.lstrip("+").partition("=")[::2] for text in texts or [])
