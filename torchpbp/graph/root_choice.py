"""The root of a junction tree: the node with the lowest cost of learning."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache

from torchpbp.errors import StructureError
from torchpbp.graph.clique_tree import braces, log_size
from torchpbp.graph.tree_draft import Draft


def choose_root(draft: Draft, alive: set[int], weights: Mapping[str, float], wanted: frozenset[str] | None) -> int:
    """Step 5: the inner node with the lowest cost of learning; among equals the most central one.

    The cost of a node is (product of its children's core sizes) x (size of the instrument of the separator above it). The size
    of a core is bounded by the separator's states and by the states of all observables below; that of an instrument by the
    separator's states and by the states of all observables outside. Moving the root across one edge changes the cost of its two
    ends only, so all totals take one traversal.
    """
    inner = [n for n in sorted(alive) if not draft.groups[n]]
    order, above = [inner[0]], {inner[0]: -1}
    for n in order:
        for m in sorted(draft.near[n]):
            if m != above[n]:
                above[m] = n
                order.append(m)
    below = {n: log_size(draft.groups[n], weights) for n in order}
    for n in reversed(order[1:]):
        below[above[n]] += below[n]
    everything = below[order[0]]

    @cache
    def core(n: int, towards: int) -> float:
        """Log size of a core group for n's side of the edge from n to ``towards``."""
        side = below[n] if above[n] == towards else everything - below[towards]
        return min(log_size(draft.cliques[n] & draft.cliques[towards], weights), side)

    def cost(n: int, parent: int) -> float:
        total = sum(core(m, n) for m in draft.near[n] if m != parent) + (core(parent, n) if parent >= 0 else 0.0)
        return math.exp(min(total, 500.0))

    totals = {order[0]: sum(cost(n, above[n]) for n in order)}
    for n in order[1:]:
        p = above[n]
        totals[n] = totals[p] - cost(p, -1) - cost(n, p) + cost(p, n) + cost(n, -1)
    centrality = _eccentricities(draft, order)
    choices = [n for n in inner if wanted is None or wanted <= draft.cliques[n]]
    if not choices:
        raise StructureError(
            f"No inner clique contains the requested root {braces(wanted or ())}; inner cliques are: "
            + ", ".join(braces(draft.cliques[n]) for n in inner[:20])
        )
    return min(choices, key=lambda n: (round(math.log(max(totals[n], 1.0)), 2), centrality[n], n))


def _eccentricities(draft: Draft, order: Sequence[int]) -> dict[int, int]:
    """Largest distance from each node to any other, computed from the two ends of a longest path."""

    def walk(start: int) -> dict[int, int]:
        steps = {start: 0}
        queue = [start]
        for n in queue:
            for m in draft.near[n]:
                if m not in steps:
                    steps[m] = steps[n] + 1
                    queue.append(m)
        return steps

    first = walk(order[0])
    one = walk(max(first, key=lambda n: (first[n], -n)))
    other = walk(max(one, key=lambda n: (one[n], -n)))
    return {n: max(one[n], other[n]) for n in order}
