"""Instruments: groups of outside observables from which the inside of a separator is predicted.

An instrument is a union of product features. It contains the observables of every near leaf; groups that span leaves are added
until the cross moment with the core group has full rank. Single leaves have no interactions, so a separator with two variables needs
at least one pair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import torch
from torch import Tensor

from torchpbp.planning.core_groups import group_size
from torchpbp.planning.spans import Span

Group = tuple[str, ...]


def choose_instruments(
    near: Sequence[Group],
    needed: int,
    block: Callable[[Group], Tensor],
    states: Mapping[str, int],
    singles: int,
    pool: int,
    largest: int,
) -> tuple[tuple[Group, ...], int]:
    """The nearest leaves as separate groups, then product groups until the rank is reached.

    Args:
        near: observables of outside leaves, nearest first.
        needed: rank to reach.
        block: cross moment of the core group with a group.
        states: number of states (or features) of each observable.
        singles: number of leaves that enter as separate groups.
        pool: number of nearest observables in product groups.
        largest: largest number of joint states of a group.

    Returns:
        The groups and the rank they reach.
    """
    if not near:
        return ((),), 1  # nothing outside: the constant
    chosen: list[Group] = list(near[:singles])
    observables = [v for group in near for v in group][:pool]
    blocks = {chosen[0]: block(chosen[0])}
    span = Span.of(blocks[chosen[0]])
    for group in chosen[1:]:
        blocks[group] = block(group)
        if span.rank < needed:  # further single leaves reduce variance and need no test
            span = span.with_columns(blocks[group])
    leaves = len(chosen)
    for size in range(2, len(observables) + 1):
        if span.rank >= needed:
            break
        candidates = {
            g: block(g) for g in combinations(observables, size) if group_size(g, states) <= largest and g not in blocks
        }
        span = span.scaled_for(list(candidates.values()))
        while added := _added_groups(span, needed, chosen, candidates, states):
            more = blocks | {g: candidates.pop(g) for g in added}
            exact = Span.of(torch.cat(list(more.values()), dim=1), span.scale)
            if exact.rank <= span.rank:  # the gain was a rounding error
                break
            span, blocks, chosen = exact, more, [*chosen, *added]
    rank = min(span.rank, needed)
    return _without_idle_groups(blocks, leaves, rank, states), rank


def _added_groups(
    span: Span, needed: int, chosen: Sequence[Group], candidates: Mapping[Group, Tensor], states: Mapping[str, int]
) -> list[Group]:
    """Product groups to add until the rank is reached, greedily by largest gain.

    The gain of a group never grows when others are added, so earlier gains are bounds, and a gain is recomputed only while its bound
    is the largest.

    Args:
        span: span of the groups chosen so far.
        needed: rank to reach.
        chosen: groups chosen so far.
        candidates: further groups with their cross moments.
        states: number of states (or features) of each observable.
    """
    order = {g: (-group_size(g, states), -i) for i, g in enumerate(candidates)}
    gains = {g: _new_functions(g, chosen, states) for g in candidates}
    added: list[Group] = []
    while gains and span.rank < needed:
        missing, exact = needed - span.rank, set[Group]()
        while (best := max(gains, key=lambda g: (min(gains[g], missing), order[g]))) not in exact and gains[best]:
            gains[best] = min(gains[best], span.gain(candidates[best]))
            exact.add(best)
        if not gains.pop(best):
            break
        span = span.with_columns(candidates[best])
        added.append(best)
    return added


def _new_functions(group: Group, chosen: Sequence[Group], states: Mapping[str, int]) -> int:
    """Dimension of a group's functions modulo sums of functions of its intersections with the chosen groups."""
    parts = {frozenset(group).intersection(g) for g in chosen}
    return sum(
        math.prod(states[v] - 1 for v in part)
        for size in range(1, len(group) + 1)
        for part in combinations(group, size)
        if not any(larger.issuperset(part) for larger in parts)
    )


def _without_idle_groups(
    blocks: Mapping[Group, Tensor], leaves: int, rank: int, states: Mapping[str, int]
) -> tuple[Group, ...]:
    """Drop product groups (all but the first ``leaves``) that are redundant given later ones."""
    products = list(blocks)[leaves:]
    selected = list(blocks)[:leaves]
    spans = [Span.of(torch.cat([blocks[g] for g in selected], dim=1))]
    for group in reversed(products):
        spans.append(spans[-1].with_columns(blocks[group]))
    for group, later in zip(products, reversed(spans[:-1]), strict=True):
        before = [blocks[g] for g in selected[leaves:]]
        if later.rank + (later.gain(torch.cat(before, dim=1)) if before else 0) < rank:
            selected.append(group)
    dropped = {g: blocks[g] for g in products if g not in selected}
    # Accumulated rounding errors may have dropped a needed group.
    while dropped and (span := Span.of(torch.cat([blocks[g] for g in selected], dim=1))).rank < rank:
        for group in _added_groups(span, rank, selected, dropped, states) or list(dropped):
            selected.append(group)
            del dropped[group]
    return tuple(g for g in blocks if g not in dropped)
