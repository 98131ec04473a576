"""Learning curves from tables of metrics."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from torchpbp.errors import DataError
from torchpbp.plotting.style import drawing_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DECADE = 10.0  # an axis is logarithmic if its values span more than this factor


def plot_learning_curves(
    metrics: str | os.PathLike[str] | pd.DataFrame,
    y: str | Sequence[str],
    x: str = "epoch",
    *,
    by: str | None = None,
    error: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw metrics as curves, such as accuracy by training rows or losses by epochs.

    Rows that share ``x`` (and ``by``) are repeats: their mean is drawn and, with two or more, its standard error.
    Missing values are ignored. Axes whose values are positive and span more than a decade are logarithmic.

    Args:
        metrics: a table, or the path of a CSV file such as the metrics.csv of a run.
        y: the column to draw, or several, each as a line.
        x: the column of the horizontal axis.
        by: a column of names, such as the learner, with a line for each.
        error: a column of standard errors, for tables that contain means.
        ax: axes to draw on; new ones by default.

    Returns:
        The axes; its lines are labelled in its legend.

    Raises:
        DataError: no such column, columns that are not numeric, or nothing to draw.
    """
    table = metrics if isinstance(metrics, pd.DataFrame) else pd.read_csv(metrics)
    columns = [y] if isinstance(y, str) else list(y)
    numbers = [x, *columns, *([] if error is None else [error])]
    for name in [*numbers, *([] if by is None else [by])]:
        if name not in table:
            raise DataError(f"plot_learning_curves: no column '{name}'; the table has {', '.join(map(str, table))}.")
        if name in numbers and not pd.api.types.is_numeric_dtype(table[name]):
            raise DataError(f"plot_learning_curves: column '{name}' holds {table[name].dtype}, expected numbers.")
    parts = {None: table} if by is None else dict(iter(table.groupby(by, sort=False)))
    curves = {}
    for column in columns:
        for part, rows in parts.items():
            names = [*([] if by is None else [str(part)]), *([column] if len(columns) > 1 or by is None else [])]
            curve = _curve(rows, x, column, error)
            if len(curve):
                curves[" ".join(names)] = curve
    if not curves:
        raise DataError(f"plot_learning_curves: no row has numbers in both '{x}' and {columns}. Nothing to draw.")

    ax = drawing_axes(ax, 5.4, 3.8)
    for label, curve in curves.items():
        ax.errorbar(curve.index, curve["mean"], yerr=curve["error"], marker="o", markersize=4, capsize=3, label=label)
    ax.set(xlabel=x.replace("_", " "), ylabel=columns[0].replace("_", " ") if len(columns) == 1 else "")
    drawn = pd.concat(curves.values())
    if _spans_a_decade(drawn.index.to_numpy(dtype=np.float64)):
        ax.set_xscale("log")
    if _spans_a_decade(drawn["mean"].to_numpy()):
        ax.set_yscale("log")
    ax.grid(alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)
    if len(curves) > 1:
        ax.legend(fontsize=8)
    return ax


def _curve(part: pd.DataFrame, x: str, y: str, error: str | None) -> pd.DataFrame:
    """Means and standard errors (0 for single rows) by x, ascending."""
    finite = part[np.isfinite(part[x].astype(float)) & np.isfinite(part[y].astype(float))]
    groups = finite.groupby(x)
    spread = groups[y].sem() if error is None else groups[error].mean()
    return pd.DataFrame({"mean": groups[y].mean(), "error": spread.fillna(0.0)}, dtype=np.float64)


def _spans_a_decade(values: np.ndarray[Any, np.dtype[np.float64]]) -> bool:
    return bool(values.min() > 0 and values.max() / values.min() > DECADE)
