"""Pictures of trained classifiers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure

from torchpbp.experiments.results import Picture


def hidden_picture(table: pd.DataFrame, leaves: int) -> Picture:
    """Accuracy against the number of hidden inputs, a line per classifier.

    Args:
        table: columns classifier, hidden, accuracy.
        leaves: number of inputs.
    """
    figure = Figure(figsize=(5.4, 3.8), layout="constrained")
    axes = figure.subplots()
    for name, lines in table.groupby("classifier", sort=False):
        ordered = lines.sort_values("hidden")
        axes.plot(ordered["hidden"], 100 * ordered["accuracy"], marker="o", markersize=4, label=name)
    axes.set(xlabel=f"hidden inputs of {leaves}", ylabel="accuracy, %", xticks=sorted(set(table["hidden"])))
    axes.grid(alpha=0.3)
    axes.legend()
    return Picture(figure, f"Accuracy by the number of inputs, of {leaves}, that are hidden when predicting.")


def training_picture(histories: Mapping[str, Mapping[str, Any]]) -> Picture:
    """Losses and validation accuracy against steps, a colour per network.

    Args:
        histories: network -> columns step, and those of train/loss, val/loss and val/accuracy that were logged.
    """
    figure = Figure(figsize=(9.5, 3.8), layout="constrained")
    losses, right = figure.subplots(1, 2)
    for i, (name, history) in enumerate(histories.items()):
        for column, style in (("train/loss", "--"), ("val/loss", "-")):
            if column in history:
                label = f"{name}: {'training' if column == 'train/loss' else 'validation'}"
                losses.plot(history["step"], history[column], style, color=f"C{i}", label=label)
        if "val/accuracy" in history:
            right.plot(history["step"], 100 * np.array(history["val/accuracy"]), color=f"C{i}", label=name)
    losses.set(xlabel="step", ylabel="loss, nats", yscale="log")
    right.set(xlabel="step", ylabel="validation accuracy, %")
    for axes in (losses, right):
        axes.grid(which="both", alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
    caption = "Cross-entropy of the target in training and validation; half of the validation rows have hidden inputs."
    return Picture(figure, caption)


def calibration_picture(confidence: npt.NDArray[np.float64], right: npt.NDArray[np.bool_], bins: int = 10) -> Picture:
    """How often predictions of each confidence are right; bins with fewer than five rows are left out.

    Args:
        confidence: (rows,) probability of the predicted class.
        right: (rows,) whether it is the true one.
        bins: of confidence.
    """
    cell = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    count = np.bincount(cell, minlength=bins)
    enough = count >= 5
    mean = np.bincount(cell, weights=confidence, minlength=bins)[enough] / count[enough]
    share = np.bincount(cell, weights=right, minlength=bins)[enough] / count[enough]
    error = np.sqrt(share * (1 - share) / count[enough])
    figure = Figure(figsize=(4.2, 3.8), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=1)
    axes.errorbar(mean, share, yerr=error, fmt="o", markersize=4, capsize=2)
    axes.set(xlabel="probability of the predicted class", ylabel="share that is right", xlim=(0, 1.02), ylim=(0, 1.02))
    axes.grid(alpha=0.3)
    return Picture(figure, "Calibration: the share of right predictions by their probability, complete rows.")
