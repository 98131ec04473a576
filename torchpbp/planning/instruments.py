"""Instruments: groups of outside observables from which the inside of a separator is predicted.

An instrument is a union of product features. The observables of every near leaf are in it; groups that span leaves
are added until the cross moment with the core group has full rank. Singles alone carry no interaction, so a separator with two
variables needs at least one pair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import torch
from torch import Tensor

from torchpbp.planning.core_groups import group_size
from torchpbp.planning.ranks import numerical_rank

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
    """The nearest leaves by themselves, then product groups until the rank is reached.

    Args:
        near: observables of outside leaves, nearest first.
        needed: rank to reach.
        block: cross moment of the core group with a group.
        states: number of states (or features) of each observable.
        singles: how many leaves enter alone.
        pool: how many of the nearest observables product groups are made of.
        largest: most joint states a group may have.

    Returns:
        The groups and the rank they reach.
    """
    if not near:
        return ((),), 1  # nothing outside: the constant
    chosen: list[Group] = list(near[:singles])
    observables = [v for group in near for v in group][:pool]
    matrix = block(chosen[0])
    rank = min(numerical_rank(matrix), needed)
    for group in chosen[1:]:
        if rank == needed:
            break  # further singles steady the estimate, but need no test
        matrix = torch.cat([matrix, block(group)], dim=1)
        rank = min(numerical_rank(matrix), needed)
    size = 2
    while rank < needed and size <= len(observables):
        candidates = [
            g for g in combinations(observables, size) if group_size(g, states) <= largest and g not in chosen
        ]
        blocks = {g: block(g) for g in candidates}
        if candidates and rank < min(needed, numerical_rank(torch.cat([matrix, *blocks.values()], dim=1))):
            added: list[Group] = []
            while rank < needed and blocks:
                gains = {g: min(numerical_rank(torch.cat([matrix, b], dim=1)), needed) for g, b in blocks.items()}
                best = max(gains, key=lambda g: (gains[g], -group_size(g, states), -candidates.index(g)))
                if gains[best] <= rank:
                    break
                rank = gains[best]
                matrix = torch.cat([matrix, blocks.pop(best)], dim=1)
                added.append(best)
            chosen += added
        size += 1
    return _without_idle_groups(chosen, len(near[:singles]), rank, block), rank


def _without_idle_groups(
    chosen: list[Group], leaves: int, rank: int, block: Callable[[Group], Tensor]
) -> tuple[Group, ...]:
    """Drop product groups (all but the first ``leaves``) that later ones have made superfluous."""
    kept = list(chosen)
    for group in chosen[leaves:]:
        rest = [g for g in kept if g != group]
        if numerical_rank(torch.cat([block(g) for g in rest], dim=1)) >= rank:
            kept = rest
    return tuple(kept)
