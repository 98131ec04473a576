"""Figures of the experiments."""

from __future__ import annotations

import os
from collections.abc import Sequence

from matplotlib.figure import Figure

from torchpbp.tasks.results import replacing


def write_kl_plot(
    path: str | os.PathLike[str], sizes: Sequence[int], means: Sequence[float], errors: Sequence[float], title: str = ""
) -> None:
    """Draw KL against the number of training rows on logarithmic axes, as a PNG file.

    The dashed line through the first point falls like 1/N, the rate at which the KL of a consistent estimator falls.

    Args:
        path: where to write.
        sizes: numbers of rows, ascending.
        means: mean KL at each size.
        errors: standard error of each mean.
        title: of the figure.
    """
    # A Figure without pyplot leaves the caller's backend and open figures alone.
    figure = Figure(figsize=(5.0, 3.8), layout="constrained")
    axes = figure.subplots()
    axes.errorbar(sizes, means, yerr=errors, marker="o", capsize=3, label="learned (mean ± standard error)")
    axes.plot(sizes, [means[0] * sizes[0] / n for n in sizes], linestyle="--", color="gray", label="slope −1")
    axes.set(xscale="log", yscale="log", xlabel="training rows N", ylabel="KL(exact ‖ learned), nats", title=title)
    axes.grid(which="both", alpha=0.3)
    axes.legend()
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)
