"""The figure of the splice experiment."""

from __future__ import annotations

import os

import pandas as pd

from torchpbp.experiments.running.plots import quality_and_seconds
from torchpbp.experiments.running.results import write_figure


def write_splice_plot(path: str | os.PathLike[str], summary: pd.DataFrame) -> None:
    """Draw error and training time against the number of training rows, one line per learner, as a PNG file.

    Args:
        path: where to write.
        summary: columns learner, rows (numbers), accuracy, standard_error (NaN: none), fit_seconds.
    """
    wrong = summary.assign(
        rows=summary["rows"].astype(float),
        wrong=100 * (1 - summary["accuracy"]),
        standard_error=100 * summary["standard_error"],
    )
    figure, left, right = quality_and_seconds(wrong, "rows", "wrong", "standard_error")
    left.set(xscale="log", yscale="linear", xlabel="training rows", ylabel="wrong, %")
    right.set(xscale="log", yscale="log", xlabel="training rows", ylabel="seconds to train three classes")
    write_figure(path, figure)
