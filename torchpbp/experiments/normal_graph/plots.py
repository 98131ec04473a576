"""Figures of the experiments with normal graphs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from torchpbp.experiments.running.results import write_figure

Floats = npt.NDArray[np.float64]
Courses = Mapping[str, Floats]
"""Label -> (repeats, steps) values."""


def write_courses(
    path: str | os.PathLike[str], cases: Mapping[str, Courses], across: str, up: str, first: int = 1
) -> None:
    """Draw how values change, one panel per case: the mean over repeats and a band of one standard error, as a PNG file.

    Args:
        path: where to write.
        cases: title of the panel -> its lines. A line with one step is drawn as a level.
        across: what the steps are.
        up: what the values are.
        first: number of the first step.
    """
    figure, panels = _grid(len(cases), 3.6, 2.9)
    for axes, (title, courses) in zip(panels, cases.items(), strict=False):
        longest = max(values.shape[1] for values in courses.values())
        for number, (label, values) in enumerate(courses.items()):
            steps = np.arange(first, first + longest)
            mean, error = values.mean(axis=0), _standard_error(values)
            level = values.shape[1] == 1
            mean, error = (np.broadcast_to(a, (longest,)) for a in (mean, error))
            color = f"C{number}" if label != "truth" else "black"
            axes.plot(steps, mean, label=label, color=color, linestyle="--" if level else "-")
            axes.fill_between(steps, mean - error, mean + error, color=color, alpha=0.2, linewidth=0)
        axes.set(title=title, xlabel=across, ylabel=up)
        axes.grid(alpha=0.3)
    lines, labels = panels[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=len(labels), fontsize="small")
    write_figure(path, figure)


def write_scatter(path: str | os.PathLike[str], values: Mapping[int, Sequence[float]], across: str, up: str) -> None:
    """Draw single values above each number, with a dash at their mean, as a PNG file."""
    figure = Figure(figsize=(4.2, 3.2), layout="constrained")
    axes = figure.subplots()
    for position, numbers in enumerate(values.values()):
        axes.plot([position] * len(numbers), list(numbers), "o", color="C0", alpha=0.5)
        axes.plot(position, float(np.mean(list(numbers))), "_", color="black", markersize=18)
    axes.set(xlabel=across, ylabel=up)
    axes.set_xticks(range(len(values)), [str(k) for k in values])
    axes.grid(alpha=0.3)
    write_figure(path, figure)


def write_coefficients(
    path: str | os.PathLike[str], courses: Mapping[str, Mapping[str, Floats]], truth: Mapping[str, Floats] | None = None
) -> None:
    """Draw the entries of each matrix over the epochs: a row of panels per matrix, a column per rule, as a PNG file.

    Args:
        path: where to write.
        courses: rule -> matrix -> (epochs, entries).
        truth: matrix -> (entries,) of the network that the rows come from, in a last column.
    """
    matrices = list(next(iter(courses.values())))
    columns = [*courses, *([] if truth is None else ["truth"])]
    width, height = 1.9 * len(columns) + 0.7, 1.5 * len(matrices) + 0.7
    figure = Figure(figsize=(width, height))  # a layout engine would take seconds for so many panels
    figure.subplots_adjust(0.6 / width, 0.3 / height, 1 - 0.1 / width, 1 - 0.3 / height, hspace=0.25, wspace=0.1)
    grid = figure.subplots(len(matrices), len(columns), sharey=True, squeeze=False)
    for row, matrix in enumerate(matrices):
        for column, rule in enumerate(columns):
            axes = grid[row][column]
            if rule in courses:
                axes.plot(courses[rule][matrix], linewidth=0.8)
            elif truth is not None:
                for value in truth[matrix]:
                    axes.axhline(value, color="black", linewidth=0.8)
                axes.set_xticks([])
            axes.set_ylim(-0.02, 1.02)
            axes.tick_params(labelsize=6)
            if row == 0:
                axes.set_title(rule, fontsize="small")
            if column == 0:
                axes.set_ylabel(matrix, fontsize="small")
    write_figure(path, figure)


def _grid(number: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    columns = 2 if number in (2, 4) else min(3, number)
    rows = -(-number // columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for unused in panels[number:]:
        unused.set_visible(False)
    return figure, list(panels)


def _standard_error(values: Floats) -> Floats:
    if len(values) < 2:
        return np.zeros(values.shape[1])
    return np.asarray(values.std(axis=0, ddof=1) / np.sqrt(len(values)))
