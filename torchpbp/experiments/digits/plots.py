"""Figures of the experiments with pen digits."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

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


def write_hidden_plot(path: str | os.PathLike[str], table: pd.DataFrame) -> None:
    """Draw accuracy against the number of hidden points, a line per classifier, as a PNG file.

    Args:
        path: where to write.
        table: columns classifier, hidden, accuracy.
    """
    figure = Figure(figsize=(5.0, 3.8), layout="constrained")
    axes = figure.subplots()
    for name in dict.fromkeys(table["classifier"]):
        own = table[table["classifier"] == name].sort_values("hidden")
        axes.plot(own["hidden"], 100 * own["accuracy"], marker="o", markersize=4, label=name)
    axes.set(xlabel="hidden points of eight", ylabel="accuracy, %", xticks=sorted(set(table["hidden"])))
    axes.grid(alpha=0.3)
    axes.legend()
    write_figure(path, figure)


def write_training_plot(path: str | os.PathLike[str], histories: Mapping[str, pd.DataFrame]) -> None:
    """Draw losses and validation accuracy against steps, a colour per network, as a PNG file.

    Args:
        path: where to write.
        histories: network -> columns step, and those of train/loss, val/loss and val/accuracy that were logged.
    """
    figure = Figure(figsize=(9.5, 3.8), layout="constrained")
    losses, right = figure.subplots(1, 2)
    for i, (name, frame) in enumerate(histories.items()):
        for column, style in (("train/loss", "--"), ("val/loss", "-")):
            if column in frame:
                label = f"{name}: {'training' if column == 'train/loss' else 'validation'}"
                losses.plot(frame["step"], frame[column], style, color=f"C{i}", label=label)
        if "val/accuracy" in frame:
            right.plot(frame["step"], 100 * frame["val/accuracy"], color=f"C{i}", label=name)
    losses.set(xlabel="step", ylabel="loss, nats", yscale="log")
    right.set(xlabel="step", ylabel="validation accuracy, % (half of the rows with hidden points)")
    right.yaxis.label.set_fontsize(8)
    for axes in (losses, right):
        axes.grid(which="both", alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
    write_figure(path, figure)


def write_calibration_plot(
    path: str | os.PathLike[str], confidence: npt.NDArray[np.float64], right: npt.NDArray[np.bool_], bins: int = 10
) -> None:
    """Draw how often predictions of each confidence are right, as a PNG file.

    Args:
        path: where to write.
        confidence: (rows,) probability of the predicted class.
        right: (rows,) whether it is the true one.
        bins: of confidence; those with fewer than five rows are left out.
    """
    cell = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    count = np.bincount(cell, minlength=bins)
    known = count >= 5
    mean = np.bincount(cell, weights=confidence, minlength=bins)[known] / count[known]
    share = np.bincount(cell, weights=right, minlength=bins)[known] / count[known]
    error = np.sqrt(share * (1 - share) / count[known])
    figure = Figure(figsize=(4.2, 3.8), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=1)
    axes.errorbar(mean, share, yerr=error, fmt="o", markersize=4, capsize=2)
    axes.set(xlabel="probability of the predicted digit", ylabel="share of them right", xlim=(0, 1.02), ylim=(0, 1.02))
    axes.grid(alpha=0.3)
    write_figure(path, figure)


def write_hardest_digits(
    path: str | os.PathLike[str], points: Tensor, true: npt.NDArray[np.int64], predicted: npt.NDArray[np.int64]
) -> None:
    """Draw strokes with their true and predicted digits, as a PNG file.

    Args:
        path: where to write.
        points: (n, 16) coordinates.
        true: (n,) digits.
        predicted: (n,) digits.
    """
    labels = [f"{t}, read as {p}" if t != p else f"{t}" for t, p in zip(true, predicted, strict=True)]
    columns = min(8, len(points))
    figure = Figure(figsize=(1.15 * columns + 0.2, 1.35 * -(-len(points) // columns) + 0.2), layout="constrained")
    draw_digits(points, figure.subplots(), labels=labels, columns=columns)
    write_figure(path, figure)
