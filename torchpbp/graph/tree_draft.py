"""A junction tree under construction: a skeleton with leaves, which is pruned, split, merged and given a root."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations

from torchpbp.errors import StructureError
from torchpbp.graph.clique_tree import braces, log_size, log_states, spanning_edges
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.graph.triangulation import maximal_cliques
from torchpbp.grouping import holders

LARGEST_MERGED = 4096
"""Largest number of joint states of a merger with a node that only forwards messages."""
MAX_NEIGHBOURS = 3
"""Two children and a parent; three children at the root. An operator is a tensor with one mode per neighbour."""


@dataclass
class Draft:
    """A tree under construction; nodes keep their numbers.

    Args:
        weights: log number of states of each variable.
        cliques: variables of each node.
        groups: observables of each leaf; empty for inner nodes.
        near: neighbours of each node.
        splits: number of splits below each node: 0 for nodes of the skeleton and leaves.
        alive: nodes that are neither pruned nor merged.
        pruned: pruned nodes and their neighbours, in the order of pruning.
    """

    weights: dict[str, float]
    cliques: list[frozenset[str]] = field(default_factory=list)
    groups: list[tuple[str, ...]] = field(default_factory=list)
    near: list[set[int]] = field(default_factory=list)
    splits: list[int] = field(default_factory=list)
    alive: set[int] = field(default_factory=set)
    pruned: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def of(cls, graph: LatentGraph) -> Draft:
        """Steps 1 and 2: a skeleton of the variables that connect cliques, and leaves with the observables."""
        draft = cls(log_states(graph))
        cliques = maximal_cliques(graph.moral_graph(), draft.weights)
        membership = Counter(v for clique in cliques for v in clique)
        place = {v: i for i, v in enumerate(graph.observed) if membership[v] == 1}
        exclusive = [tuple(sorted((v for v in c if v in place), key=place.__getitem__)) for c in cliques]
        remainders = list(dict.fromkeys(c - set(e) for c, e in zip(cliques, exclusive, strict=True)))
        # Remainders contained in other cliques of the skeleton are dropped; only cliques with a common variable are compared.
        places = holders(remainders)
        skeleton = [s for s in remainders if s and not any(s < remainders[t] for t in places[min(s)])]
        skeleton = skeleton or [frozenset()]
        for clique in skeleton:
            draft.add(clique)
        for a, b in spanning_edges(skeleton, draft.weights):
            draft.join(a, b)
        hosts = holders(skeleton)

        @cache  # leaves with equal separators share a host, so that a split can group them
        def host(separator: frozenset[str]) -> int:
            near: Iterable[int] = hosts[min(separator)] if separator else range(len(skeleton))
            fitting = [i for i in near if separator <= skeleton[i]]
            return min(fitting, key=lambda i: (len(draft.near[i]), log_size(skeleton[i], draft.weights), i))

        for clique, group in zip(cliques, exclusive, strict=True):
            if group:
                above = host(clique - set(group))
                draft.join(draft.add(clique, group), above)
        for v in graph.observed:
            if membership[v] > 1:
                above = host(frozenset((v,)))
                draft.join(draft.add(frozenset((v,)), (v,)), above)
        return draft

    def add(self, clique: frozenset[str], group: tuple[str, ...] = (), splits: int = 0) -> int:
        """Add a node without neighbours and return its number."""
        number = len(self.cliques)
        self.cliques.append(clique)
        self.groups.append(group)
        self.near.append(set())
        self.splits.append(splits)
        self.alive.add(number)
        return number

    def join(self, a: int, b: int) -> None:
        self.near[a].add(b)
        self.near[b].add(a)

    def part(self, a: int, b: int) -> None:
        self.near[a].discard(b)
        self.near[b].discard(a)

    def edges(self) -> list[tuple[int, int]]:
        """Each edge between living nodes once, the smaller number first."""
        return [(a, b) for a in sorted(self.alive) for b in self.near[a] if a < b and b in self.alive]

    def prune(self) -> None:
        """Step 3: drop ends of the skeleton without observables."""
        ends = [i for i in self.alive if not self.groups[i] and len(self.near[i]) <= 1]
        while ends:
            i = ends.pop()
            if i not in self.alive or not self.near[i]:
                continue
            (neighbour,) = self.near[i]
            if self.groups[neighbour]:
                continue  # the last inner node: leaves need a parent
            self.part(i, neighbour)
            self.alive.discard(i)
            self.pruned.append((i, neighbour))
            if not self.groups[neighbour] and len(self.near[neighbour]) <= 1:
                ends.append(neighbour)

    def bound_degree(self) -> None:
        """Step 4: while a node has too many neighbours, move two of them below a new node with the variables they share with it.

        The new node, and its separator, is the union of the two separators. Variables that no other neighbour shares are included,
        because the factor of the node still relates them to the rest.
        """
        for node in sorted(self.alive):
            clique = self.cliques[node]
            # Only the first two of neighbours with equal separators are candidates: a star with 1,000 leaves would need 10^6
            # pairs. Neighbours with fewest splits come first, so that a star becomes a balanced tree.
            alike: dict[frozenset[str], list[tuple[int, int]]] = {}
            for n in self.near[node] if len(self.near[node]) > MAX_NEIGHBOURS else ():
                heapq.heappush(alike.setdefault(clique & self.cliques[n], []), (self.splits[n], n))
            while len(self.near[node]) > MAX_NEIGHBOURS:
                heaps = sorted(alike.items(), key=lambda item: item[1][0])
                candidates = [(m, shared) for shared, heap in heaps for m in (heap[0], *sorted(heap[1:3])[:1])]
                (_, one), (_, other) = min(
                    combinations(candidates, 2),
                    key=lambda p: (
                        round(log_size(p[0][1] | p[1][1], self.weights), 9),
                        p[0][0][0] + p[1][0][0],
                        (p[0][0][1], p[1][0][1]),
                    ),
                )
                (first, i), (second, j) = heapq.heappop(alike[one]), heapq.heappop(alike[other])
                copy = self.add(one | other, splits=1 + max(first, second))
                for n in (i, j):
                    self.part(n, node)
                    self.join(n, copy)
                self.join(copy, node)
                heapq.heappush(alike.setdefault(one | other, []), (1 + max(first, second), copy))
                alike = {shared: heap for shared, heap in alike.items() if heap}

    def contract(self) -> None:
        """Step 4, second half: merge inner nodes with two neighbours into an inner neighbour if the clique remains small.

        The size of an operator depends on its separators, not on its clique, so a merger saves an operator. The states of the
        clique are limited for exact inference on this tree, which computes generic ranks. Pruned cliques attached to a merged node
        are attached to the node it was merged into.
        """
        sizes = (log_size(self.cliques[n], self.weights) for n in self.alive)
        limit = max([math.log(LARGEST_MERGED), *sizes])
        moved: dict[int, int] = {}
        queue = [n for n in sorted(self.alive) if not self.groups[n]]
        while queue:
            node = queue.pop()
            if len(self.near[node]) != 2:
                continue
            options = [n for n in self.near[node] if not self.groups[n]]
            merged = {n: log_size(self.cliques[node] | self.cliques[n], self.weights) for n in options}
            fitting = [n for n in options if merged[n] <= limit]
            if not fitting:
                continue
            target = min(fitting, key=lambda n: (round(merged[n], 9), n))
            (other,) = self.near[node] - {target}
            self.part(node, target)
            self.part(node, other)
            self.join(other, target)
            self.cliques[target] |= self.cliques[node]
            self.alive.discard(node)
            moved[node] = target

        def final(node: int) -> int:
            while node in moved:
                node = moved[node]
            return node

        self.pruned = [(clique, final(attached_to)) for clique, attached_to in self.pruned]

    def choose_root(self, wanted: Iterable[str] | None = None) -> int:
        """Step 5: the inner node with the lowest cost of learning; among equals the most central one.

        The cost of a node is (product of its children's core sizes) x (size of the instrument of the separator above it). The
        size of a core is bounded by the separator's states and by the states of all observables below; that of an instrument by
        the separator's states and by the states of all observables outside. Moving the root across one edge changes the cost of
        its two ends only, so all totals take one traversal.

        Args:
            wanted: variables that the root must contain.
        """
        inner = [n for n in sorted(self.alive) if not self.groups[n]]
        order, above = [inner[0]], {inner[0]: -1}
        for n in order:
            for m in sorted(self.near[n]):
                if m != above[n]:
                    above[m] = n
                    order.append(m)
        below = {n: log_size(self.groups[n], self.weights) for n in order}
        for n in reversed(order[1:]):
            below[above[n]] += below[n]
        everything = below[order[0]]

        @cache
        def core(n: int, towards: int) -> float:
            """Log size of a core group for n's side of the edge from n to ``towards``."""
            side = below[n] if above[n] == towards else everything - below[towards]
            return min(log_size(self.cliques[n] & self.cliques[towards], self.weights), side)

        def cost(n: int, parent: int) -> float:
            total = sum(core(m, n) for m in self.near[n] if m != parent) + (core(parent, n) if parent >= 0 else 0.0)
            return math.exp(min(total, 500.0))

        totals = {order[0]: sum(cost(n, above[n]) for n in order)}
        for n in order[1:]:
            p = above[n]
            totals[n] = totals[p] - cost(p, -1) - cost(n, p) + cost(p, n) + cost(n, -1)
        centrality = self._eccentricities(order[0])
        choices = [n for n in inner if self.cliques[n].issuperset(wanted or ())]
        if not choices:
            raise StructureError(
                f"No inner clique contains the requested root {braces(wanted or ())}; inner cliques are: "
                + ", ".join(braces(self.cliques[n]) for n in inner[:20])
            )
        return min(choices, key=lambda n: (round(math.log(max(totals[n], 1.0)), 2), centrality[n], n))

    def _eccentricities(self, start: int) -> dict[int, int]:
        """Largest distance from each node to any other, computed from the two ends of a longest path."""

        def walk(start: int) -> dict[int, int]:
            steps = {start: 0}
            queue = [start]
            for n in queue:
                for m in self.near[n]:
                    if m not in steps:
                        steps[m] = steps[n] + 1
                        queue.append(m)
            return steps

        first = walk(start)
        one = walk(max(first, key=lambda n: (first[n], -n)))
        other = walk(max(one, key=lambda n: (one[n], -n)))
        return {n: max(one[n], other[n]) for n in one}
