"""Axes, colours and arrays of all figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, RED, GREEN, GREY, GRID = "#2b6ca3", "#c8452f", "#2f7d5b", "#555555", "#e4e7ec"
CENTRED: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8}
"""Style of numbers in cells."""


def drawing_axes(ax: Axes | None, width: float, height: float) -> Axes:
    """The axes to draw on: the caller's, or new ones of a size in inches."""
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots(figsize=(width, height), layout="constrained")
    return ax


def as_array(values: object) -> npt.NDArray[Any]:
    """A tensor on any device, a sequence or an array as a numpy array."""
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
