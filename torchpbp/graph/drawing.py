"""Pictures of junction trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torchpbp.errors import StructureError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from torchpbp.graph.junction_tree import JunctionTree

ROOT, INNER, LEAF, SEPARATOR = "#f4b6c2", "#fbe3e8", "#cfe2f3", "#fff2cc"
LARGEST = 400


def draw_tree(tree: JunctionTree, core_groups: Mapping[int, Sequence[str]], ax: Axes | None = None) -> Axes:
    """Draw cliques as boxes, separators on the edges, the root in a stronger colour, and core groups in blue.

    Args:
        tree: the junction tree.
        core_groups: node -> core group of the separator above it; may be empty.
        ax: axes to draw on; new ones by default.
    """
    import matplotlib.pyplot as plt

    if len(tree) > LARGEST:
        raise StructureError(
            f"A tree of {len(tree)} cliques is too large to draw (at most {LARGEST}). Print it instead."
        )
    across = _positions(tree)
    deepest = max(tree.depth)
    width = max(across) + 1
    if ax is None:
        _, ax = plt.subplots(figsize=(max(5.0, 1.25 * width), max(3.0, 1.35 * (deepest + 1))), layout="constrained")
    size = max(5.5, min(9.0, 140.0 / width))
    for node in range(1, len(tree)):
        parent = tree.parent[node]
        x, y = (across[node], across[parent]), (-tree.depth[node], -tree.depth[parent])
        ax.plot(x, y, color="#888888", linewidth=1, zorder=1)
        label = ", ".join(sorted(tree.separators[node])) or "∅"
        if node in core_groups:
            label += "\nα: " + ", ".join(core_groups[node])
        ax.text(
            0.5 * (x[0] + x[1]),
            0.5 * (y[0] + y[1]),
            label,
            ha="center",
            va="center",
            fontsize=0.85 * size,
            color="#1f4e79" if node in core_groups else "black",
            bbox={"boxstyle": "square,pad=0.2", "facecolor": SEPARATOR, "edgecolor": "#bfa24a", "linewidth": 0.6},
            zorder=2,
        )
    for node, clique in enumerate(tree.cliques):
        held = tree.leaf_observables[node]
        text = ", ".join(sorted(clique - set(held))) or ("∅" if not held else "")
        if held:
            text = (text + "\n" if text else "") + "[" + ", ".join(held) + "]"
        ax.text(
            across[node],
            -tree.depth[node],
            text + ("\nroot" if node == 0 else ""),
            ha="center",
            va="center",
            fontsize=size,
            fontweight="bold" if node == 0 else "normal",
            bbox={
                "boxstyle": "round,pad=0.35",
                "facecolor": ROOT if node == 0 else LEAF if held else INNER,
                "edgecolor": "#444444",
                "linewidth": 1.6 if node == 0 else 0.8,
            },
            zorder=3,
        )
    ax.set_xlim(-0.7, width - 0.3)
    ax.set_ylim(-deepest - 0.5, 0.5)
    ax.set_axis_off()
    ax.set_title(
        "Junction tree: root pink, leaves blue with their observables in brackets, separators yellow", fontsize=9
    )
    return ax


def _positions(tree: JunctionTree) -> list[float]:
    """Leaves side by side in walking order, each parent above the middle of its children."""
    across = [0.0] * len(tree)
    stack, column = [0], 0
    while stack:
        node = stack.pop()
        if tree.children[node]:
            stack.extend(reversed(tree.children[node]))
        else:
            across[node] = float(column)
            column += 1
    for node in range(len(tree) - 1, -1, -1):
        below = tree.children[node]
        if below:
            across[node] = sum(across[c] for c in below) / len(below)
    return across
