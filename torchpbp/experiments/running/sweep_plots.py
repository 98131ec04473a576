"""The picture of a sweep: means with standard errors against what was varied."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure

from torchpbp.experiments.running.results import write_figure
from torchpbp.experiments.running.sweeps import standard_error

MOST_LINES = 10
LOGARITHMIC_FROM = 50.0  # ratio of the largest to the smallest value
WIDEST_LABEL = 60  # characters


def write_sweep_plot(
    path: str | os.PathLike[str], summary: pd.DataFrame, varied: Sequence[str], metrics: Sequence[str]
) -> None:
    """Write the picture of :func:`draw_sweep` as a PNG file."""
    figure = draw_sweep(summary, varied, metrics)
    write_figure(path, figure, dpi=150 if figure.get_figheight() < 40 else 80)


def draw_sweep(summary: pd.DataFrame, varied: Sequence[str], metrics: Sequence[str]) -> Figure:
    """Draw the summary of a sweep, one line of panels per metric.

    Along a numeric override the means are joined by lines, one line for each combination of the other overrides. Where
    these would be too many, or mostly of one point, as in a random search, each numeric override gets a panel of points.
    Without numeric overrides every combination is a labelled point.

    Args:
        summary: of :func:`torchpbp.experiments.running.sweeps.summarise`.
        varied: the overrides that differ between runs.
        metrics: which to draw.
    """
    numeric = [name for name in varied if _numbers(summary[name]) is not None]
    numeric.sort(key=lambda name: -summary[name].nunique())  # stable: of equals, the first given comes first
    others = [name for name in varied if numeric and name != numeric[0]]
    groups = summary.groupby(others, sort=False).ngroups if others else 1
    as_lines = bool(numeric) and groups <= min(MOST_LINES, len(summary) // 2)
    columns = numeric if numeric and not as_lines else [""]
    height = 3.6 if numeric else min(1.2 + 0.3 * len(summary), 40.0)
    width = 5.0 * len(columns) if numeric else 7.5
    figure = Figure(figsize=(min(width, 30.0), height * len(metrics)), layout="constrained")
    panels: npt.NDArray[Any] = figure.subplots(len(metrics), len(columns), squeeze=False)
    for line, metric in zip(panels, metrics, strict=True):
        if as_lines:
            _draw_lines(line[0], summary, numeric[0], others, metric)
        elif numeric:
            for axes, name in zip(line, columns, strict=True):
                _draw_points(axes, summary, name, metric)
        else:
            _draw_combinations(line[0], summary, varied, metric)
    return figure


def _draw_lines(axes: Any, summary: pd.DataFrame, name: str, others: Sequence[str], metric: str) -> None:
    """One line for each combination of the other overrides, along a numeric one."""
    parts = summary.groupby(list(others), sort=False) if others else [((), summary)]
    for values, part in parts:
        table = part.assign(**{name: _numbers(part[name])}).sort_values(name)
        label = _label(others, values)
        axes.errorbar(table[name], table[metric], yerr=_errors(table, metric), marker="o", capsize=3, label=label)
    _finish(axes, summary, name, metric)
    if others:
        axes.legend(fontsize="small")


def _draw_points(axes: Any, summary: pd.DataFrame, name: str, metric: str) -> None:
    errors = _errors(summary, metric)
    axes.errorbar(_numbers(summary[name]), summary[metric], yerr=errors, marker="o", linestyle="none", capsize=3)
    _finish(axes, summary, name, metric)


def _draw_combinations(axes: Any, summary: pd.DataFrame, varied: Sequence[str], metric: str) -> None:
    """A point per combination, labelled at the left, the first one on top."""
    places = range(len(summary))
    axes.errorbar(summary[metric], places, xerr=_errors(summary, metric), marker="o", linestyle="none", capsize=3)
    labels = [
        _label(varied, values) or "all runs" for values in summary[list(varied)].itertuples(index=False, name=None)
    ]
    axes.set_yticks(places, labels if varied else ["all runs"] * len(summary), fontsize="small")
    axes.set_ylim(len(summary) - 0.5, -0.5)
    axes.set_xlabel(f"{metric} (mean ± standard error)")
    axes.grid(alpha=0.3)
    if _spans_decades(summary[metric].to_numpy()):
        axes.set_xscale("log")


def _finish(axes: Any, summary: pd.DataFrame, name: str, metric: str) -> None:
    axes.set(xlabel=name, ylabel=f"{metric} (mean ± standard error)")
    axes.grid(alpha=0.3)
    if _spans_decades(np.asarray(_numbers(summary[name]))):
        axes.set_xscale("log")
    if _spans_decades(summary[metric].to_numpy()):
        axes.set_yscale("log")


def _numbers(column: pd.Series) -> npt.NDArray[np.float64] | None:
    """The values as numbers, or ``None`` if one is not; an override that was not given in some run is not."""
    try:
        values = column.to_numpy(dtype=np.float64)
    except ValueError:
        return None
    return values if np.isfinite(values).all() else None


def _errors(table: pd.DataFrame, metric: str) -> npt.NDArray[np.float64]:
    """Standard errors, 0 where one run is too few to know."""
    return table[standard_error(metric)].fillna(0.0).to_numpy()


def _label(names: Sequence[str], values: Any) -> str:
    """The combination as text, keys without the folders they are in, cut where it would fill the picture."""
    pairs = zip(names, values, strict=True)
    text = ", ".join(f"{_short(name)}={value or 'default'}" for name, value in pairs)
    return text if len(text) <= WIDEST_LABEL else text[: WIDEST_LABEL - 1] + "…"


def _short(name: str) -> str:
    """The key after its last dot, together with the place in a list: learner.ridge.0 is ridge.0."""
    parts = name.split(".")
    return ".".join(parts[-2:]) if parts[-1].isdigit() else parts[-1]


def _spans_decades(values: npt.NDArray[np.float64]) -> bool:
    finite = values[np.isfinite(values)]
    return len(finite) > 0 and finite.min() > 0 and finite.max() / finite.min() >= LOGARITHMIC_FROM
