"""Figures of sequence labelling."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure
from torch import Tensor

from torchpbp.experiments.running.results import write_figure


def write_label_curves(
    path: str | os.PathLike[str], summary: pd.DataFrame, bayes_accuracy: float, bayes_log_loss: float
) -> None:
    """Draw KL, log-loss and accuracy against the number of labelled sequences, a line per head, as a PNG file.

    Args:
        path: where to write.
        summary: columns series, rows, and for kl, log_loss and accuracy a mean and a standard error ("kl_error", …; NaN:
            none).
        bayes_accuracy: of the exact posterior, which no head can pass but by chance.
        bayes_log_loss: of the exact posterior.
    """
    figure = Figure(figsize=(14.0, 4.2), layout="constrained")
    panels = figure.subplots(1, 3)
    shown = (
        ("kl", "KL(exact ‖ head) per site, nats", None),
        ("log_loss", "log-loss per site, nats", bayes_log_loss),
        ("accuracy", "accuracy per site", bayes_accuracy),
    )
    for axes, (column, text, best) in zip(panels, shown, strict=True):
        for name, lines in summary.groupby("series", sort=False):
            errors = lines[f"{column}_error"].fillna(0.0)
            style = _style(str(name))
            axes.errorbar(lines["rows"], lines[column], yerr=errors, markersize=4, capsize=3, label=str(name), **style)
        if best is not None:
            axes.axhline(best, color="black", linestyle="--", label="Bayes")
        sizes = sorted(set(summary["rows"]))
        axes.set(xscale="log", xlabel="labelled sequences", ylabel=text)
        axes.set_xticks(sizes, [str(n) for n in sizes])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    panels[0].set_yscale("log")
    figure.legend(*panels[-1].get_legend_handles_labels(), loc="outside right center", fontsize="small")
    write_figure(path, figure)


def _style(series: str) -> dict[str, str]:
    """A colour per head, a line per stage, a filled marker where label-only sequences were used."""
    head, *stage = series.split()
    return {
        "color": {"softmax": "gray", "crf": "tab:orange", "pbp": "tab:blue"}.get(head, "black"),
        "linestyle": ":" if "fitted" in stage else "-." if "noise" in stage else "--" if "through" in stage else "-",
        "marker": "o",
        "markerfacecolor": "auto" if series.endswith("labels") else "white",
    }


def draw_posteriors(posteriors: Mapping[str, Tensor], labels: Tensor) -> Figure:
    """Posteriors of the labels along one sequence, a strip per head, with the true labels as dots.

    Args:
        posteriors: name -> (length, labels) probabilities.
        labels: (length,) the truth.
    """
    figure = Figure(figsize=(7.0, 1.15 * len(posteriors) + 0.5), layout="constrained")
    strips = figure.subplots(len(posteriors), 1, sharex=True, squeeze=False)[:, 0]
    sites = range(1, len(labels) + 1)
    for axes, (name, probabilities) in zip(strips, posteriors.items(), strict=True):
        extent = (0.5, len(labels) + 0.5, probabilities.shape[1] - 0.5, -0.5)
        picture = axes.imshow(
            probabilities.detach().T.numpy(), vmin=0, vmax=1, cmap="Blues", aspect="auto", extent=extent
        )
        axes.plot(sites, labels.tolist(), "o", markersize=4, color="tab:orange")
        axes.set_yticks(range(probabilities.shape[1]))
        axes.set_ylabel(name, rotation=0, ha="right", va="center")
    strips[-1].set_xlabel("site")
    figure.colorbar(picture, ax=strips, label="posterior")
    return figure


def write_posteriors(path: str | os.PathLike[str], posteriors: Mapping[str, Tensor], labels: Tensor) -> None:
    """Write :func:`draw_posteriors` as a PNG file."""
    write_figure(path, draw_posteriors(posteriors, labels))
