"""Figures of the experiment with patches."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure
from torch import Tensor

from torchpbp.experiments.patches.data import put_together
from torchpbp.experiments.running.results import write_figure

TITLES = {"complete": "trained on complete images", "hidden": "trained with hidden patches"}


def write_hidden_plot(path: str | os.PathLike[str], table: pd.DataFrame) -> None:
    """Draw accuracy against the share of hidden patches, a panel per kind of training rows, as a PNG file.

    Args:
        path: where to write.
        table: columns training, classifier, hidden (percent), accuracy.
    """
    ways = list(dict.fromkeys(table["training"]))
    figure = Figure(figsize=(1.0 + 4.0 * len(ways), 3.6), layout="constrained")
    for axes, way in zip(figure.subplots(1, len(ways), sharey=True, squeeze=False)[0], ways, strict=True):
        for name, own in table[table["training"] == way].groupby("classifier", sort=False):
            axes.plot(own["hidden"], 100 * own["accuracy"], marker="o", markersize=4, label=name)
        axes.set(title=TITLES[way], xlabel="patches hidden, %", xticks=sorted(set(table["hidden"])))
        axes.grid(alpha=0.3)
        axes.legend()
    figure.axes[0].set_ylabel("test accuracy, %")
    write_figure(path, figure)


def write_completed(path: str | os.PathLike[str], images: Mapping[str, Tensor]) -> None:
    """Draw images, what is seen of them, and how the hidden patches are completed, one column per image, as a PNG file.

    Args:
        path: where to write.
        images: true, seen (NaN where hidden) and completed (n, 16, 1, 2, 2), digit and predicted (n,).
    """
    count = len(images["digit"])
    figure = Figure(figsize=(0.85 * count + 0.6, 3.0), layout="constrained")
    grid = figure.subplots(3, count, squeeze=False)
    for line, name in zip(grid, ("true", "seen", "completed"), strict=True):
        line[0].set_ylabel(name if name != "true" else "image")
        for axes, image in zip(line, put_together(images[name]), strict=True):
            axes.imshow(image.numpy(), cmap="gray_r", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[], facecolor="tab:blue")  # hidden patches are not drawn
    for axes, predicted in zip(grid[1], images["predicted"].tolist(), strict=True):
        axes.set_title(f"{predicted}?", fontsize=9)
    write_figure(path, figure)
