"""The order of message passing: nodes of equal shape at equal depth are handled together."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from torchpbp.graph.junction_tree import JunctionTree


@dataclass(frozen=True)
class Step:
    """Nodes whose operators have the same shape and which may be computed at the same time.

    Args:
        nodes: the nodes, such that those whose messages are used together follow each other.
        children: ``children[k]`` holds the k-th child of each node; empty for leaves.
        sizes: how many nodes in a row are used together.
    """

    nodes: tuple[int, ...]
    children: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]


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
    # Of each node: the step of its parent, which child it is, and the parent's place there. Messages to the same step are then
    # neighbours, and need not be gathered.
    place: dict[int, tuple[int, int, int]] = {c: (-1, k, 0) for k, c in enumerate(tree.children[0])}

    def grouped(nodes: Sequence[int], by_depth: bool) -> list[Step]:
        groups: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        for n in nodes:
            groups.setdefault((tree.depth[n] if by_depth else 0, shapes[n]), []).append(n)
        steps = []
        for number, key in enumerate(sorted(groups, key=lambda k: k[0])):
            own = sorted(groups[key], key=place.__getitem__)
            children = tuple(zip(*(tree.children[n] for n in own), strict=True))
            for k, row in enumerate(children):
                place.update({c: (number, k, i) for i, c in enumerate(row)})
            sizes = tuple(len(list(run)) for _, run in itertools.groupby(own, key=lambda n: place[n][:2]))
            steps.append(Step(tuple(own), children, sizes))
        return steps

    inner = grouped(tree.inner, True)
    leaves = grouped(tree.leaves, False)
    return Schedule(tuple(leaves), tuple(reversed(inner)), tree.children[0], tree.leaf_observables)
