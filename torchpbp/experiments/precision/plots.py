"""Figure of precision: KL and CPU seconds against the number of rows, for each graph."""

from __future__ import annotations

import os

import pandas as pd
from matplotlib.figure import Figure

from torchpbp.experiments.running.results import write_figure


def write_precision_plot(path: str | os.PathLike[str], summary: pd.DataFrame) -> None:
    """Draw KL above and seconds below, one column of panels per graph, one line per learner, as a PNG file.

    Args:
        path: where to write.
        summary: columns graph, learner, rows, kl, cpu_seconds.
    """
    graphs = list(dict.fromkeys(summary["graph"]))
    figure = Figure(figsize=(2.3 * len(graphs) + 1.5, 4.6), layout="constrained")
    panels = figure.subplots(2, len(graphs), squeeze=False, sharex=True, sharey="row")
    for column, graph in enumerate(graphs):
        for name, lines in summary[summary["graph"] == graph].groupby("learner", sort=False):
            for line, measure in enumerate(("kl", "cpu_seconds")):
                panels[line, column].plot(lines["rows"], lines[measure], marker="o", markersize=3, label=str(name))
        panels[0, column].set_title(graph, fontsize="medium")
        for axes in panels[:, column]:
            axes.set(xscale="log", yscale="log")
            axes.grid(alpha=0.3)
        panels[1, column].set_xlabel("training rows N")
    panels[0, 0].set_ylabel("KL, nats")
    panels[1, 0].set_ylabel("CPU seconds")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    write_figure(path, figure, dpi=130)
