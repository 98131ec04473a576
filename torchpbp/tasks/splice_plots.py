"""The figure of the splice experiment."""

from __future__ import annotations

import os

import pandas as pd
from matplotlib.figure import Figure

from torchpbp.tasks.results import replacing


def write_splice_plot(path: str | os.PathLike[str], summary: pd.DataFrame) -> None:
    """Draw error and training time against the number of training rows, one line per learner, as a PNG file.

    Args:
        path: where to write.
        summary: columns learner, rows (numbers), accuracy, standard_error (NaN: none), fit_seconds.
    """
    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, lines in summary.groupby("learner", sort=False):
        rows = lines["rows"].astype(float)
        error = 100 * (1 - lines["accuracy"])
        spread = 100 * lines["standard_error"].fillna(0.0)
        left.errorbar(rows, error, yerr=spread, marker="o", markersize=4, capsize=3, label=name)
        right.plot(rows, lines["fit_seconds"], marker="o", markersize=4)
    left.set(xscale="log", xlabel="training rows", ylabel="wrong, %")
    right.set(xscale="log", yscale="log", xlabel="training rows", ylabel="seconds to train three classes")
    left.legend(fontsize="small")
    for axes in (left, right):
        axes.grid(alpha=0.3, which="both")
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)
