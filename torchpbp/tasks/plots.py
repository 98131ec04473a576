"""Figures of the experiments."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from torchpbp.data.pictures import draw_confusion, draw_digits
from torchpbp.tasks.results import replacing


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
    # A Figure without pyplot leaves the caller's backend and open figures alone.
    figure = Figure(figsize=(5.0, 3.8), layout="constrained")
    axes = figure.subplots()
    axes.errorbar(sizes, means, yerr=errors, marker="o", capsize=3, label="learned (mean ± standard error)")
    axes.plot(sizes, [means[0] * sizes[0] / n for n in sizes], linestyle="--", color="gray", label="slope −1")
    axes.set(xscale="log", yscale="log", xlabel="training rows N", ylabel="KL(exact ‖ learned), nats", title=title)
    axes.grid(which="both", alpha=0.3)
    axes.legend()
    _save(figure, path)


def write_learning_curve(path: str | os.PathLike[str], summary: pd.DataFrame) -> None:
    """Draw test accuracy and seconds to train against training rows per class, one line per learner, as a PNG file.

    Args:
        path: where to write.
        summary: columns learner, rows_per_class, accuracy, standard_error (NaN: none), fit_seconds.
    """
    figure = Figure(figsize=(10.0, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, lines in summary.groupby("learner", sort=False):
        rows = lines["rows_per_class"]
        errors = 100 * lines["standard_error"].fillna(0.0)
        left.errorbar(rows, 100 * lines["accuracy"], yerr=errors, marker="o", markersize=4, capsize=3, label=name)
        right.plot(rows, lines["fit_seconds"], marker="o", markersize=4)
    sizes = sorted(set(summary["rows_per_class"]))
    left.set(xscale="log", xlabel="training rows per class", ylabel="test accuracy, %")
    right.set(xscale="log", yscale="log", xlabel="training rows per class", ylabel="seconds to train")
    for axes in (left, right):
        axes.minorticks_off()
        axes.set_xticks(sizes, [str(n) for n in sizes])
        axes.grid(alpha=0.3)
    left.legend(fontsize="small")
    _save(figure, path)


def write_confusion(path: str | os.PathLike[str], matrix: npt.NDArray[np.int64], names: Sequence[object]) -> None:
    """Draw a (classes, classes) confusion matrix as a PNG file."""
    figure = Figure(figsize=(6.2, 5.6), layout="constrained")
    draw_confusion(matrix, figure.subplots(), names)
    _save(figure, path)


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
    _save(figure, path)


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
    _save(figure, path)


def _save(figure: Figure, path: str | os.PathLike[str]) -> None:
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)
