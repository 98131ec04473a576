"""Cost estimates: of a complete plan, and of a junction tree before the expensive part of planning.

Constants are fitted to measurements of discrete models: a star of 10,000 leaves, and four observables of 200 states.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from torchpbp.graph.cost import Cost, saturated
from torchpbp.graph.junction_tree import JunctionTree
from torchpbp.planning.rank_bounds import RankBounds

SMALL_BYTES, LARGE_BYTES = 50.0, 24.0
"""Bytes per entry of a moment: of small tables, with numbered cells, and of large tables."""
LARGE = 1 << 16
"""Number of moment entries above which a separator's tables count as large."""
SEPARATOR_SECONDS, ENTRY_SECONDS, SOLVE_SECONDS = 1e-3, 5e-8, 1e-9
"""Seconds per separator, per entry of a moment, and per cube of an instrument's size."""

PROBING_SECONDS = 1.2e-8
"""Seconds to find groups of a separator by random draws, per cube of its states."""


class SeparatorSizes(NamedTuple):
    """Joint states of the core group and of the instrument's groups, and the rank of a separator."""

    core: int
    near: Sequence[int]
    rank: int


def fit_cost(tree: JunctionTree, sizes: Mapping[int, SeparatorSizes], dims: Mapping[str, int]) -> Cost:
    """The cost of a fit by linear regression.

    Args:
        tree: the junction tree.
        sizes: sizes of the separators, by node.
        dims: feature dimensions of each observable. Products of kernel features are compressed before averaging.
    """
    compressed = any(dims[v] != tree.graph.num_states(v) for v in tree.leaf_of)
    largest, widest = 0, 0
    moments, operators, memory, seconds = 0, 0, 0.0, 0.0
    for node in range(len(tree)):
        children, leaf = tree.children[node], tree.leaf_observables[node]
        cores = [sizes[c].rank if compressed else sizes[c].core for c in children] or [dims[v] for v in leaf]
        below = math.prod(cores)
        near = sizes[node].near if node else [1]
        width = sum(near)
        entries = below * width + (width * width + sizes[node].core * width if node else 0)
        moments += entries
        operators += math.prod([*(sizes[c].rank for c in children), *(dims[v] for v in leaf)]) * (
            sizes[node].rank if node else 1
        )
        memory += saturated(entries) * (LARGE_BYTES if entries > LARGE else SMALL_BYTES)
        seconds += SEPARATOR_SECONDS + ENTRY_SECONDS * saturated(entries) + SOLVE_SECONDS * saturated(width) ** 3
        if below * max(near) >= largest:  # >=: the root comes first, and its clique may be empty
            largest, widest = below * max(near), node
    clique = tuple(sorted(tree.cliques[widest]))
    return Cost(clique, largest, moments, operators, memory + 24.0 * saturated(operators), seconds)


def tree_cost(tree: JunctionTree, bounds: RankBounds, dims: Mapping[str, int]) -> Cost:
    """Lower bound of the cost of planning and a fit, for ranks equal to their bounds.

    A message of rank r needs a core group of at least r joint states, and of more if an observable has more states than the latents
    that it depends on. The estimate uses no groups.

    Args:
        tree: the junction tree; all its variables have a number of states.
        bounds: bounds of its ranks.
        dims: feature dimensions of each observable.
    """
    states = {v: tree.graph.num_states(v) for v in tree.graph.names}
    dearest = [math.inf] * len(tree)  # smallest ratio of log features to log rank over the observables below
    for leaf in tree.leaves:
        distinguishable = math.prod(states[v] for v in tree.separators[leaf])
        for v in tree.leaf_observables[leaf]:
            useful = min(distinguishable, states[v])
            if useful > 1:
                dearest[leaf] = min(dearest[leaf], max(1.0, math.log(dims[v]) / math.log(useful)))
    sizes = {}
    for node in range(len(tree) - 1, 0, -1):
        dearest[tree.parent[node]] = min(dearest[tree.parent[node]], dearest[node])
        rank, leaf_names = bounds.rank(node), tree.leaf_observables[node]
        factor = dearest[node] if math.isfinite(dearest[node]) else 1.0
        size = math.prod(dims[v] for v in leaf_names) if leaf_names else _power(rank, factor)
        sizes[node] = SeparatorSizes(size, [rank], rank)
    fit = fit_cost(tree, sizes, dims)
    if bounds.exact:
        return fit
    full = tree.full_tree()
    cliques = [math.prod(states[v] for v in c) for c in full.cliques]
    separators = [math.prod(states[v] for v in s) for s in tree.separators]
    rows = max(separators) + 8
    probing = 8.0 * (saturated(2 * sum(cliques)) + saturated(rows) * saturated(2 * sum(separators) + max(cliques)))
    time = 1e-8 * probing + PROBING_SECONDS * sum(saturated(n) ** 3 for n in separators) + 3e-2 * len(tree)
    if probing > fit.bytes:
        widest = max(range(len(cliques)), key=cliques.__getitem__)
        clique = tuple(sorted(full.cliques[widest]))
        fit = replace(fit, clique=clique, entries=cliques[widest], moments=sum(cliques), bytes=probing)
    return replace(fit, seconds=fit.seconds + time, planning=time)


def _power(rank: int, factor: float) -> int:
    return math.ceil(math.exp(min(factor * math.log(rank), 600.0)) - 1e-6) if rank > 1 else 1
