"""Drawings of pen digits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from torchpbp.datasets.digits import LARGEST
from torchpbp.errors import ShapeError
from torchpbp.plotting.style import GRID, as_array, drawing_axes
from torchpbp.settings import whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SEEN, COMPLETED = "#1b3a5c", "#e07b00"
CELL, GAP = 1.4 * LARGEST, 0.2 * LARGEST
ArrayLike = Tensor | npt.NDArray[Any]


def draw_digits(
    points: ArrayLike,
    ax: Axes | None = None,
    *,
    labels: Sequence[object] | ArrayLike | None = None,
    observed: ArrayLike | None = None,
    columns: int | None = None,
    row_names: Sequence[str] | None = None,
) -> Axes:
    """Draw digits as pen strokes side by side, each with a dot at its first point.

    Args:
        points: (n, 16) coordinates x1, y1, …, x8, y8. Points with NaN are not drawn.
        ax: axes of the drawing; new ones by default.
        labels: (n,) texts, one above each digit.
        observed: (n, 8) mask of the observed points; the others, completed by a model, have another colour.
        columns: digits per line; by default about the square root of n, at most ten.
        row_names: a text to the left of each line.

    Returns:
        The axes.

    Raises:
        ShapeError: wrong shape of points, labels, observed or row_names.
        ArgumentError: columns below 1.
    """
    xy = as_array(points).astype(np.float64)
    if xy.ndim != 2 or xy.shape[1] % 2 or 0 in xy.shape:
        raise ShapeError(f"draw_digits: expected points of shape (n, 16) with n at least 1, got {xy.shape}.")
    n, steps = xy.shape[0], xy.shape[1] // 2
    xy = xy.reshape(n, steps, 2)
    seen = np.ones((n, steps), dtype=bool) if observed is None else as_array(observed).astype(bool)
    if seen.shape != (n, steps):
        raise ShapeError(f"draw_digits: expected observed of shape {(n, steps)}, got {seen.shape}.")
    texts = None if labels is None else list(as_array(labels) if isinstance(labels, Tensor) else labels)
    if texts is not None and len(texts) != n:
        raise ShapeError(f"draw_digits: expected {n} labels, one per digit, got {len(texts)}.")
    columns = min(10, math.ceil(math.sqrt(n))) if columns is None else whole(1).check("columns", columns)
    lines = math.ceil(n / columns)
    if row_names is not None and len(row_names) != lines:
        raise ShapeError(f"draw_digits: expected {lines} row names, one per line, got {len(row_names)}.")

    from matplotlib.collections import LineCollection, PatchCollection
    from matplotlib.patches import Rectangle

    width = min(columns, n)
    height_of_line = CELL + (0.3 * LARGEST if texts is not None else 0.0)
    ax = drawing_axes(ax, max(2.0, 0.95 * width), max(2.0, 0.95 * lines * height_of_line / CELL))
    corner = np.array([[i % columns * CELL, -(i // columns) * height_of_line] for i in range(n)])
    frames = [Rectangle((x - GAP / 2, y - GAP / 2), LARGEST + GAP, LARGEST + GAP) for x, y in corner]
    ax.add_collection(PatchCollection(frames, facecolor="none", edgecolor=GRID, linewidth=0.8, zorder=0))

    placed = xy + corner[:, None]  # (n, steps, 2)
    present = np.isfinite(xy[..., 0] + xy[..., 1])  # (n, steps)
    segments = np.stack([placed[:, :-1], placed[:, 1:]], axis=2)  # (n, steps - 1, 2 ends, 2)
    drawn = present[:, :-1] & present[:, 1:]
    both_seen = seen[:, :-1] & seen[:, 1:]
    for which, colour in ((drawn & ~both_seen, COMPLETED), (drawn & both_seen, SEEN)):
        ax.add_collection(LineCollection(list(segments[which]), colors=colour, linewidths=1.8, capstyle="round"))
    partial = not bool((present & seen).all())  # then observed points are larger
    for which, colour, size in ((present & ~seen, COMPLETED, 8), (present & seen, SEEN, 18 if partial else 8)):
        ax.scatter(placed[which][:, 0], placed[which][:, 1], s=size, color=colour, linewidths=0, zorder=3)
        start = placed[which[:, 0], 0]
        ax.scatter(start[:, 0], start[:, 1], s=40, color=colour, linewidths=0, zorder=3)

    if texts is not None:
        for (x, y), text in zip(corner, texts, strict=True):
            ax.text(x + LARGEST / 2, y + LARGEST + 0.16 * LARGEST, str(text), ha="center", va="bottom", fontsize=9)
    for line, name in enumerate(row_names or ()):
        y = LARGEST / 2 - line * height_of_line
        ax.text(-0.3 * LARGEST, y, name, ha="right", va="center", fontsize=9)
    if bool((present & ~seen).any()):
        handles = [ax.plot([], [], color=c, linewidth=1.8, marker="o", markersize=3)[0] for c in (SEEN, COMPLETED)]
        place: Any = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "ncols": 2}
        ax.legend(handles, ["seen", "completed"], frameon=False, fontsize=9, **place)
    ax.set_xlim(-GAP, width * CELL - GAP)
    ax.set_ylim(LARGEST - lines * height_of_line + GAP, height_of_line - GAP)
    ax.set_aspect("equal")
    ax.set_axis_off()
    return ax
