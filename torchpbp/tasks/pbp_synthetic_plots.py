"""Figure of the comparison with EM: accuracy and training time against the number of rows [PBP Fig. 5]."""

from __future__ import annotations

import os

import pandas as pd
from matplotlib.figure import Figure

from torchpbp.tasks.results import replacing


def write_kl_and_seconds(path: str | os.PathLike[str], summary: pd.DataFrame, ignoring: float, title: str = "") -> None:
    """Draw KL and seconds against training rows side by side, one line per learner, as a PNG file.

    Args:
        path: where to write.
        summary: columns learner, rows, kl, kl_standard_error (NaN: none), fit_seconds.
        ignoring: KL of the exact marginal, which looks at no evidence.
        title: of the figure.
    """
    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    accuracy, seconds = figure.subplots(1, 2)
    for name, lines in summary.groupby("learner", sort=False):
        errors = lines["kl_standard_error"].fillna(0.0)
        accuracy.errorbar(lines["rows"], lines["kl"], yerr=errors, marker="o", markersize=4, capsize=3, label=name)
        seconds.plot(lines["rows"], lines["fit_seconds"], marker="o", markersize=4, label=name)
    accuracy.axhline(ignoring, color="gray", linestyle="--", linewidth=0.8, label="evidence ignored")
    accuracy.set(ylabel="KL(exact ‖ learned), nats (mean ± standard error)")
    seconds.set(ylabel="training time, s (median)")
    for axes in (accuracy, seconds):
        axes.set(xscale="log", yscale="log", xlabel="training rows N")
        axes.grid(which="both", alpha=0.3)
    accuracy.legend()
    figure.suptitle(title)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)
