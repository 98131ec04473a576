"""Figure of the comparison with EM: accuracy and training time against the number of rows [PBP Fig. 5]."""

from __future__ import annotations

import os

import pandas as pd

from torchpbp.experiments.running.plots import quality_and_seconds
from torchpbp.experiments.running.results import write_figure


def write_kl_and_seconds(path: str | os.PathLike[str], summary: pd.DataFrame, ignoring: float, title: str = "") -> None:
    """Draw KL and seconds against training rows side by side, one line per learner, as a PNG file.

    Args:
        path: where to write.
        summary: columns learner, rows, kl, kl_standard_error (NaN: none), fit_seconds.
        ignoring: KL of the exact marginal, which looks at no evidence.
        title: of the figure.
    """
    figure, accuracy, seconds = quality_and_seconds(summary, "rows", "kl", "kl_standard_error")
    accuracy.axhline(ignoring, color="gray", linestyle="--", linewidth=0.8, label="evidence ignored")
    accuracy.set(ylabel="KL(exact ‖ learned), nats (mean ± standard error)")
    seconds.set(ylabel="training time, s (median)")
    for axes in (accuracy, seconds):
        axes.set(xscale="log", yscale="log", xlabel="training rows N")
    accuracy.legend()
    figure.suptitle(title)
    write_figure(path, figure)
