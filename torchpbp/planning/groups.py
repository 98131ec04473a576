"""Core groups and instruments of separators.

A core group consists of the fewest observables below a separator that linearly determine all of them. At a leaf it is all of the
leaf's observables. At inner nodes it is a subset of the children's groups: together these determine all observables below, so a
subset of the same rank always exists, and the tables that learning needs stay small. Definition 1 of [PBP] requires a conditional
independence that latent models do not have; the algorithm uses rank.

An instrument is a union of product features of outside observables. It contains the observables of every near leaf; groups that
span leaves are added until the cross moment with the core group has full rank. Single leaves have no interactions, so a separator
with two variables needs at least one pair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, zip_longest

import torch
from torch import Tensor

from torchpbp.graph.junction_tree import JunctionTree
from torchpbp.planning.plan import Group, PlanOptions, group_size
from torchpbp.planning.spans import Span


@dataclass(frozen=True)
class GroupSearch:
    """The search for the groups of one separator.

    Args:
        tree: the junction tree.
        node: node below the separator.
        needed: rank to reach.
        cores: core groups of the nodes below.
        near: observables of outside leaves, nearest first.
        states: number of states (or features) of each observable.
        options: options of the plan.
    """

    tree: JunctionTree
    node: int
    needed: int
    cores: Mapping[int, Group]
    near: Sequence[Group]
    states: Mapping[str, int]
    options: PlanOptions

    # -- core group ----------------------------------------------------------------------------------------------

    def core(self, core_rank: Callable[[int, Group], int]) -> Group:
        """A leaf's observables, or a minimal part of the children's groups.

        Args:
            core_rank: function of a node and a group, the rank of P(group, all observables outside).
        """
        leaf = self.tree.leaf_observables[self.node]
        return leaf or self.minimal_core(self.core_candidates(), lambda group: core_rank(self.node, group))

    def core_candidates(self) -> list[str]:
        """Members of the children's groups, nearest leaf first, one from each child in turn."""
        below = sorted(self.tree.children[self.node], key=lambda c: (not self.tree.leaf_observables[c], c))
        in_turn = chain.from_iterable(zip_longest(*(self.cores[c] for c in below)))
        return [v for v in in_turn if v is not None]

    def minimal_core(self, candidates: Iterable[str], rank_of: Callable[[Group], int]) -> Group:
        """Grow a group greedily until it reaches the rank, then drop members that are not needed.

        Args:
            candidates: observables in order of preference.
            rank_of: rank of a group.
        """
        group: Group = ()
        rank = 0
        rest = list(candidates)
        while rest and rank < self.needed:
            scored = [(min(rank_of((*group, v)), self.needed), -self.states[v], -i, v) for i, v in enumerate(rest)]
            best, *_, chosen = max(scored)
            if best <= rank:  # no single member raises the rank, but pairs may: take the nearest
                chosen = rest[0]
            group = (*group, chosen)
            rank = max(best, rank)
            rest.remove(chosen)
        for v in sorted(group, key=lambda v: -self.states[v]):
            smaller = tuple(u for u in group if u != v)
            if smaller and rank_of(smaller) >= rank:
                group = smaller
        return group

    # -- instrument ----------------------------------------------------------------------------------------------

    def instrument(self, block: Callable[[Group], Tensor]) -> tuple[tuple[Group, ...], int]:
        """The nearest leaves as separate groups, then product groups until the rank is reached.

        Args:
            block: cross moment of the core group with a group.

        Returns:
            The groups and the rank they reach.
        """
        if not self.near:
            return ((),), 1  # nothing outside: the constant
        chosen: list[Group] = list(self.near[: self.options.singles])
        observables = [v for group in self.near for v in group][: self.options.pool]
        blocks = {chosen[0]: block(chosen[0])}
        span = Span.of(blocks[chosen[0]])
        for group in chosen[1:]:
            blocks[group] = block(group)
            if span.rank < self.needed:  # further single leaves reduce variance and need no test
                span = span.with_columns(blocks[group])
        leaves = len(chosen)
        for size in range(2, len(observables) + 1):
            if span.rank >= self.needed:
                break
            candidates = {
                g: block(g)
                for g in combinations(observables, size)
                if group_size(g, self.states) <= self.options.largest_group and g not in blocks
            }
            span = span.scaled_for(list(candidates.values()))
            while added := self._added_groups(span, self.needed, chosen, candidates):
                more = blocks | {g: candidates.pop(g) for g in added}
                exact = Span.of(torch.cat(list(more.values()), dim=1), span.scale)
                if exact.rank <= span.rank:  # the gain was a rounding error
                    break
                span, blocks, chosen = exact, more, [*chosen, *added]
        rank = min(span.rank, self.needed)
        return self._without_idle_groups(blocks, leaves, rank), rank

    def _added_groups(
        self, span: Span, needed: int, chosen: Sequence[Group], candidates: Mapping[Group, Tensor]
    ) -> list[Group]:
        """Product groups to add until a rank is reached, greedily by largest gain.

        The gain of a group never grows when others are added, so earlier gains are bounds, and a gain is recomputed only while its
        bound is the largest.

        Args:
            span: span of the groups chosen so far.
            needed: rank to reach.
            chosen: groups chosen so far.
            candidates: further groups with their cross moments.
        """
        order = {g: (-group_size(g, self.states), -i) for i, g in enumerate(candidates)}
        gains = {g: self._new_functions(g, chosen) for g in candidates}
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

    def _new_functions(self, group: Group, chosen: Sequence[Group]) -> int:
        """Dimension of a group's functions modulo sums of functions of its intersections with the chosen groups."""
        parts = {frozenset(group).intersection(g) for g in chosen}
        return sum(
            math.prod(self.states[v] - 1 for v in part)
            for size in range(1, len(group) + 1)
            for part in combinations(group, size)
            if not any(larger.issuperset(part) for larger in parts)
        )

    def _without_idle_groups(self, blocks: Mapping[Group, Tensor], leaves: int, rank: int) -> tuple[Group, ...]:
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
            for group in self._added_groups(span, rank, selected, dropped) or list(dropped):
                selected.append(group)
                del dropped[group]
        return tuple(g for g in blocks if g not in dropped)
