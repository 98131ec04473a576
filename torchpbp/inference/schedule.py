"""The order of message passing: nodes of equal shape at equal depth are handled together.

The locations of all messages depend on the tree alone and are computed once for all batches: a pass up or down iterates over lists of
indices and only contracts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import torch

from torchpbp.graph.junction_tree import JunctionTree
from torchpbp.grouping import grouped

MOST_ROUTES = 256
"""Routes cached by a schedule: one for each set of queried leaves."""


class Run(NamedTuple):
    """Consecutive messages in one part: a tensor (nodes, …, rank, batch) of messages that are used together.

    Args:
        part: number of the part.
        first: place of the first message in it.
        length: number of messages; None for all of the part.
    """

    part: int
    first: int
    length: int | None


Runs = tuple[Run, ...]
Place = tuple[int, int]
"""Number of a part, and index in it."""


@dataclass(frozen=True)
class Step:
    """Nodes whose operators have the same shape and whose messages may be computed at the same time.

    Args:
        nodes: the nodes, ordered such that nodes whose messages are used together are adjacent.
        children: ``children[k]`` holds the k-th child of each node; empty for leaves.
        sizes: sizes of the parts into which the step's messages are split; messages of a part are used together.
        groups: per node the observables of the leaf; empty for inner nodes.
        inputs: ``inputs[k]`` locates the messages of the k-th children in the parts of earlier steps.
    """

    nodes: tuple[int, ...]
    children: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    groups: tuple[tuple[str, ...], ...]
    inputs: tuple[Runs, ...]


class Descent(NamedTuple):
    """Downward messages of one step on a route.

    Args:
        step: number of the step, leaves first.
        nodes: nodes of the step that lie on the route.
        chosen: indices of these nodes in the step; None for all.
        above: location of their messages in the parts of the downward pass.
        inputs: ``inputs[k]`` locates the upward messages of their k-th children; empty if the downward message does not use them.
        targets: indices of the children that receive a message; each index yields one part of the downward pass.
    """

    step: int
    nodes: tuple[int, ...]
    chosen: slice | list[int] | None
    above: Runs
    inputs: tuple[Runs, ...]
    targets: tuple[int, ...]


class Arrival(NamedTuple):
    """Leaves of one step at the end of a route.

    Args:
        step: number of the step.
        nodes: the leaves.
        chosen: indices of these leaves in the step; None for all.
        above: location of their messages in the parts of the downward pass.
    """

    step: int
    nodes: tuple[int, ...]
    chosen: slice | list[int] | None
    above: Runs


@dataclass(frozen=True)
class Route:
    """Path of a downward pass from the root to some leaves.

    Args:
        start: indices of the root's children that receive a message; each message is one part.
        descents: steps below the root, in the order of the pass.
        arrivals: leaves reached.
        places: node -> place of its downward message.
        unused: steps whose upward messages the downward pass does not use.
    """

    start: tuple[int, ...]
    descents: tuple[Descent, ...]
    arrivals: tuple[Arrival, ...]
    places: dict[int, Place]
    unused: frozenset[int]


@dataclass(frozen=True, eq=False)
class Schedule:
    """All steps of message passing on a tree.

    Args:
        tree: junction tree.
        leaves: leaves, grouped by the shape of their operators.
        inner: inner nodes, deepest first.
        places: node -> place of its upward message.
        everywhere: the route to all leaves.

    Attributes:
        steps: all steps, leaves first; operators and scales of an upward pass have this order.
        root_children: nodes below the root.
    """

    tree: JunctionTree
    leaves: tuple[Step, ...]
    inner: tuple[Step, ...]
    places: dict[int, Place]
    everywhere: Route
    steps: tuple[Step, ...] = field(init=False, repr=False)
    root_children: tuple[int, ...] = field(init=False, repr=False)
    _routes: dict[tuple[int, ...], Route] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", self.leaves + self.inner)
        object.__setattr__(self, "root_children", self.tree.children[0])

    def route(self, leaves: Sequence[int] | None = None) -> Route:
        """The route from the root to some leaves, all by default."""
        if leaves is None:
            return self.everywhere
        if torch.compiler.is_compiling():  # a growing dict would invalidate the compiled program
            return _route(self.tree, self.leaves, self.inner, self.places, leaves)
        key = tuple(leaves)
        route = self._routes.get(key)
        if route is None:
            if len(self._routes) >= MOST_ROUTES:
                self._routes.clear()
            route = self._routes[key] = _route(self.tree, self.leaves, self.inner, self.places, leaves)
        return route


def build_schedule(tree: JunctionTree, shapes: Sequence[tuple[int, ...]]) -> Schedule:
    """Group nodes by depth and operator shape. Schedules are cached: equal arguments return the same object.

    Args:
        tree: junction tree.
        shapes: shape of each node's operator (entry 0 unused).
    """
    return _schedule(tree, tuple(shapes))


@lru_cache(maxsize=16)  # the places of a chain of 2,000 sites take some megabytes
def _schedule(tree: JunctionTree, shapes: tuple[tuple[int, ...], ...]) -> Schedule:
    # node -> (step of its parent, its index among the children, index of the parent in that step). Sorted by it, messages to the
    # same step are contiguous and need not be gathered.
    order: dict[int, tuple[int, int, int]] = {c: (-1, k, 0) for k, c in enumerate(tree.children[0])}

    def ordered(nodes: Sequence[int], by_depth: bool) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Nodes of each step and the sizes of its parts."""
        groups = grouped(nodes, lambda n: (tree.depth[n] if by_depth else 0, shapes[n]))
        steps = []
        for number, key in enumerate(sorted(groups, key=lambda k: k[0])):
            members = sorted(groups[key], key=order.__getitem__)
            for k, row in enumerate(_children(tree, members)):
                order.update({c: (number, k, i) for i, c in enumerate(row)})
            sizes = tuple(len(list(run)) for _, run in itertools.groupby(members, key=lambda n: order[n][:2]))
            steps.append((tuple(members), sizes))
        return steps

    inner = ordered(tree.inner, True)
    leaves = ordered(tree.leaves, False)
    places: dict[int, Place] = {}
    parts: list[int] = []  # sizes
    steps: list[Step] = []
    for nodes, sizes in (*leaves, *reversed(inner)):
        children = _children(tree, nodes)
        groups = tuple(tree.leaf_observables[n] for n in nodes if tree.leaf_observables[n])
        inputs = tuple(_runs(places, parts, row) for row in children)
        steps.append(Step(nodes, children, sizes, groups, inputs))
        rest = iter(nodes)
        for size in sizes:
            places.update({n: (len(parts), i) for i, n in enumerate(itertools.islice(rest, size))})
            parts.append(size)
    up, down = tuple(steps[: len(leaves)]), tuple(steps[len(leaves) :])
    return Schedule(tree, up, down, places, _route(tree, up, down, places, None))


def _children(tree: JunctionTree, nodes: Iterable[int]) -> tuple[tuple[int, ...], ...]:
    """The first child of each node, the second child of each, …"""
    return tuple(zip(*(tree.children[n] for n in nodes), strict=True))


def _runs(places: dict[int, Place], sizes: Sequence[int], nodes: Iterable[int]) -> Runs:
    """Locations of the messages of some nodes.

    Args:
        places: places of all messages.
        sizes: number of messages in each part.
        nodes: nodes of the messages, in this order.
    """
    runs: list[tuple[int, int, int]] = []  # part, first, stop
    for n in nodes:
        part, i = places[n]
        if runs and runs[-1][0] == part and runs[-1][2] == i:
            runs[-1] = part, runs[-1][1], i + 1
        else:
            runs.append((part, i, i + 1))
    return tuple(Run(p, i, None if stop - i == sizes[p] else stop - i) for p, i, stop in runs)


def _chosen(indices: Sequence[int], size: int) -> slice | list[int] | None:
    """Indices into ``size`` nodes: None for all of them, a slice if they are consecutive."""
    if len(indices) == size:
        return None
    if indices[-1] - indices[0] == len(indices) - 1:
        return slice(indices[0], indices[-1] + 1)
    return list(indices)


def _route(
    tree: JunctionTree,
    leaves: tuple[Step, ...],
    inner: tuple[Step, ...],
    upward: dict[int, Place],
    ends: Sequence[int] | None,
) -> Route:
    """The route to some leaves, or to all.

    Args:
        tree, leaves, inner, upward: see :class:`Schedule`.
        ends: leaves at the end of the route; None for all.
    """
    wanted = set(range(1, len(tree))) if ends is None else set[int]()
    for node in ends or ():
        while node > 0:
            wanted.add(node)
            node = tree.parent[node]
    up_sizes = [size for step in (*leaves, *inner) for size in step.sizes]
    places: dict[int, Place] = {}
    sizes: list[int] = []

    def add_part(nodes: Sequence[int]) -> None:
        places.update({n: (len(sizes), i) for i, n in enumerate(nodes)})
        sizes.append(len(nodes))

    start = tuple(k for k, c in enumerate(tree.children[0]) if c in wanted)
    for k in start:
        add_part((tree.children[0][k],))
    descents, arrivals = [], []
    for number, step in reversed(list(enumerate(inner, len(leaves)))):
        indices = [i for i, n in enumerate(step.nodes) if n in wanted]
        if not indices:
            continue
        nodes = tuple(step.nodes[i] for i in indices)
        above = _runs(places, sizes, nodes)
        below = [[row[i] for i in indices] for row in step.children]
        targets = tuple(k for k, row in enumerate(below) if any(n in wanted for n in row))
        inputs = tuple(() if targets == (k,) else _runs(upward, up_sizes, row) for k, row in enumerate(below))
        for k in targets:
            add_part(below[k])
        descents.append(Descent(number, nodes, _chosen(indices, len(step.nodes)), above, inputs, targets))
    ending = wanted if ends is None else set(ends)
    for number, step in enumerate(leaves):
        indices = [i for i, n in enumerate(step.nodes) if n in ending]
        if indices:
            nodes = tuple(step.nodes[i] for i in indices)
            arrivals.append(Arrival(number, nodes, _chosen(indices, len(step.nodes)), _runs(places, sizes, nodes)))
    # An upward message is used by the siblings of its node on the route, and by the parent's upward message if that one is used. A
    # step computes either all of its nodes or none.
    used = {c for k, c in enumerate(tree.children[0]) if any(j != k for j in start)}
    for descent in descents:
        beside = [k for k, runs in enumerate(descent.inputs) if runs]
        used.update(tree.children[n][k] for n in descent.nodes for k in beside)
    for step in reversed(inner):
        if not used.isdisjoint(step.nodes):
            used.update(c for row in step.children for c in row)
    unused = frozenset(i for i, step in enumerate((*leaves, *inner)) if used.isdisjoint(step.nodes))
    return Route(start, tuple(descents), tuple(arrivals), places, unused)
