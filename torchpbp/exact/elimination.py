"""Variable elimination for one variable and one row, restricted to the relevant part of the network.

A pass over the clique tree computes tables of complete cliques. Here evidence is an index into the tables, irrelevant variables are
dropped, and the others are summed out one by one, in numpy arrays: for a single row the overhead of calls exceeds the arithmetic, and
is smaller in numpy than in torch. Variables are eliminated in the order of a clique tree with the query at its root, so no table is
larger than the tree's cliques.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from torchpbp.graph.clique_tree import CliqueTree
from torchpbp.graph.domains import Scope
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.inputs.evidence import Evidence, EvidenceLike

Array = npt.NDArray[np.float64]
Part = tuple[Array, tuple[int, ...]]
"""A table and the numbers of its variables."""

TOGETHER = 8
"""Number of tables multiplied at once, before rescaling."""
LARGE = 1 << 14
"""Smallest number of cells of a product for which the order of multiplication is optimised."""
ENOUGH = 1e-200
"""Bound on a sum of products within which no relevant term has over- or underflowed."""
FEW = 64
"""Largest number of variables summed out without comparison to the cost of the clique tree."""
STEPS_PER_CLIQUE, CELLS_PER_STEP = 5, 1024
"""Cost of one message of the clique tree in eliminated variables, and cells of a clique that cost as much as one."""


class Elimination:
    """Posteriors of one variable given the states of others.

    Args:
        graph: graph of the network.
        tree: clique tree of the graph.
        factors: the network's tables with their variables; for a directed graph one per variable, in its order.
    """

    def __init__(self, graph: LatentGraph, tree: CliqueTree, factors: Sequence[tuple[Scope, Tensor]]) -> None:
        self._number = {v: i for i, v in enumerate(graph.names)}
        self._scopes = [tuple(self._number[v] for v in scope) for scope, _ in factors]
        tables = [table.detach().cpu().numpy() for _, table in factors]
        # Scales do not affect posteriors, and entries of at most 1 cannot overflow.
        self._tables: list[Array] = [t / t.max() if t.max() > 0 else t for t in tables]
        self._has_zeros = [not t.all() for t in self._tables]
        self._touching: list[list[int]] = [[] for _ in self._number]
        for f, scope in enumerate(self._scopes):
            for v in scope:
                self._touching[v].append(f)
        everything = (1 << len(factors)) - 1
        self._needed = _ancestors(graph) if graph.directed else [everything] * len(self._number)
        self._cliques = [[self._number[v] for v in clique] for clique in tree.cliques]
        self._cells = [math.prod(graph.num_states(v) for v in clique) for clique in tree.cliques]
        self._parent = tree.parent
        self._top = [-1] * len(self._number)
        for node, clique in enumerate(self._cliques):
            for v in clique:
                self._top[v] = node if self._top[v] < 0 else self._top[v]
        self._place = [0] * len(self._number)
        for place, v in enumerate(sorted(range(len(self._number)), key=lambda v: (-self._top[v], v))):
            self._place[v] = place

    def posterior(self, query: str, observed: Mapping[str, int]) -> Array | None:
        """(states,) P(query | observed); None if the clique tree is faster, or the evidence is impossible.

        Args:
            query: an unobserved variable.
            observed: name -> state.
        """
        target = self._number[query]
        states = {self._number[v]: state for v, state in observed.items()}
        needed = self._needed[target]  # bits of the factors of the query and its ancestors; all others sum to 1
        for v in states:
            needed |= self._needed[v]
        used: set[int] = set()
        variables, factors = self._connected([target], states, needed, used)
        if states and len(variables) > max(FEW, self._steps_in_tree([target, *states])):
            return None
        place = self._places(target)
        result = _eliminated([self._sliced(f, states) for f in factors], variables, place, target)
        total = result.sum()
        if not total > 0 or not self._possible(states, needed, used, place):
            return None
        marginal: Array = result / total
        return marginal

    def _connected(
        self, start: Sequence[int], states: Mapping[int, int], needed: int, used: set[int]
    ) -> tuple[list[int], list[int]]:
        """Variables connected to ``start`` through unobserved ones, and the factors between them, which are added to ``used``."""
        connected, seen = list(start), set(start)
        factors: list[int] = []
        for v in connected:  # a queue, extended during iteration
            for f in self._touching[v]:
                if f not in used and needed >> f & 1:
                    used.add(f)
                    factors.append(f)
                    for u in self._scopes[f]:
                        if u not in seen and u not in states:
                            seen.add(u)
                            connected.append(u)
        return connected, factors

    def _possible(self, states: Mapping[int, int], needed: int, used: set[int], place: Sequence[int]) -> bool:
        """Whether the evidence is possible in the parts of the network that are irrelevant to the query."""
        for v in states:
            for f in self._touching[v]:
                if f in used or not needed >> f & 1:
                    continue
                used.add(f)
                variables, factors = self._connected(
                    [u for u in self._scopes[f] if u not in states], states, needed, used
                )
                doubtful = [g for g in (f, *factors) if self._has_zeros[g]]
                if not doubtful or all(self._sliced(g, states)[0].all() for g in doubtful):
                    continue
                parts = [self._sliced(g, states) for g in (f, *factors)]
                if not _eliminated(parts, variables, place, None).sum() > 0:
                    return False
        return True

    def _places(self, target: int) -> list[int]:
        """Each variable's position in the elimination order, for a tree rooted at the query's clique."""
        place = self._place.copy()
        node, count, path = self._top[target], len(place), []
        while node >= 0:
            path.append(node)
            node = self._parent[node]
        for depth, node in enumerate(reversed(path)):  # the path from the old root is reversed
            for v in self._cliques[node]:
                place[v] = count * (1 + depth) + v
        return place

    def _steps_in_tree(self, variables: Iterable[int]) -> int:
        """Cost of a pass over the clique tree, in eliminated variables; subtrees without evidence are skipped."""
        nodes: set[int] = set()
        for v in variables:
            node = self._top[v]
            while node >= 0 and node not in nodes:
                nodes.add(node)
                node = self._parent[node]
        return sum(STEPS_PER_CLIQUE + self._cells[node] // CELLS_PER_STEP for node in nodes)

    def _sliced(self, factor: int, states: Mapping[int, int]) -> Part:
        """A table at the observed states."""
        scope = self._scopes[factor]
        left = tuple([v for v in scope if v not in states])
        if len(left) == len(scope):
            return self._tables[factor], scope
        index: tuple[Any, ...] = tuple([states.get(v, slice(None)) for v in scope])
        return self._tables[factor][index], left


def plain_states(
    evidence: EvidenceLike, states: Mapping[str, int], labels: Mapping[str, Sequence[Any]]
) -> dict[str, int] | None:
    """Evidence of one row as name -> state, without tensors; None if it has another form or is invalid.

    Args:
        evidence: a dictionary of whole numbers or labels, or checked evidence of one row.
        states: number of states of each variable.
        labels: labels of the states, if they have any.
    """
    if isinstance(evidence, Evidence):
        if (
            evidence.batch != 1
            or evidence.soft
            or evidence.real
            or any(x.shape != (1,) for x in evidence.hard.values())
        ):
            return None
        observed = {v: int(column.item()) for v, column in evidence.hard.items()}
        right = all(-1 <= state < states.get(v, -1) for v, state in observed.items())
        return {v: state for v, state in observed.items() if state >= 0} if right else None
    if evidence is None:
        return {}
    if type(evidence) is not dict:
        return None
    observed = {}
    for name, value in evidence.items():
        state: Any = value
        if name in labels:
            state = labels[name].index(value) if isinstance(value, str) and value in labels[name] else None
        if type(state) is not int or not -1 <= state < states.get(name, -1):
            return None
        if state >= 0:
            observed[name] = state
    return observed


def _ancestors(graph: LatentGraph) -> list[int]:
    """For each variable a bit mask of itself and its ancestors."""
    number = {v: i for i, v in enumerate(graph.names)}
    bits_of: dict[str, int] = {}
    for v in graph.topological_order():
        bits = 1 << number[v]
        for p in graph.parents(v):
            bits |= bits_of[p]
        bits_of[v] = bits
    return [bits_of[v] for v in graph.names]


def _eliminated(parts: Sequence[Part], variables: Sequence[int], place: Sequence[int], remaining: int | None) -> Array:
    """Product of tables, up to a factor, with all variables summed out but one.

    Args:
        parts: the tables, with entries of at most 1.
        variables: all variables of the tables.
        place: position of each variable in the order.
        remaining: the variable that is not summed out; None: all are summed out.
    """
    order = sorted([v for v in variables if v != remaining], key=place.__getitem__)
    result = _summed_out(parts, order, rescale=False)
    # All entries are at most 1, so an underflowed term is negligible in a sum within the bounds, and no term has overflowed. For other
    # sums each product is divided by its largest entry.
    with np.errstate(over="ignore", invalid="ignore"):
        total = result.sum()
    return result if ENOUGH < total < 1 / ENOUGH else _summed_out(parts, order, rescale=True)


def _summed_out(parts: Sequence[Part], order: Sequence[int], rescale: bool) -> Array:
    """Product of tables with variables summed out in order; with ``rescale`` each product is divided by its largest entry."""
    last = len(order)
    turn = {v: i for i, v in enumerate(order)}
    buckets: list[list[Part]] = [[] for _ in range(last + 1)]
    for part in parts:
        buckets[min([turn.get(v, last) for v in part[1]], default=last)].append(part)
    for v, bucket in zip(order, buckets, strict=False):
        if bucket:
            part = _product(bucket, v, rescale)
            buckets[min([turn.get(u, last) for u in part[1]], default=last)].append(part)
    return _product(buckets[last], None, rescale)[0]


def _product(parts: list[Part], summed: int | None, rescale: bool) -> Part:
    """Product of tables with one variable summed out; with ``rescale`` divided by its largest entry."""
    while len(parts) > TOGETHER:  # products of many small numbers underflow
        parts = [*parts[TOGETHER:], _product(parts[:TOGETHER], None, rescale)]
    local: dict[int, int] = {}  # einsum takes numbers below 52
    operands: list[Any] = []
    cells = 1
    for table, scope in parts:
        cells *= table.size
        operands += [table, [local.setdefault(v, len(local)) for v in scope]]
    left = tuple([v for v in local if v != summed])
    if cells > LARGE and len(parts) > 2:  # the product itself may be smaller
        sizes = {v: k for table, scope in parts for v, k in zip(scope, table.shape, strict=True)}
        cells = math.prod(sizes.values())
    large = cells > LARGE and len(parts) > 2
    result = np.einsum(*operands, [local[v] for v in left], optimize="greedy" if large else False)
    if rescale:
        largest = result.max()
        result = result / largest if largest > 0 else result
    return result, left
