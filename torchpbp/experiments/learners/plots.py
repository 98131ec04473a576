"""The figure of the comparison of all learners."""

from __future__ import annotations

import os

import pandas as pd
from matplotlib.figure import Figure

from torchpbp.experiments.running.results import write_figure

SPEEDS = ("fit_seconds", "answers_per_second")


def write_learners_plot(path: str | os.PathLike[str], table: pd.DataFrame) -> None:
    """Draw each learner's errors against its training time, one panel per kind of question, as a PNG file.

    Args:
        path: where to write.
        table: columns graph, learner, question, value (NaN: no answer).
    """
    means = table.dropna(subset=["value"]).groupby(["question", "graph", "learner"], sort=False)["value"].mean()
    questions = [q for q in dict.fromkeys(table["question"]) if q not in SPEEDS]
    learners = list(dict.fromkeys(table["learner"]))
    columns = min(4, len(questions))
    lines = -(-len(questions) // columns)
    figure = Figure(figsize=(3.1 * columns, 2.8 * lines), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False)
    for axes, question in zip(grid.flat, questions, strict=False):
        for i, name in enumerate(learners):
            for graph, marker in zip(dict.fromkeys(table["graph"]), "os^vD", strict=False):
                if (question, graph, name) in means.index:
                    seconds, error = means["fit_seconds", graph, name], means[question, graph, name]
                    label = f"{name}, {graph}"
                    axes.plot(seconds, error, marker=marker, color=f"C{i}", linestyle="", label=label)
        axes.set(xscale="log", yscale="log", title=question)
        axes.title.set_fontsize("medium")
        axes.grid(alpha=0.3)
    for axes in list(grid.flat)[len(questions) :]:
        axes.axis("off")
    figure.supxlabel("seconds to train")
    figure.supylabel("error")
    handles = {label: h for axes in grid.flat for h, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside right upper", fontsize="small")
    write_figure(path, figure, dpi=130)
