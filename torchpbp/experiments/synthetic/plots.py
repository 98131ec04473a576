"""The figure of the synthetic experiment."""

from __future__ import annotations

import os

import pandas as pd
from matplotlib.figure import Figure

from torchpbp.experiments.running.results import write_figure


def write_kl_plot(path: str | os.PathLike[str], summary: pd.DataFrame, title: str) -> None:
    """Draw KL against the number of training rows on logarithmic axes, as a PNG file.

    The dashed line through the first point falls like 1/N, the rate at which the KL of a consistent estimator falls.

    Args:
        path: where to write.
        summary: columns rows (ascending), kl, kl_standard_error (NaN: none).
        title: of the figure.
    """
    sizes, means = summary["rows"].tolist(), summary["kl"].tolist()
    figure = Figure(figsize=(5.0, 3.8), layout="constrained")
    axes = figure.subplots()
    errors = summary["kl_standard_error"].fillna(0.0).tolist()
    axes.errorbar(sizes, means, yerr=errors, marker="o", capsize=3, label="learned (mean ± standard error)")
    axes.plot(sizes, [means[0] * sizes[0] / n for n in sizes], linestyle="--", color="gray", label="slope −1")
    axes.set(xscale="log", yscale="log", xlabel="training rows N", ylabel="KL(exact ‖ learned), nats", title=title)
    axes.grid(which="both", alpha=0.3)
    axes.legend()
    write_figure(path, figure)
