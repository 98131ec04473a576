"""Figures of the embedded pen digits."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from torchpbp.experiments.running.results import write_figure

NAMES = {"pbp": "PBP layer", "twin": "perceptron"}

STYLES = {
    "pbp": (NAMES["pbp"], "C0", "-"),
    "twin": (NAMES["twin"], "C1", "-"),
    "companion": ("companion", "C2", ":"),
    "pbp_companion": ("PBP layer and companion", "C0", "--"),
    "twin_companion": ("perceptron and companion", "C1", "--"),
}
"""Label, colour and line of each classifier."""


def write_hidden_plot(path: str | os.PathLike[str], table: pd.DataFrame) -> None:
    """Draw test accuracy against the number of hidden points for each classifier, as a PNG file.

    Args:
        path: where to write.
        table: columns hidden, pbp_accuracy, twin_accuracy, and those with the companion if there is one.
    """
    figure = Figure(figsize=(5.0, 3.8), layout="constrained")
    axes = figure.subplots()
    for key, (name, color, line) in STYLES.items():
        if f"{key}_accuracy" in table:
            right = 100 * table[f"{key}_accuracy"]
            axes.plot(table["hidden"], right, line, color=color, marker="o", markersize=4, label=name)
    axes.set(xlabel="hidden points of eight", ylabel="test accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend()
    write_figure(path, figure)


def write_training_plot(path: str | os.PathLike[str], histories: Mapping[str, pd.DataFrame]) -> None:
    """Draw losses against epochs for both heads, as a PNG file.

    Args:
        path: where to write.
        histories: per head the columns epoch, train_loss, val_loss.
    """
    figure = Figure(figsize=(5.0, 3.8), layout="constrained")
    axes = figure.subplots()
    for key, frame in histories.items():
        (line,) = axes.plot(frame["epoch"], frame["val_loss"], label=f"{NAMES[key]}: validation")
        axes.plot(frame["epoch"], frame["train_loss"], linestyle="--", color=line.get_color(), label="training")
    axes.set(xlabel="epoch", ylabel="loss, nats", yscale="log")
    axes.grid(which="both", alpha=0.3)
    axes.legend()
    write_figure(path, figure)
