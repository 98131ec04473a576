"""Figures that several experiments share."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from torchpbp.experiments.running.results import write_figure
from torchpbp.plotting import plot_confusion, plot_learning_curves


def quality_and_seconds(summary: pd.DataFrame, x: str, y: str, error: str) -> tuple[Figure, Axes, Axes]:
    """Two panels against training rows, one line per learner: what was reached, and seconds to train.

    Args:
        summary: columns learner, fit_seconds, and the three that follow.
        x: column with numbers of rows.
        y: column with what was reached.
        error: column with its standard errors (NaN: none).

    Returns:
        The figure and its panels, which the caller scales and labels.
    """
    figure = Figure(figsize=(9.5, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    plot_learning_curves(summary, y, x, by="learner", error=error, ax=left)
    known = summary.assign(none=0.0)
    plot_learning_curves(known, "fit_seconds", x, by="learner", error="none", ax=right)
    if right.get_legend() is not None:
        right.get_legend().remove()  # the same as at the left
    return figure, left, right


def write_confusion(path: str | os.PathLike[str], matrix: npt.NDArray[np.int64], names: Sequence[object]) -> None:
    """Draw a (classes, classes) confusion matrix as a PNG file."""
    figure = Figure(figsize=(6.2, 5.6), layout="constrained")
    plot_confusion(matrix, names=names, ax=figure.subplots())
    write_figure(path, figure)
