"""A junction tree under construction: ends without observables are pruned, large nodes split, pass-through nodes merged."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations

from torchpbp.graph.clique_tree import log_size

LARGEST_MERGED = 4096
"""Largest number of joint states of a merger with a node that only forwards messages."""
MAX_NEIGHBOURS = 3
"""Two children and a parent; three children at the root. An operator is a tensor with one mode per neighbour."""


@dataclass
class Draft:
    """A tree under construction; nodes keep their numbers.

    Args:
        cliques: variables of each node.
        groups: observables of each leaf; empty for inner nodes.
        near: neighbours of each node.
        splits: number of splits below each node: 0 for nodes of the first draft.
    """

    cliques: list[frozenset[str]] = field(default_factory=list)
    groups: list[tuple[str, ...]] = field(default_factory=list)
    near: list[set[int]] = field(default_factory=list)
    splits: list[int] = field(default_factory=list)

    def add(self, clique: frozenset[str], group: tuple[str, ...] = (), splits: int = 0) -> int:
        """Add a node without neighbours and return its number."""
        self.cliques.append(clique)
        self.groups.append(group)
        self.near.append(set())
        self.splits.append(splits)
        return len(self.cliques) - 1

    def join(self, a: int, b: int) -> None:
        self.near[a].add(b)
        self.near[b].add(a)

    def part(self, a: int, b: int) -> None:
        self.near[a].discard(b)
        self.near[b].discard(a)

    def edges(self, alive: set[int]) -> list[tuple[int, int]]:
        """Each edge between living nodes once, the smaller number first."""
        return [(a, b) for a in sorted(alive) for b in self.near[a] if a < b and b in alive]


def prune(draft: Draft) -> tuple[set[int], list[tuple[int, int]]]:
    """Step 3: drop ends of the skeleton without observables. Returns the remaining nodes and (dropped, neighbour) pairs."""
    alive = set(range(len(draft.cliques)))
    pruned = []
    ends = [i for i in alive if not draft.groups[i] and len(draft.near[i]) <= 1]
    while ends:
        i = ends.pop()
        if i not in alive or not draft.near[i]:
            continue
        (neighbour,) = draft.near[i]
        if draft.groups[neighbour]:
            continue  # the last inner node: leaves need a parent
        draft.part(i, neighbour)
        alive.discard(i)
        pruned.append((i, neighbour))
        if not draft.groups[neighbour] and len(draft.near[neighbour]) <= 1:
            ends.append(neighbour)
    return alive, pruned


def bound_degree(draft: Draft, alive: set[int], weights: Mapping[str, float]) -> set[int]:
    """Step 4: while a node has too many neighbours, move two of them below a new node with the variables they share with it.

    The new node, and its separator, is the union of the two separators. Variables that no other neighbour shares are included,
    because the factor of the node still relates them to the rest.
    """
    added: set[int] = set()
    for node in sorted(alive):
        clique = draft.cliques[node]
        # Only the first two of neighbours with equal separators are candidates: a star with 1,000 leaves would need 10^6 pairs.
        # Neighbours with fewest splits come first, so that a star becomes a balanced tree.
        alike: dict[frozenset[str], list[tuple[int, int]]] = {}
        for n in draft.near[node] if len(draft.near[node]) > MAX_NEIGHBOURS else ():
            heapq.heappush(alike.setdefault(clique & draft.cliques[n], []), (draft.splits[n], n))
        while len(draft.near[node]) > MAX_NEIGHBOURS:
            heaps = sorted(alike.items(), key=lambda item: item[1][0])
            candidates = [(m, shared) for shared, heap in heaps for m in (heap[0], *sorted(heap[1:3])[:1])]
            (_, one), (_, other) = min(
                combinations(candidates, 2),
                key=lambda p: (
                    round(log_size(p[0][1] | p[1][1], weights), 9),
                    p[0][0][0] + p[1][0][0],
                    (p[0][0][1], p[1][0][1]),
                ),
            )
            (first, i), (second, j) = heapq.heappop(alike[one]), heapq.heappop(alike[other])
            copy = draft.add(one | other, splits=1 + max(first, second))
            added.add(copy)
            for n in (i, j):
                draft.part(n, node)
                draft.join(n, copy)
            draft.join(copy, node)
            heapq.heappush(alike.setdefault(one | other, []), (1 + max(first, second), copy))
            alike = {shared: heap for shared, heap in alike.items() if heap}
    return added


def contract(
    draft: Draft, alive: set[int], pruned: list[tuple[int, int]], weights: Mapping[str, float]
) -> list[tuple[int, int]]:
    """Step 4, second half: merge inner nodes with two neighbours into an inner neighbour if the clique remains small.

    The size of an operator depends on its separators, not on its clique, so a merger saves an operator. The states of the
    clique are limited for exact inference on this tree, which computes generic ranks.

    Returns:
        The pruned cliques; those attached to a merged node are attached to the node it was merged into.
    """
    limit = max([math.log(LARGEST_MERGED), *(log_size(draft.cliques[n], weights) for n in alive)])
    moved: dict[int, int] = {}
    queue = [n for n in sorted(alive) if not draft.groups[n]]
    while queue:
        node = queue.pop()
        if node not in alive or len(draft.near[node]) != 2:
            continue
        options = [n for n in sorted(draft.near[node]) if not draft.groups[n]]
        sizes = {n: log_size(draft.cliques[node] | draft.cliques[n], weights) for n in options}
        fitting = [n for n in options if sizes[n] <= limit]
        if not fitting:
            continue
        target = min(fitting, key=lambda n: (round(sizes[n], 9), n))
        (other,) = draft.near[node] - {target}
        draft.part(node, target)
        draft.part(node, other)
        draft.join(other, target)
        draft.cliques[target] = draft.cliques[target] | draft.cliques[node]
        alive.discard(node)
        moved[node] = target

    def final(node: int) -> int:
        while node in moved:
            node = moved[node]
        return node

    return [(clique, final(attached_to)) for clique, attached_to in pruned]
