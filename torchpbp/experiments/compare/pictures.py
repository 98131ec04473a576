"""Pictures of comparisons: curves by number of rows, or a panel of dots per measure."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from torchpbp.experiments.compare.measures import Measure
from torchpbp.experiments.results import Picture

MARKERS = "osD^vPX*"
MOST_PANELS = 12


def curves(summary: pd.DataFrame, measures: Mapping[str, Measure]) -> Picture:
    """Main columns and CPU seconds against numbers of rows: a column of panels per graph, a line per model.

    Args:
        summary: columns graph, model, rows, cpu_seconds, and those of the measures with "<column>_standard_error".
        measures: whose main columns are drawn, and their baselines as dotted lines.
    """
    graphs, models = (list(dict.fromkeys(summary[name])) for name in ("graph", "model"))
    drawn = {m.main: m.baseline for m in measures.values() if m.main in summary} | {"cpu_seconds": None}
    figure = Figure(figsize=(max(4.8, 2.4 * len(graphs)) + 1.6, 2.3 * len(drawn) + 0.4), layout="constrained")
    panels = figure.subplots(len(drawn), len(graphs), squeeze=False, sharex=True, sharey="row")
    for line, (column, baseline) in zip(panels, drawn.items(), strict=True):
        line[0].set_ylabel(column.replace("_", " "))
        for axes, graph in zip(line, graphs, strict=True):
            of_graph = summary[summary["graph"] == graph]
            for i, model in enumerate(models):
                part = of_graph[of_graph["model"] == model].sort_values("rows")
                errors = part.get(f"{column}_standard_error", pd.Series(0.0, part.index)).fillna(0.0)
                style = {"marker": MARKERS[i % len(MARKERS)], "color": f"C{i}", "label": model}
                axes.errorbar(part["rows"], part[column], yerr=errors, markersize=4, capsize=2, **style)
            if baseline is not None:
                label = baseline.replace("_", " ")
                axes.axhline(of_graph[baseline].mean(), linestyle=":", color="gray", label=label)
            axes.set_xscale("log")
            if (summary[column].dropna() > 0).all():
                axes.set_yscale("log")
            axes.grid(alpha=0.3)
    for axes, graph in zip(panels[0], graphs, strict=True):
        axes.set_title(graph, fontsize="medium")
    for axes in panels[-1]:
        axes.set_xlabel("training rows")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    names = ", ".join(name.replace("_", " ") for name in drawn)
    return Picture(figure, f"Means over repeats, with standard errors, by number of training rows: {names}.")


def dots(summary: pd.DataFrame, measures: Mapping[str, Measure]) -> Picture:
    """A panel per column: its values on the horizontal axis, a line per graph, a colour per model.

    Args:
        summary: one number of rows; columns graph, model, and those to draw with "<column>_standard_error".
        measures: whose main columns come first.
    """
    graphs, models = (list(dict.fromkeys(summary[name])) for name in ("graph", "model"))
    others = [c for c in summary if f"{c}_standard_error" in summary]
    columns = list(dict.fromkeys([m.main for m in measures.values() if m.main in summary] + others))[:MOST_PANELS]
    across = min(3, len(columns))
    down = -(-len(columns) // across)
    figure = Figure(figsize=(3.0 * across + 1.8, (0.9 + 0.32 * len(graphs)) * down + 0.4), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False, sharey=True)
    for axes, column in zip(panels.flat, columns, strict=False):
        for i, model in enumerate(models):
            part = summary[(summary["model"] == model) & summary[column].notna()]
            errors = part.get(f"{column}_standard_error", pd.Series(0.0, part.index)).fillna(0.0)
            places = [graphs.index(graph) + 0.5 * i / len(models) for graph in part["graph"]]
            style = {"fmt": MARKERS[i % len(MARKERS)], "color": f"C{i}", "label": model}
            axes.errorbar(part[column], places, xerr=errors, markersize=4, capsize=2, **style)
        axes.set_title(column, fontsize="small")
        axes.set_yticks(range(len(graphs)), graphs)
        values = summary[column].dropna()
        if len(values) and values.min() > 0 and values.max() > 10 * values.min():
            axes.set_xscale("log")
        axes.grid(alpha=0.3)
    for axes in list(panels.flat)[len(columns) :]:
        axes.axis("off")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    return Picture(
        figure, "Means over repeats, with standard errors: a panel per measure, a line per graph, a colour per model."
    )
