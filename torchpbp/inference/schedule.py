"""The order of message passing: nodes of equal shape at equal depth are handled together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchpbp.graph.junction_tree import JunctionTree


@dataclass(frozen=True)
class Step:
    """Nodes whose operators have the same shape and which may be computed at the same time.

    Args:
        nodes: the nodes.
        children: ``children[k]`` holds the k-th child of each node; empty for leaves.
    """

    nodes: tuple[int, ...]
    children: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Schedule:
    """All steps of a pass.

    Args:
        leaves: leaves, grouped by the shape of their operators.
        inner: inner nodes, deepest first.
        root_children: children of the root.
        observables: for each node the observables of the leaf.
    """

    leaves: tuple[Step, ...]
    inner: tuple[Step, ...]
    root_children: tuple[int, ...]
    observables: tuple[tuple[str, ...], ...]


def build_schedule(tree: JunctionTree, shapes: Sequence[tuple[int, ...]]) -> Schedule:
    """Group nodes by depth and operator shape.

    Args:
        tree: junction tree.
        shapes: shape of each node's operator (entry 0 unused).
    """

    def grouped(nodes: Sequence[int], by_depth: bool) -> tuple[Step, ...]:
        groups: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        for n in nodes:
            groups.setdefault((tree.depth[n] if by_depth else 0, shapes[n]), []).append(n)
        order = sorted(groups, key=lambda k: -k[0])
        return tuple(
            Step(tuple(groups[k]), tuple(zip(*(tree.children[n] for n in groups[k]), strict=True))) for k in order
        )

    return Schedule(grouped(tree.leaves, False), grouped(tree.inner, True), tree.children[0], tree.leaf_observables)
