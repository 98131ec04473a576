"""Figure of the experiment on joint probabilities: error and training time against training rows, by structure."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from torchpbp.experiments.running.results import write_figure

MARKERS = "osD^vPX*"


def write_error_and_time_plot(
    path: str | os.PathLike[str], summary: pd.DataFrame, independence: Mapping[str, float]
) -> None:
    """Draw errors (above) and seconds (below), a column for each structure and a line for each learner, as a PNG file.

    Args:
        path: where to write.
        summary: columns structure, learner, rows, error, error_standard_error (NaN: none), seconds.
        independence: structure -> error of the product of exact marginals, drawn as a dotted line.
    """
    structures = list(dict.fromkeys(summary["structure"]))
    learners = list(dict.fromkeys(summary["learner"]))
    figure = Figure(figsize=(3.1 * len(structures) + 0.6, 5.6), layout="constrained")
    axes = figure.subplots(2, len(structures), squeeze=False, sharex=True, sharey="row")
    for column, structure in enumerate(structures):
        upper, lower = axes[0][column], axes[1][column]
        for i, learner in enumerate(learners):
            lines = summary[(summary["structure"] == structure) & (summary["learner"] == learner)].sort_values("rows")
            style = {"marker": MARKERS[i % len(MARKERS)], "markersize": 4, "color": f"C{i}", "label": learner}
            upper.errorbar(
                lines["rows"], lines["error"], yerr=lines["error_standard_error"].fillna(0.0), capsize=2, **style
            )
            lower.plot(lines["rows"], lines["seconds"], **style)
        upper.axhline(independence[structure], linestyle=":", color="gray", label="independence")
        upper.set(xscale="log", yscale="log", title=structure)
        lower.set(xscale="log", yscale="log", xlabel="training rows N")
        for ax in (upper, lower):
            ax.grid(which="both", alpha=0.3)
    axes[0][0].set_ylabel("mean |P̂(x) − P(x)| / P(x)")
    axes[1][0].set_ylabel("training time, seconds")
    axes[0][0].legend(fontsize="small")
    write_figure(path, figure)
