"""Confusion matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from torchpbp.errors import DataError, ShapeError
from torchpbp.plotting.style import CENTRED, GREEN, GRID, RED, as_array, drawing_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_confusion(
    matrix: Any, predicted: Any = None, *, names: Sequence[object] | None = None, ax: Axes | None = None
) -> Axes:
    """Draw a confusion matrix: rows are true classes, columns predicted classes, cells numbers of samples.

    Errors have a separate colour scale, up to the most frequent one; on the scale of the diagonal all would look white.

    Args:
        matrix: (classes, classes) counts; or, with ``predicted``, the (n,) true classes.
        predicted: (n,) predicted classes.
        names: with a matrix, the names of its classes (0, 1, 2, … by default). With true and predicted classes, all
            classes in the order of the axes; by default the sorted classes of the data.
        ax: axes to draw on; new ones by default.

    Returns:
        The axes.

    Raises:
        ShapeError: not square, different lengths, or the wrong number of names.
        DataError: negative or non-finite counts, no rows, or a class missing in ``names``.
    """
    if predicted is not None:
        matrix, names = _counted(as_array(matrix), as_array(predicted), names)
    counts = as_array(matrix).astype(np.float64)
    classes = len(counts) if counts.ndim else 0
    if counts.shape != (classes, classes) or classes == 0:
        raise ShapeError(f"plot_confusion: expected shape (classes, classes), got {counts.shape}.")
    if not np.isfinite(counts).all() or (counts < 0).any():
        raise DataError("plot_confusion: expected counts of rows, got negative or non-finite numbers.")
    titles = [str(c) for c in (range(classes) if names is None else names)]
    if len(titles) != classes:
        raise ShapeError(f"plot_confusion: expected {classes} names, one per class, got {len(titles)}.")

    from matplotlib.colors import to_rgb

    ax = drawing_axes(ax, max(3.5, 0.48 * classes + 1.2), max(3.2, 0.46 * classes + 1.0))
    right = np.eye(classes, dtype=bool)
    total = counts.sum(axis=1, keepdims=True)
    share = np.divide(counts, total, out=np.zeros_like(counts), where=total > 0)
    worst = share[~right].max(initial=0.0)
    strength = np.where(right, 0.75 * share, 0.1 + 0.75 * share / (worst or 1.0))  # from 0 (white) to 1
    strength[counts == 0] = 0.0
    tint = np.where(right[..., None], to_rgb(GREEN), to_rgb(RED))
    ax.imshow(1.0 - strength[..., None] * (1.0 - tint))
    for (i, j), count in np.ndenumerate(counts):
        if count > 0:
            colour = "white" if strength[i, j] > 0.5 else "black"
            ax.text(j, i, f"{count:.4g}" if count < 1e4 else f"{count:.0f}", color=colour, **CENTRED)
    for i in range(classes):
        text = f"{100 * share[i, i]:.1f} %" if total[i, 0] > 0 else "no rows"
        ax.text(classes - 0.35, i, text, ha="left", va="center", fontsize=8, color=GREEN)
    ax.set_xticks(range(classes), titles)
    ax.set_yticks(range(classes), titles)
    ax.set_xticks(np.arange(classes + 1) - 0.5, minor=True)
    ax.set_yticks(np.arange(classes + 1) - 0.5, minor=True)
    ax.grid(which="minor", color=GRID, linewidth=0.8)
    ax.tick_params(which="both", length=0)
    ax.spines[:].set_visible(False)
    ax.set(xlabel="predicted", ylabel="true")
    everything = counts.sum()
    if everything > 0:
        correct = counts[right].sum()
        ax.set_title(f"{correct:,.0f} of {everything:,.0f} right: {100 * correct / everything:.2f} %", fontsize=10)
    return ax


def _counted(
    true: npt.NDArray[Any], predicted: npt.NDArray[Any], names: Sequence[object] | None
) -> tuple[npt.NDArray[np.int64], list[object]]:
    """The confusion matrix of true and predicted classes, and its classes."""
    if true.ndim != 1 or true.shape != predicted.shape:
        raise ShapeError(
            f"plot_confusion: expected (n,) true and (n,) predicted classes, got {true.shape} and {predicted.shape}."
        )
    if not len(true):
        raise DataError("plot_confusion: expected at least one row, got none.")
    present = {*true.tolist(), *predicted.tolist()}
    classes = list(names) if names is not None else sorted(present)
    place = {c: i for i, c in enumerate(classes)}
    unknown = sorted(present - set(place), key=str)
    if unknown:
        raise DataError(f"plot_confusion: names leaves out {unknown}, which occur. It has {classes}.")
    counts = np.zeros((len(classes), len(classes)), dtype=np.int64)
    np.add.at(counts, ([place[c] for c in true.tolist()], [place[c] for c in predicted.tolist()]), 1)
    return counts, classes
