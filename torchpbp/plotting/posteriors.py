"""Posteriors of all variables given one row of evidence."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from torchpbp.contract.frames import state_labels
from torchpbp.errors import QueryError, QueryWarning, ShapeError
from torchpbp.inference.density import Density
from torchpbp.inputs.evidence import Evidence, EvidenceLike
from torchpbp.plotting.evidence import condition, one_row, written_values
from torchpbp.plotting.style import BLUE, GREY, as_array, drawing_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BARS, TRUTH = "#6f9fc8", "#222222"
CELL = 0.8  # share of a variable's width for its bars
MOST_NUMBERED = 120  # largest number of bars with labels
Floats = npt.NDArray[np.float64]


def plot_posteriors(
    model: Any,
    evidence: EvidenceLike = None,
    truth: Any = None,
    *,
    variables: Sequence[str] | None = None,
    row: int = 0,
    ax: Axes | None = None,
) -> Axes:
    """Draw the posterior of each unobserved variable: bars over its states, a curve for a continuous one.

    Curves are scaled to a height of 1, and a dotted line marks the mean. The legend explains the marks.

    Args:
        model: fitted PBP, or any other learner or exact network with ``posteriors``.
        evidence: as in :meth:`PBP.posterior`.
        truth: drawn as diamonds (a dashed curve or line for a continuous variable). Either a model or network, for the
            same query, or name -> (states,) probabilities, the true state or label, or the true value or
            :class:`~torchpbp.inference.density.Density` of a continuous variable, for some of the variables.
        variables: names in the order of the axis; by default all observables without evidence in the row.
        row: number of the row of evidence.
        ax: axes to draw on; new ones by default.

    Returns:
        The axes; its major ticks are the variables, its minor ticks their states.

    Raises:
        StructureError: not a model with ``posteriors``.
        NotFittedError: the model is not fitted.
        QueryError: unknown or observed variables, or a truth that is not a state.
        ShapeError: no such row, or a truth with the wrong number of states.
    """
    checked = one_row(model, evidence, row)
    answers = _answers(model, checked)
    values = written_values(model, checked)
    names = [v for v in model.graph.observed if v in answers] if variables is None else list(variables)
    for v in names:
        if v not in answers:
            reason = "it is observed" if v in values else f"the model can be asked for {', '.join(answers)}"
            raise QueryError(f"plot_posteriors: there is no posterior of '{v}': {reason}.")
    if not names:
        raise QueryError(
            "plot_posteriors: every variable is observed, nothing is left to draw. Omit some from the evidence."
        )
    true = _truths(model, truth, checked, names, answers)

    bars = sum(6 if isinstance(answers[v], Density) else len(answers[v]) for v in names)
    ax = drawing_axes(ax, min(24.0, max(5.0, 0.22 * bars + 0.35 * len(names) + 1.0)), 3.4)
    ticks: list[float] = []
    texts: list[str] = []
    upright = False
    for k, v in enumerate(names):
        answer = answers[v]
        if isinstance(answer, Density):
            places, labels = _draw_density(ax, k, answer, true.get(v))
        else:
            places, labels = _draw_bars(ax, k, answer, true.get(v)), [str(s) for s in state_labels(model, v)]
        ticks += places
        texts += labels
        # A curve has only two ticks, with room for longer texts.
        upright = upright or max(map(len, labels)) > (5 if isinstance(answer, Density) else 2)
    curves = [v for v in names if isinstance(answers[v], Density)]
    _label_axes(ax, names, ticks, texts if bars <= MOST_NUMBERED else [""] * len(texts), upright, len(curves))
    text = condition(values)
    ax.set_title(f"Posteriors given {text}" if text else "Marginals", fontsize=10)
    if true or curves:
        _draw_legend(ax, bool(curves), {v in curves for v in true})
    return ax


def _answers(model: Any, evidence: Evidence) -> dict[str, Any]:
    """name -> (states,) probabilities, or a density, for one row."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", QueryWarning)  # raised as an error instead
        posteriors = model.posteriors(evidence)
    return {v: x if isinstance(x, Density) else _floats(x[0]) for v, x in posteriors.items()}


def _truths(
    model: Any, truth: Any, evidence: Evidence, names: Sequence[str], answers: Mapping[str, Any]
) -> dict[str, Any]:
    """name -> (states,) probabilities, NaN for states without a mark; a density; or a value."""
    if truth is None:
        return {}
    if not isinstance(truth, Mapping):
        one_row(truth, evidence, 0)  # raises for objects without posteriors
        truth = _answers(truth, evidence)
    result: dict[str, Any] = {}
    for v in names:
        if v not in truth:
            continue
        value = truth[v]
        if isinstance(answers[v], Density):
            result[v] = value if isinstance(value, Density) else float(value)
            continue
        states = len(answers[v])
        if np.ndim(value) == 0:
            labels = [str(s) for s in state_labels(model, v)]
            text = str(value.item() if isinstance(value, Tensor | np.generic) else value)
            if text not in labels:
                raise QueryError(f"truth of '{v}': expected one of {', '.join(labels)}, got {text}.")
            result[v] = np.where(np.array(labels) == text, 1.0, np.nan)
        else:
            result[v] = _floats(value)
            if result[v].shape != (states,):
                raise ShapeError(f"truth of '{v}': expected {states} probabilities, got shape {result[v].shape}.")
    return result


def _draw_bars(ax: Axes, place: int, heights: Floats, truth: Floats | None) -> list[float]:
    """Bars of one variable and the positions of their ticks."""
    step = CELL / len(heights)
    centres = [place - CELL / 2 + step * (s + 0.5) for s in range(len(heights))]
    ax.bar(centres, heights, width=0.86 * step, color=BARS, zorder=2)
    if truth is not None:
        ax.plot(centres, truth, linestyle="", marker="D", markersize=4, color=TRUTH, zorder=3)
    return centres


def _draw_density(ax: Axes, place: int, density: Density, truth: Any) -> tuple[list[float], list[str]]:
    """Curve of a continuous variable, with ticks at both ends of its range."""
    points, values = _floats(density.points), _floats(density.values[0])
    low, high = float(points[0]), float(points[-1])

    def across(x: Any) -> Any:
        return place - CELL / 2 + CELL * (x - low) / (high - low)

    other = _floats(truth.values[0]) if isinstance(truth, Density) else np.zeros(1)
    top = max(float(values.max()), float(other.max()))
    ax.fill_between(across(points), values / top, color=BARS, alpha=0.45, linewidth=0, zorder=2)
    ax.plot(across(points), values / top, color=BLUE, linewidth=1.4, zorder=2)
    mean = float(density.mean[0])
    ax.plot([across(mean)] * 2, [0, float(np.interp(mean, points, values)) / top], color=BLUE, linestyle=":", zorder=2)
    if isinstance(truth, Density):
        ax.plot(across(_floats(truth.points)), other / top, color=TRUTH, linestyle="--", linewidth=1.2, zorder=3)
    elif truth is not None:
        ax.plot([across(truth)] * 2, [0, 1], color=TRUTH, linestyle="--", linewidth=1.2, zorder=3)
    return [across(low), across(high)], [f"{low:.3g}", f"{high:.3g}"]


def _label_axes(
    ax: Axes, names: Sequence[str], ticks: Sequence[float], texts: Sequence[str], upright: bool, curves: int
) -> None:
    from matplotlib.textpath import TextPath

    longest = max((TextPath((0, 0), text, size=7).get_extents().width for text in texts if text.strip()), default=0.0)
    upright = upright and longest > 0
    ax.xaxis.remove_overlapping_locs = False  # otherwise a variable's tick replaces that of its middle state
    ax.set_xticks(ticks, texts, minor=True, fontsize=7, rotation=90 if upright else 0, color=GREY)
    ax.set_xticks(range(len(names)), names, fontweight="bold", fontsize=9)
    ax.tick_params(axis="x", which="minor", length=2)
    ax.tick_params(axis="x", which="major", length=0, pad=(10 + longest) if upright else 16 if longest else 4)
    for border in range(1, len(names)):
        ax.axvline(border - 0.5, color="#dddddd", linewidth=0.8, zorder=1)
    label = "; ".join(["probability"] * (curves < len(names)) + ["density, scaled"] * (curves > 0))
    ax.set(xlim=(-0.55, len(names) - 0.45), ylim=(0, 1.25 if curves else 1.03), ylabel=label)  # curves all reach 1
    ax.set_yticks(np.linspace(0, 1, 6))
    ax.grid(axis="y", alpha=0.3)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _draw_legend(ax: Axes, curves: bool, truths: set[bool]) -> None:
    """Explain the marks.

    Args:
        ax: the axes.
        curves: whether curves are drawn.
        truths: for the variables with a truth, whether they are continuous; possibly both.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    entries: dict[str, Any] = {"model": Patch(color=BARS)}
    if curves:
        entries["mean"] = Line2D([], [], color=BLUE, linestyle=":")
    if truths:
        line, mark = "--" if True in truths else "", "D" if False in truths else ""
        entries["truth"] = Line2D([], [], color=TRUTH, linestyle=line, linewidth=1.2, marker=mark, markersize=4)
    columns = len(entries) if curves else 1  # one line above curves, or one column among bars
    ax.legend(list(entries.values()), list(entries), loc="upper right", fontsize=8, ncols=columns)


def _floats(values: Any) -> Floats:
    return as_array(values).astype(np.float64)
