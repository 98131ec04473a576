"""Layout of junction trees, and the boxes of their cliques."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchpbp.errors import StructureError
from torchpbp.graph.junction_tree import JunctionTree

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROOT, INNER, LEAF, SEPARATOR = "#f4b6c2", "#fbe3e8", "#cfe2f3", "#fff2cc"
EDGE, SEPARATOR_EDGE = "#888888", "#bfa24a"
LARGEST = 400
COLUMN = 1.25  # inches per leaf on new axes


@dataclass(frozen=True)
class Layout:
    """Positions of the nodes of a tree, in data coordinates.

    Args:
        across: horizontal position of each node; leaves are 1 apart.
        down: negative depth of each node.
    """

    across: tuple[float, ...]
    down: tuple[int, ...]

    @property
    def width(self) -> float:
        return max(self.across) + 1

    @property
    def height(self) -> int:
        """Number of levels."""
        return 1 - min(self.down)


def lay_out(tree: JunctionTree) -> Layout:
    """Leaves side by side in depth-first order, each parent above the middle of its children."""
    if len(tree) > LARGEST:
        raise StructureError(
            f"A tree of {len(tree)} cliques is too large to draw (at most {LARGEST}). Print it instead."
        )
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
    return Layout(tuple(across), tuple(-d for d in tree.depth))


def tree_size(layout: Layout, level: float = 1.35) -> tuple[float, float]:
    """Width and height of a tree in inches.

    Args:
        layout: of the tree.
        level: inches per level.
    """
    return max(5.0, COLUMN * layout.width), max(3.0, level * layout.height)


def tree_axes(layout: Layout, ax: Axes | None, level: float = 1.35) -> tuple[Axes, float]:
    """The axes to draw on, with limits set for the tree, and a font size that fits its columns.

    Args:
        layout: of the tree.
        ax: the caller's; None: new ones of a fitting size.
        level: inches per level on new axes.
    """
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots(figsize=tree_size(layout, level), layout="constrained")
        font = max(5.5, min(9.0, 140.0 / layout.width))
    else:
        inches = ax.get_window_extent().width / ax.figure.dpi
        font = max(4.5, min(9.0, 9.0 * inches / (layout.width * 0.8)))
    ax.set_xlim(-0.7, layout.width - 0.3)
    ax.set_ylim(0.5 - layout.height, 0.5)
    ax.set_axis_off()
    return ax, font


def draw_cliques(
    tree: JunctionTree, layout: Layout, ax: Axes, font: float, values: Mapping[str, str] | None = None
) -> None:
    """Cliques as boxes: the root in a stronger colour, leaves blue with their observables in brackets.

    Args:
        tree: the junction tree.
        layout: its layout.
        ax: axes to draw on.
        font: size of the text.
        values: observable -> its observed value, written after its name; the leaf's frame is bold.
    """
    texts = values or {}
    for node, clique in enumerate(tree.cliques):
        observables = tree.leaf_observables[node]
        text = ", ".join(sorted(clique - set(observables))) or ("∅" if not observables else "")
        if observables:
            named = [f"{v} = {texts[v]}" if v in texts else v for v in observables]
            text = (text + "\n" if text else "") + "[" + ", ".join(named) + "]"
        strong = node == 0 or any(v in texts for v in observables)
        ax.text(
            layout.across[node],
            layout.down[node],
            text + ("\nroot" if node == 0 else ""),
            ha="center",
            va="center",
            fontsize=font,
            fontweight="bold" if strong else "normal",
            bbox={
                "boxstyle": "round,pad=0.35",
                "facecolor": ROOT if node == 0 else LEAF if observables else INNER,
                "edgecolor": "#444444",
                "linewidth": 1.6 if strong else 0.8,
            },
            zorder=3,
        )
