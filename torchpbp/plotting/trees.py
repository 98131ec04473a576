"""Junction trees, with or without the upward messages of one row of evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchpbp.errors import QueryError, StructureError
from torchpbp.graph.junction_tree import JunctionTree, build_junction_tree
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.inference.operator_tree import OperatorTree
from torchpbp.inputs.evidence import Evidence, EvidenceLike
from torchpbp.models.pbp import PBP
from torchpbp.plotting.evidence import condition, one_row, written_values
from torchpbp.plotting.style import BLUE, GREY, drawing_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROOT, INNER, LEAF, SEPARATOR = "#f4b6c2", "#fbe3e8", "#cfe2f3", "#fff2cc"
EDGE, SEPARATOR_EDGE = "#888888", "#bfa24a"
CONSTANT, NEGATIVE, UNINFORMED = "#9a9a9a", "#d9731a", "#cccccc"
LARGEST = 400  # cliques
COLUMN, LEVEL, CHART_LEVEL = 1.25, 1.35, 1.75  # inches per leaf, and per level without and with charts between cliques
CHART_WIDTH, CHART_HEIGHT = 0.66, 0.4  # in columns and levels


def plot_junction_tree(
    model: PBP | JunctionTree | LatentGraph,
    *,
    core_groups: Mapping[int, Sequence[str]] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw a junction tree: cliques as boxes, separators on the edges, core groups in blue.

    Args:
        model: a model, fitted or not, which is drawn with its core groups; a junction tree; or a graph.
        core_groups: node -> core group of the separator above it; by default those of the model.
        ax: axes to draw on; new ones by default.

    Returns:
        The axes.

    Raises:
        StructureError: not a model, tree or graph; an unknown node; or a tree too large to draw.
    """
    if isinstance(model, PBP):
        tree = model.tree
        core_groups = model.plan.core_groups if core_groups is None else core_groups
    elif isinstance(model, LatentGraph):
        tree = build_junction_tree(model)
    elif isinstance(model, JunctionTree):
        tree = model
    else:
        raise StructureError(f"Expected a PBP, a JunctionTree or a LatentGraph to draw, got {type(model).__name__}.")
    unknown = [n for n in core_groups or {} if not 0 < n < len(tree)]
    if unknown:
        raise StructureError(f"core_groups: the tree has separators above nodes 1 to {len(tree) - 1}, got {unknown}.")
    drawing = _TreeDrawing(tree, ax, LEVEL)
    for node in range(1, len(tree)):
        drawing.separator(node, (core_groups or {}).get(node))
    drawing.cliques({})
    drawing.ax.set_title(
        "Junction tree: root pink, leaves blue with their observables in brackets, separators yellow", fontsize=9
    )
    return drawing.ax


def plot_messages(model: PBP, evidence: EvidenceLike = None, *, row: int = 0, ax: Axes | None = None) -> Axes:
    """Draw the upward messages of one row of evidence: a small bar chart at each separator of the tree.

    A bar is an entry of the message, scaled, as in inference, to a largest absolute value of 1. The first entry, in grey, is
    that of the constant, the only non-zero entry of a message without evidence. The others represent the dependence of the
    evidence below on the separator. Edges above evidence are blue.

    Args:
        model: fitted.
        evidence: as in :meth:`PBP.posterior`.
        row: number of the row of evidence.
        ax: axes to draw on; new ones by default. The charts are its ``child_axes``, labelled "separator 1", … by node.

    Returns:
        The axes.

    Raises:
        StructureError: not a PBP, or a tree too large to draw.
        QueryError: a model with an operator tree per class, and evidence without the class.
        NotFittedError: the model is not fitted.
    """
    if not isinstance(model, PBP):
        raise StructureError(f"Messages of a junction tree: expected a PBP model, got {type(model).__name__}.")
    model.require_fitted()
    tree = model.tree
    checked = one_row(model, evidence, row)
    values = written_values(model, checked)
    with torch.no_grad():
        messages = _tree_of_row(model, checked).upward(model.operators.prepare(checked)).messages
    drawing = _TreeDrawing(tree, ax, CHART_LEVEL)
    for node in range(1, len(tree)):
        informed = any(v in values for v in tree.inside[node])
        drawing.edge(node, informed)
        message = messages[node]
        if message is not None:
            drawing.chart(node, message[0], informed)
    drawing.cliques(values)
    text = condition(values)
    drawing.ax.set_title(f"Upward messages given {text}" if text else "Upward messages without evidence", fontsize=10)

    from matplotlib.patches import Patch

    kinds = {"constant": CONSTANT, "positive entry": BLUE, "negative entry": NEGATIVE}
    place: Any = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.03), "ncols": 3}
    drawing.ax.legend(handles=[Patch(color=c, label=k) for k, c in kinds.items()], frameon=False, fontsize=8, **place)
    return drawing.ax


def _tree_of_row(model: PBP, row: Evidence) -> OperatorTree:
    """The operators of a row's messages: those of its class in a model with a tree per class."""
    tree, name = model.operators.tree, model.condition
    if name is None:
        return tree
    states = row.hard.get(name)
    if states is None or int(states[0]) < 0:
        raise QueryError(
            f"Messages of a model with condition={name!r} are different for each class: expected the state of '{name}' in the "
            "evidence, got none."
        )
    return tree.of_class(int(states[0]))


class _TreeDrawing:
    """Axes with a junction tree: leaves side by side in depth-first order, each parent above the middle of its children.

    Args:
        tree: the junction tree.
        ax: axes to draw on; None: new ones of a fitting size.
        level: inches per level on new axes.

    Attributes:
        ax: the axes, with limits set for the tree.
        x, y: position of each node in data coordinates; leaves are 1 apart, as are levels.
        font: size of texts that fit the columns.
    """

    def __init__(self, tree: JunctionTree, ax: Axes | None, level: float) -> None:
        if len(tree) > LARGEST:
            raise StructureError(
                f"A tree of {len(tree)} cliques is too large to draw (at most {LARGEST}). Print it instead."
            )
        self.tree, self.x, self.y = tree, [0.0] * len(tree), [-d for d in tree.depth]
        stack, column = [0], 0
        while stack:
            node = stack.pop()
            stack.extend(reversed(tree.children[node]))
            if not tree.children[node]:
                self.x[node] = float(column)
                column += 1
        for node in reversed(range(len(tree))):
            if below := tree.children[node]:
                self.x[node] = sum(self.x[c] for c in below) / len(below)
        width, height = max(self.x) + 1, 1 - min(self.y)
        self.ax = drawing_axes(ax, max(5.0, COLUMN * width), max(3.0, level * height))
        if ax is None:
            self.font = max(5.5, min(9.0, 140.0 / width))
        else:
            inches = ax.get_window_extent().width / ax.figure.dpi
            self.font = max(4.5, min(9.0, 9.0 * inches / (width * 0.8)))
        self.ax.set_xlim(-0.7, width - 0.3)
        self.ax.set_ylim(0.5 - height, 0.5)
        self.ax.set_axis_off()

    def _write(self, x: float, y: float, text: str, box: Mapping[str, Any], **style: Any) -> None:
        self.ax.text(x, y, text, ha="center", va="center", bbox=dict(box), **style)

    def cliques(self, values: Mapping[str, str]) -> None:
        """Cliques as boxes: the root in a stronger colour, leaves blue with their observables in brackets.

        Args:
            values: observable -> its observed value, written after its name; the leaf's frame is bold.
        """
        for node, clique in enumerate(self.tree.cliques):
            observables = self.tree.leaf_observables[node]
            text = ", ".join(sorted(clique - set(observables))) or ("∅" if not observables else "")
            if observables:
                named = [f"{v} = {values[v]}" if v in values else v for v in observables]
                text = (text + "\n" if text else "") + "[" + ", ".join(named) + "]"
            strong = node == 0 or any(v in values for v in observables)
            colour = ROOT if node == 0 else LEAF if observables else INNER
            box = {"boxstyle": "round,pad=0.35", "facecolor": colour, "edgecolor": "#444444"}
            self._write(
                self.x[node],
                self.y[node],
                text + ("\nroot" if node == 0 else ""),
                {**box, "linewidth": 1.6 if strong else 0.8},
                fontsize=self.font,
                fontweight="bold" if strong else "normal",
                zorder=3,
            )

    def separator(self, node: int, core_group: Sequence[str] | None) -> None:
        """A straight edge from a node to its parent, with the separator and its core group in a box."""
        parent = self.tree.parent[node]
        x, y = (self.x[node], self.x[parent]), (self.y[node], self.y[parent])
        self.ax.plot(x, y, color=EDGE, linewidth=1, zorder=1)
        text = self._name(node) + ("" if core_group is None else "\nα: " + ", ".join(core_group))
        box = {"boxstyle": "square,pad=0.2", "facecolor": SEPARATOR, "edgecolor": SEPARATOR_EDGE, "linewidth": 0.6}
        colour = "black" if core_group is None else "#1f4e79"
        self._write(0.5 * sum(x), 0.5 * sum(y), text, box, fontsize=0.85 * self.font, color=colour, zorder=2)

    def _name(self, node: int) -> str:
        return ", ".join(sorted(self.tree.separators[node])) or "∅"

    def edge(self, node: int, informed: bool) -> None:
        """A vertical line from a node, the place of its chart, and a horizontal line to its parent."""
        x, y, above = self.x[node], self.y[node], self.x[self.tree.parent[node]]
        corner = y + 0.78
        style: Any = (
            {"color": BLUE, "linewidth": 2.0, "zorder": 1.5} if informed else {"color": UNINFORMED, "zorder": 1}
        )
        self.ax.plot(
            [x, x, above, above], [y, corner, corner, y + 1], **{"linewidth": 1.0, **style}, solid_joinstyle="round"
        )

    def chart(self, node: int, message: Tensor, informed: bool) -> None:
        """The bars of one message, on inset axes."""
        corner = self.x[node] - CHART_WIDTH / 2, self.y[node] + 0.45 - CHART_HEIGHT / 2
        chart: Any = self.ax.inset_axes(
            (*corner, CHART_WIDTH, CHART_HEIGHT), transform=self.ax.transData, zorder=4, label=f"separator {node}"
        )
        heights = message.double().tolist()
        colours = [CONSTANT, *(BLUE if h >= 0 else NEGATIVE for h in heights[1:])]
        chart.bar(range(len(heights)), heights, color=colours, width=0.75, alpha=1.0 if informed else 0.45)
        chart.axhline(0.0, color=GREY, linewidth=0.6)
        chart.set(xlim=(-0.7, len(heights) - 0.3), ylim=(-1.12, 1.12), xticks=[], yticks=[], facecolor=SEPARATOR)
        for spine in chart.spines.values():
            spine.set(color=SEPARATOR_EDGE, linewidth=0.8)
        background = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
        chart.set_title(self._name(node), fontsize=0.85 * self.font, pad=2.5, bbox=background)
