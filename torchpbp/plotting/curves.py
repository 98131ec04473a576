"""Learning curves from tables of metrics."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from torchpbp.errors import DataError

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
        DataError: no such file or column, columns that are not numeric, or nothing to draw.
    """
    table = _table(metrics)
    columns = [y] if isinstance(y, str) else list(y)
    for name in [x, *columns, *([] if by is None else [by]), *([] if error is None else [error])]:
        if name not in table:
            raise DataError(f"plot_learning_curves: no column '{name}'; the table has {', '.join(map(str, table))}.")
    for name in [x, *columns, *([] if error is None else [error])]:
        if not pd.api.types.is_numeric_dtype(table[name]):
            raise DataError(f"plot_learning_curves: column '{name}' holds {table[name].dtype}, expected numbers.")
    lines = [(column, *part) for column in columns for part in _parts(table, by)]
    curves = {}
    for column, name, part in lines:
        label = " ".join([*([name] if by is not None else []), *([column] if len(columns) > 1 or by is None else [])])
        curves[label] = _curve(part, x, column, error)
    drawn = [curve for curve in curves.values() if len(curve)]
    if not drawn:
        raise DataError(f"plot_learning_curves: no row has numbers in both '{x}' and {columns}. Nothing to draw.")

    import matplotlib.pyplot as plt

    if ax is None:
        _, ax = plt.subplots(figsize=(5.4, 3.8), layout="constrained")
    for label, curve in curves.items():
        if len(curve):
            ax.errorbar(
                curve.index, curve["mean"], yerr=curve["error"], marker="o", markersize=4, capsize=3, label=label
            )
    ax.set(xlabel=x.replace("_", " "), ylabel=columns[0].replace("_", " ") if len(columns) == 1 else "")
    if _spans_a_decade(np.concatenate([np.asarray(c.index, dtype=np.float64) for c in drawn])):
        ax.set_xscale("log")
    if _spans_a_decade(np.concatenate([c["mean"].to_numpy() for c in drawn])):
        ax.set_yscale("log")
    ax.grid(alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)
    if len(drawn) > 1:
        ax.legend(fontsize=8)
    return ax


def _table(metrics: str | os.PathLike[str] | pd.DataFrame) -> pd.DataFrame:
    if isinstance(metrics, pd.DataFrame):
        return metrics
    if not isinstance(metrics, str | os.PathLike):
        raise DataError(
            f"plot_learning_curves: expected a DataFrame or the path of a CSV file, got {type(metrics).__name__}."
        )
    if not Path(metrics).is_file():
        raise DataError(f"plot_learning_curves: no file '{metrics}'. A run's is outputs/<date_time>/metrics.csv.")
    try:
        return pd.read_csv(metrics)
    except (ValueError, UnicodeDecodeError) as problem:  # pandas' own errors are ValueErrors
        raise DataError(f"plot_learning_curves: '{metrics}' is not a CSV table ({problem}).") from problem


def _parts(table: pd.DataFrame, by: str | None) -> list[tuple[str, pd.DataFrame]]:
    return [("", table)] if by is None else [(str(name), part) for name, part in table.groupby(by, sort=False)]


def _curve(part: pd.DataFrame, x: str, y: str, error: str | None) -> pd.DataFrame:
    """Means and standard errors (0 for single rows) by x, ascending."""
    finite = part[np.isfinite(part[x].astype(float)) & np.isfinite(part[y].astype(float))]
    groups = finite.groupby(x)
    spread = groups[y].sem() if error is None else groups[error].mean()
    return pd.DataFrame({"mean": groups[y].mean(), "error": spread.fillna(0.0)}, dtype=np.float64)


def _spans_a_decade(values: np.ndarray[Any, np.dtype[np.float64]]) -> bool:
    return bool(values.min() > 0 and values.max() / values.min() > DECADE)
