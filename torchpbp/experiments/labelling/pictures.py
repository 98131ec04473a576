"""Pictures of sequence labelling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from torch import Tensor

from torchpbp.experiments.results import Picture


def curves_picture(summary: pd.DataFrame, bayes: Mapping[str, float]) -> Picture:
    """KL, log-loss and accuracy against the number of labelled sequences, a line per head.

    Args:
        summary: columns series, rows, kl, log_loss, accuracy and their standard errors (NaN: none).
        bayes: log_loss and accuracy of the exact posterior.
    """
    figure = Figure(figsize=(14.0, 4.2), layout="constrained")
    panels = figure.subplots(1, 3)
    names = {"kl": "KL(exact ‖ head), nats", "log_loss": "log-loss, nats", "accuracy": "accuracy"}
    for axes, (column, text) in zip(panels, names.items(), strict=True):
        for name, lines in summary.groupby("series", sort=False):
            drawn = {"yerr": lines[f"{column}_standard_error"].fillna(0.0), **style(str(name))}
            axes.errorbar(lines["rows"], lines[column], markersize=4, capsize=3, label=name, **drawn)
        if column != "kl":
            axes.axhline(bayes[column], color="black", linestyle="--", label="exact posterior")
        sizes = sorted(set(summary["rows"]))
        axes.set(xscale="log", xlabel="labelled sequences", ylabel=text)
        axes.set_xticks(sizes, [str(n) for n in sizes])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    panels[0].set_yscale("log")
    figure.legend(*panels[-1].get_legend_handles_labels(), loc="outside right center", fontsize="small")
    return Picture(figure, "Divergence from the exact posterior, log-loss and accuracy per site, means over repeats.")


def style(series: str) -> dict[str, Any]:
    """A colour per head, a line per stage, a filled marker for heads fitted to further label sequences."""
    head, *stage = series.split()
    colour = {"softmax": "gray", "crf": "tab:orange", "pbp": "tab:blue"}[head]
    line = next((line for word, line in {"fitted": ":", "noise": "-.", "through": "--"}.items() if word in stage), "-")
    fill = "auto" if series.endswith("labels") else "white"
    return {"color": colour, "linestyle": line, "marker": "o", "markerfacecolor": fill}


def posteriors_picture(posteriors: Mapping[str, Tensor], labels: Tensor) -> Picture:
    """Posteriors of the labels along one sequence, a strip per head, with the true labels as dots.

    Args:
        posteriors: name -> (length, labels) probabilities.
        labels: (length,) the truth.
    """
    figure = Figure(figsize=(7.0, 1.15 * len(posteriors) + 0.5), layout="constrained")
    strips = figure.subplots(len(posteriors), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, probabilities) in zip(strips, posteriors.items(), strict=True):
        length, states = probabilities.shape
        extent = (0.5, length + 0.5, states - 0.5, -0.5)
        image = axes.imshow(probabilities.T.numpy(), vmin=0, vmax=1, cmap="Blues", aspect="auto", extent=extent)
        axes.plot(range(1, length + 1), labels.tolist(), "o", markersize=4, color="tab:orange")
        axes.set_yticks(range(states))
        axes.set_ylabel(name, rotation=0, ha="right", va="center")
    strips[-1].set_xlabel("site")
    figure.colorbar(image, ax=strips, label="posterior")
    return Picture(figure, "Posteriors of the labels along one test sequence; dots are the true labels.")
