"""Bounds of the rank of each message from numbers of states alone; on forests they are the generic ranks.

The rank of one side of a separator is bounded by the states of the separator, and by the product of the bounds of the separators
behind it. Two passes over the junction tree compute these bounds for both sides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import networkx as nx

from torchpbp.graph.junction_tree import JunctionTree


class RankBounds(NamedTuple):
    """Bounds by tree node, of the separator above it; entry 0 is unused.

    Args:
        inside: bounds for the observables below the separator.
        outside: bounds for all other observables.
        exact: whether the smaller bound is the generic rank.
    """

    inside: list[int]
    outside: list[int]
    exact: bool

    def rank(self, node: int) -> int:
        """Bound of the rank of P(inside, outside)."""
        return min(self.inside[node], self.outside[node])


def is_forest(tree: JunctionTree) -> bool:
    """Whether the graph is a forest and each separator a single variable: ranks then have a closed form."""
    graph = tree.graph
    if any(len(s) > 1 for s in tree.separators):
        return False
    if graph.directed and any(len(graph.parents(v)) > 1 for v in graph.names):
        return False
    return not graph.edges or nx.is_forest(nx.Graph(graph.edges))


def rank_bounds(tree: JunctionTree) -> RankBounds:
    """Bounds of all separators of a tree whose variables all have a number of states."""
    exact = is_forest(tree)
    states = {v: tree.graph.num_states(v) for v in tree.graph.names}
    near = {v: frozenset(tree.graph.neighbors(v)) for v in tree.graph.names} if exact else {}
    inside, outside = [1] * len(tree), [1] * len(tree)

    def passed(node: int, sources: Iterable[tuple[Iterable[str], int]], target: frozenset[str]) -> int:
        """Rank bound at a separator of a clique, from (variables, rank) sources at the same clique."""
        total, at = 1, dict[str, int]()
        for variables, rank in sources:
            total *= rank
            for v in variables:
                at[v] = at.get(v, 1) * rank
        if exact and target and len(tree.cliques[node]) > 1:
            return _flow(tree.cliques[node], near, states, at, next(iter(target)))
        return min(total, math.prod(states[v] for v in target))

    for node in range(len(tree) - 1, 0, -1):
        leaf = [((v,), states[v]) for v in tree.leaf_observables[node]]
        below = [(tree.separators[c], inside[c]) for c in tree.children[node]]
        inside[node] = passed(node, [*leaf, *below], tree.separators[node])
    for node in range(1, len(tree)):
        above = tree.parent[node]
        sources = [(tree.separators[c], inside[c]) for c in tree.children[above] if c != node]
        if above:
            sources.append((tree.separators[above], outside[above]))
        outside[node] = passed(above, sources, tree.separators[node])
    return RankBounds(inside, outside, exact)


def _flow(
    clique: frozenset[str],
    near: Mapping[str, frozenset[str]],
    states: Mapping[str, int],
    at: Mapping[str, int],
    target: str,
) -> int:
    """Rank bound at one variable of a clique, propagated along the edges between its variables, which form a forest."""
    order, towards = [target], {target: ""}
    for v in order:  # a queue, extended during iteration
        for u in clique & near[v]:
            if u not in towards:
                towards[u] = v
                order.append(u)
    rank = {v: at.get(v, 1) for v in order}
    for v in reversed(order):
        rank[v] = min(rank[v], states[v])
        if towards[v]:
            rank[towards[v]] *= rank[v]
    return rank[target]
