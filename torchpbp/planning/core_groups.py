"""Minimal core groups: the fewest observables below a separator that linearly determine all of them.

At a leaf the group is all of the leaf's observables. At inner nodes it is a subset of the children's groups: together these
determine all observables below, so a subset of the same rank always exists, and the tables that learning needs stay small.
Definition 1 of [PBP] requires a conditional independence that latent models do not have; the algorithm uses rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, zip_longest

from torchpbp.graph.junction_tree import JunctionTree


def interleave(groups: Sequence[Sequence[str]]) -> list[str]:
    """One member of each group in turn."""
    return [v for v in chain.from_iterable(zip_longest(*groups)) if v is not None]


def minimal_core_group(
    candidates: Sequence[str], needed: int, rank_of: Callable[[tuple[str, ...]], int], states: Mapping[str, int]
) -> tuple[str, ...]:
    """Grow a group greedily until its rank reaches ``needed``, then drop members that are not needed.

    Args:
        candidates: observables in order of preference.
        needed: rank to reach.
        rank_of: rank of a group.
        states: number of states of each candidate.
    """
    group: tuple[str, ...] = ()
    rank = 0
    rest = list(candidates)
    while rest and rank < needed:
        scored = [(min(rank_of((*group, v)), needed), -states[v], -i, v) for i, v in enumerate(rest)]
        best, *_, chosen = max(scored)
        if best <= rank:  # no single member raises the rank, but pairs may: take the nearest
            chosen = rest[0]
        group = (*group, chosen)
        rank = max(best, rank)
        rest.remove(chosen)
    for v in sorted(group, key=lambda v: -states[v]):
        smaller = tuple(u for u in group if u != v)
        if smaller and rank_of(smaller) >= rank:
            group = smaller
    return group


def core_candidates(tree: JunctionTree, node: int, cores: Mapping[int, tuple[str, ...]]) -> list[str]:
    """Members of the children's groups, nearest leaf first, one from each child in turn."""
    below = sorted(tree.children[node], key=lambda c: (not tree.leaf_observables[c], c))
    return interleave([cores[c] for c in below])


def choose_core(
    tree: JunctionTree,
    node: int,
    needed: int,
    cores: Mapping[int, tuple[str, ...]],
    core_rank: Callable[[int, tuple[str, ...]], int],
    states: Mapping[str, int],
) -> tuple[str, ...]:
    """The core group of a separator: a leaf's observables, or a minimal part of the children's groups.

    Args:
        tree: the junction tree.
        node: node below the separator.
        needed: rank to reach.
        cores: groups of the nodes below.
        core_rank: function of a node and a group, the rank of P(group, all observables outside).
        states: number of states (or features) of each observable.
    """
    return tree.leaf_observables[node] or minimal_core_group(
        core_candidates(tree, node, cores), needed, lambda group: core_rank(node, group), states
    )


def group_size(group: Sequence[str], states: Mapping[str, int]) -> int:
    """Number of joint states."""
    return math.prod(states[v] for v in group)
