"""Figures of the experiments."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from torchpbp.experiments.running.results import write_figure
from torchpbp.plotting import plot_confusion, plot_learning_curves
from torchpbp.plotting.digits import draw_digits


def write_kl_plot(
    path: str | os.PathLike[str], sizes: Sequence[int], means: Sequence[float], errors: Sequence[float], title: str = ""
) -> None:
    """Draw KL against the number of training rows on logarithmic axes, as a PNG file.

    The dashed line through the first point falls like 1/N, the rate at which the KL of a consistent estimator falls.

    Args:
        path: where to write.
        sizes: numbers of rows, ascending.
        means: mean KL at each size.
        errors: standard error of each mean.
        title: of the figure.
    """
    figure = Figure(figsize=(5.0, 3.8), layout="constrained")
    axes = figure.subplots()
    axes.errorbar(sizes, means, yerr=errors, marker="o", capsize=3, label="learned (mean ± standard error)")
    axes.plot(sizes, [means[0] * sizes[0] / n for n in sizes], linestyle="--", color="gray", label="slope −1")
    axes.set(xscale="log", yscale="log", xlabel="training rows N", ylabel="KL(exact ‖ learned), nats", title=title)
    axes.grid(which="both", alpha=0.3)
    axes.legend()
    write_figure(path, figure)


def write_learning_curve(path: str | os.PathLike[str], summary: pd.DataFrame) -> None:
    """Draw test accuracy and seconds to train against training rows per class, one line per learner, as a PNG file.

    Args:
        path: where to write.
        summary: columns learner, rows_per_class, accuracy, standard_error (NaN: none), fit_seconds.
    """
    percent = summary.assign(accuracy=100 * summary["accuracy"], standard_error=100 * summary["standard_error"])
    figure, left, right = quality_and_seconds(percent, "rows_per_class", "accuracy", "standard_error")
    sizes = sorted(set(summary["rows_per_class"]))
    left.set(xscale="log", yscale="linear", xlabel="training rows per class", ylabel="test accuracy, %")
    right.set(xscale="log", yscale="log", xlabel="training rows per class", ylabel="seconds to train")
    for axes in (left, right):
        axes.minorticks_off()
        axes.set_xticks(sizes, [str(n) for n in sizes])
    write_figure(path, figure)


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


def write_digits(path: str | os.PathLike[str], points: Tensor, classes: Sequence[object]) -> None:
    """Draw digits, one column per class, as a PNG file.

    Args:
        path: where to write.
        points: (lines · classes, 16) coordinates, line by line.
        classes: their names.
    """
    lines = len(points) // len(classes)
    figure = Figure(figsize=(0.95 * len(classes) + 0.2, 1.2 * lines + 0.2), layout="constrained")
    draw_digits(points, figure.subplots(), labels=list(classes) * lines, columns=len(classes))
    write_figure(path, figure)


def write_completed_digits(
    path: str | os.PathLike[str], true: Tensor, completed: Tensor, observed: Tensor, classes: npt.NDArray[np.int64]
) -> None:
    """Draw each digit twice, side by side: as it was written, and completed from the points seen, as a PNG file.

    Args:
        path: where to write.
        true: (n, 16) coordinates.
        completed: (n, 16) coordinates.
        observed: (n, 8) whether a point was seen.
        classes: (n,) the digits.
    """
    points = torch.stack([true.double(), completed.double()], dim=1).flatten(0, 1)  # (2n, 16)
    seen = torch.stack([torch.ones_like(observed), observed], dim=1).flatten(0, 1)  # (2n, 8)
    labels = [text for value in classes for text in (f"{value} written", "completed")]
    lines = -(-len(true) // 4)
    figure = Figure(figsize=(9.0, 1.45 * lines + 0.4), layout="constrained")
    draw_digits(points, figure.subplots(), labels=labels, observed=seen, columns=8)
    write_figure(path, figure)
