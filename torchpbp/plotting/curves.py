"""Results: learning curves out of tables, and confusion matrices."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from torch import Tensor

from torchpbp.errors import DataError, ShapeError
from torchpbp.plotting.digits import draw_confusion

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DECADE = 10.0  # an axis is logarithmic where its values span more than this


def plot_learning_curves(
    metrics: str | os.PathLike[str] | pd.DataFrame,
    y: str | Sequence[str],
    x: str = "epoch",
    *,
    by: str | None = None,
    error: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw how numbers change, say accuracy with training rows or losses with epochs.

    Rows that share ``x`` (and ``by``) are repeats: drawn are their mean and, with two or more, its standard error.
    Missing values are left out. Axes whose values are positive and span more than a decade are logarithmic.

    Args:
        metrics: a table, or the path of a CSV file such as the metrics.csv of a run.
        y: the column to draw, or several, a line each.
        x: the column across.
        by: a column with names, each of which gets a line of its own: the learner, say.
        error: a column with standard errors, for tables that hold means already.
        ax: axes to draw on; new ones by default.

    Returns:
        The axes; its lines are labelled in its legend.

    Raises:
        DataError: no such file or column, texts instead of numbers, or nothing to draw.
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


def plot_confusion(
    matrix: Any, predicted: Any = None, *, names: Sequence[object] | None = None, ax: Axes | None = None
) -> Axes:
    """Draw a confusion matrix: true class down, predicted class across, numbers of rows in the cells.

    Args:
        matrix: (classes, classes) numbers of rows; or, with ``predicted``, the (n,) true classes.
        predicted: (n,) predicted classes.
        names: with a matrix, how its classes are called (0, 1, 2, … by default). With true and predicted classes, all
            classes in the order of the picture; by default those that occur, sorted.
        ax: axes to draw on; new ones by default.

    Returns:
        The axes.

    Raises:
        ShapeError: not square, different lengths, or the wrong number of names.
        DataError: negative or non-finite counts, no rows, or a class that ``names`` leaves out.
    """
    if predicted is None:
        return draw_confusion(matrix, ax, names)
    true, guessed = (np.asarray(c.detach().cpu() if isinstance(c, Tensor) else c) for c in (matrix, predicted))
    if true.ndim != 1 or true.shape != guessed.shape:
        raise ShapeError(
            f"plot_confusion: expected (n,) true and (n,) predicted classes, got {true.shape} and {guessed.shape}."
        )
    if not len(true):
        raise DataError("plot_confusion: expected at least one row, got none.")
    classes = list(names) if names is not None else sorted({*true.tolist(), *guessed.tolist()})
    place = {c: i for i, c in enumerate(classes)}
    unknown = sorted({*true.tolist(), *guessed.tolist()} - set(place), key=str)
    if unknown:
        raise DataError(f"plot_confusion: names leaves out {unknown}, which occur. It has {classes}.")
    counts = np.zeros((len(classes), len(classes)), dtype=np.int64)
    np.add.at(counts, ([place[c] for c in true.tolist()], [place[c] for c in guessed.tolist()]), 1)
    return draw_confusion(counts, ax, classes)


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
        raise DataError(f"plot_learning_curves: '{metrics}' is no CSV table ({problem}).") from problem


def _parts(table: pd.DataFrame, by: str | None) -> list[tuple[str, pd.DataFrame]]:
    return [("", table)] if by is None else [(str(name), part) for name, part in table.groupby(by, sort=False)]


def _curve(part: pd.DataFrame, x: str, y: str, error: str | None) -> pd.DataFrame:
    """Means and standard errors (0 where one row is too few to know) by x, ascending."""
    kept = part[np.isfinite(part[x].astype(float)) & np.isfinite(part[y].astype(float))]
    groups = kept.groupby(x)
    spread = groups[y].sem() if error is None else groups[error].mean()
    return pd.DataFrame({"mean": groups[y].mean(), "error": spread.fillna(0.0)}, dtype=np.float64)


def _spans_a_decade(values: np.ndarray[Any, np.dtype[np.float64]]) -> bool:
    return bool(values.min() > 0 and values.max() / values.min() > DECADE)
