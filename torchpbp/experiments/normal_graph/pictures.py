"""Pictures of the experiments with normal graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from torchpbp.experiments.results import Picture

Floats = npt.NDArray[np.float64]
Courses = Mapping[str, Floats]
"""Label -> (repeats, steps) values."""


def courses_picture(cases: Mapping[str, Courses], across: str, up: str, first: int = 1) -> Picture:
    """Values by step, a panel per case: the mean over repeats and a band of one standard error.

    Args:
        cases: title of the panel -> its lines. A line with one step is drawn as a level.
        across: name of the steps.
        up: name of the values.
        first: number of the first step.
    """
    columns = 2 if len(cases) in (2, 4) else min(3, len(cases))
    height = -(-len(cases) // columns)
    figure = Figure(figsize=(3.6 * columns, 2.9 * height), layout="constrained")
    panels = figure.subplots(height, columns, squeeze=False).ravel()
    for axes, (title, courses) in zip(panels, cases.items(), strict=False):
        longest = max(values.shape[1] for values in courses.values())
        steps = np.arange(first, first + longest)
        for number, (label, values) in enumerate(courses.items()):
            error = values.std(axis=0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.zeros(values.shape[1])
            mean, error = (np.broadcast_to(a, (longest,)) for a in (values.mean(axis=0), error))
            color = f"C{number}" if label != "truth" else "black"
            axes.plot(steps, mean, label=label, color=color, linestyle="--" if values.shape[1] == 1 else "-")
            axes.fill_between(steps, mean - error, mean + error, color=color, alpha=0.2, linewidth=0)
        axes.set(title=title, xlabel=across, ylabel=up)
        axes.grid(alpha=0.3)
    for unused in panels[len(cases) :]:
        unused.set_visible(False)
    lines, labels = panels[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=len(labels), fontsize="small")
    return Picture(figure, f"Mean {up} over {across}, with a band of one standard error over repeats.")


def scatter_picture(values: Mapping[int, Sequence[float]], across: str, up: str) -> Picture:
    """Single values above each number, with a dash at their mean."""
    figure = Figure(figsize=(4.2, 3.2), layout="constrained")
    axes = figure.subplots()
    for position, numbers in enumerate(values.values()):
        axes.plot([position] * len(numbers), list(numbers), "o", color="C0", alpha=0.5)
        axes.plot(position, float(np.mean(list(numbers))), "_", color="black", markersize=18)
    axes.set(xlabel=across, ylabel=up)
    axes.set_xticks(range(len(values)), [str(k) for k in values])
    axes.grid(alpha=0.3)
    return Picture(figure, f"The {up} reached from several random starts, by the number of {across}; dashes are means.")


def coefficients_picture(
    courses: Mapping[str, Mapping[str, Floats]], truth: Mapping[str, Floats] | None = None
) -> Picture:
    """Entries of each matrix by step: a row of panels per matrix, a column per rule.

    Args:
        courses: rule -> matrix -> (steps, entries).
        truth: matrix -> (entries,) of the network that rows were drawn from, in a last column.
    """
    matrices = list(next(iter(courses.values())))
    columns = [*courses, *([] if truth is None else ["truth"])]
    width, height = 1.9 * len(columns) + 0.7, 1.5 * len(matrices) + 0.7
    figure = Figure(figsize=(width, height))  # a layout engine would take seconds for so many panels
    figure.subplots_adjust(0.6 / width, 0.3 / height, 1 - 0.1 / width, 1 - 0.3 / height, hspace=0.25, wspace=0.1)
    grid = figure.subplots(len(matrices), len(columns), sharey=True, squeeze=False)
    for row, matrix in enumerate(matrices):
        grid[row][0].set_ylabel(matrix, fontsize="small")
        for axes, rule in zip(grid[row], columns, strict=True):
            if rule in courses:
                axes.plot(courses[rule][matrix], linewidth=0.8)
            elif truth is not None:
                for value in truth[matrix]:
                    axes.axhline(value, color="black", linewidth=0.8)
                axes.set_xticks([])
            axes.set_ylim(-0.02, 1.02)
            axes.tick_params(labelsize=6)
    for axes, rule in zip(grid[0], columns, strict=True):
        axes.set_title(rule, fontsize="small")
    return Picture(
        figure, "Entries of the matrices while they are learned: a row per matrix, a column per rule; first repeat."
    )
