"""Figures of the experiments with pen digits."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from torchpbp.experiments.running.plots import quality_and_seconds
from torchpbp.experiments.running.results import write_figure
from torchpbp.plotting.digits import draw_digits


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
