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
from torchpbp.plotting.tree_layout import EDGE, SEPARATOR, SEPARATOR_EDGE, Layout, draw_cliques, lay_out, tree_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CONSTANT, POSITIVE, NEGATIVE = "#9a9a9a", "#2b6ca3", "#d9731a"
INFORMED, UNINFORMED = "#2b6ca3", "#cccccc"
LEVEL = 1.75  # inches per level, for a chart between two cliques
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
    groups = core_groups or {}
    layout = lay_out(tree)
    ax, font = tree_axes(layout, ax)
    for node in range(1, len(tree)):
        parent = tree.parent[node]
        x, y = (layout.across[node], layout.across[parent]), (layout.down[node], layout.down[parent])
        ax.plot(x, y, color=EDGE, linewidth=1, zorder=1)
        label = ", ".join(sorted(tree.separators[node])) or "∅"
        if node in groups:
            label += "\nα: " + ", ".join(groups[node])
        ax.text(
            0.5 * (x[0] + x[1]),
            0.5 * (y[0] + y[1]),
            label,
            ha="center",
            va="center",
            fontsize=0.85 * font,
            color="#1f4e79" if node in groups else "black",
            bbox={"boxstyle": "square,pad=0.2", "facecolor": SEPARATOR, "edgecolor": SEPARATOR_EDGE, "linewidth": 0.6},
            zorder=2,
        )
    draw_cliques(tree, layout, ax, font)
    ax.set_title(
        "Junction tree: root pink, leaves blue with their observables in brackets, separators yellow", fontsize=9
    )
    return ax


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
    layout = lay_out(tree)
    checked = one_row(model, evidence, row)
    values = written_values(model, checked)
    with torch.no_grad():
        messages = _tree_of_row(model, checked).upward(model.operators.prepare(checked)).messages
    ax, font = tree_axes(layout, ax, LEVEL)
    for node in range(1, len(tree)):
        informed = any(v in values for v in tree.inside[node])
        _draw_edge(tree, layout, node, ax, informed)
        message = messages[node]
        if message is not None:
            _draw_chart(tree, layout, node, message[0], ax, font, informed)
    draw_cliques(tree, layout, ax, font, values)
    text = condition(values)
    ax.set_title(f"Upward messages given {text}" if text else "Upward messages without evidence", fontsize=10)
    _draw_legend(ax)
    return ax


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


def _draw_edge(tree: JunctionTree, layout: Layout, node: int, ax: Axes, informed: bool) -> None:
    """A vertical line from the node, the place of its chart, and a horizontal line to its parent."""
    x, y = layout.across[node], layout.down[node]
    above = layout.across[tree.parent[node]]
    corner = y + 0.78
    ax.plot(
        [x, x, above, above],
        [y, corner, corner, y + 1],
        color=INFORMED if informed else UNINFORMED,
        linewidth=2.0 if informed else 1.0,
        solid_joinstyle="round",
        zorder=1.5 if informed else 1,
    )


def _draw_chart(
    tree: JunctionTree,
    layout: Layout,
    node: int,
    message: Tensor,
    ax: Axes,
    font: float,
    informed: bool,
) -> None:
    """The bars of one message, on inset axes."""
    x, y = layout.across[node], layout.down[node] + 0.45
    chart: Any = ax.inset_axes(
        (x - CHART_WIDTH / 2, y - CHART_HEIGHT / 2, CHART_WIDTH, CHART_HEIGHT),
        transform=ax.transData,
        zorder=4,
        label=f"separator {node}",
    )
    heights = message.double().tolist()
    colours = [POSITIVE if h >= 0 else NEGATIVE for h in heights]
    colours[0] = CONSTANT
    chart.bar(range(len(heights)), heights, color=colours, width=0.75, alpha=1.0 if informed else 0.45)
    chart.axhline(0.0, color="#555555", linewidth=0.6)
    chart.set(xlim=(-0.7, len(heights) - 0.3), ylim=(-1.12, 1.12), xticks=[], yticks=[], facecolor=SEPARATOR)
    for spine in chart.spines.values():
        spine.set(color=SEPARATOR_EDGE, linewidth=0.8)
    name = ", ".join(sorted(tree.separators[node])) or "∅"
    background = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    chart.set_title(name, fontsize=0.85 * font, pad=2.5, bbox=background)


def _draw_legend(ax: Axes) -> None:
    from matplotlib.patches import Patch

    kinds = {"constant": CONSTANT, "positive entry": POSITIVE, "negative entry": NEGATIVE}
    handles = [Patch(color=colour, label=name) for name, colour in kinds.items()]
    ax.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.03), ncols=3, frameon=False, fontsize=8)
