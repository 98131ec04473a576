"""The frozen plan of a model: for each separator its core group, its instrument and the size of its message."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from torchpbp.arguments import check_counts
from torchpbp.errors import RankWarning, StructureError
from torchpbp.graph.junction_tree import JunctionTree
from torchpbp.planning.core_groups import core_candidates, group_size, minimal_core_group
from torchpbp.planning.instruments import Group, choose_instruments
from torchpbp.planning.ranks import StructureProbe


@dataclass(frozen=True)
class SpecificationOptions:
    """How the plan is made.

    Args:
        rank: at most so many dimensions per message; None for what the latent cardinalities imply.
        singles: number of nearest outside observables that enter the instrument alone.
        pool: number of nearest outside observables from which product groups are formed.
        largest_group: most joint states of one product group.
        strict: raise where the rank condition cannot be met, instead of a warning.
        seed: of the random draws behind generic ranks.
    """

    rank: int | None = None
    singles: int = 8
    pool: int = 6
    largest_group: int = 4096
    strict: bool = False
    seed: int = 20200207

    def __post_init__(self) -> None:
        check_counts(singles=self.singles, pool=self.pool, largest_group=self.largest_group)
        if self.rank is not None:
            check_counts(rank=self.rank)


@dataclass(frozen=True)
class SeparatorPlan:
    """What is learned at one separator.

    Args:
        node: the tree node below the separator.
        core: core group α(S).
        instrument: groups of outside observables; the empty group is the constant.
        rank: dimensions of the message.
        needed: rank of P(inside, outside) that the structure implies.
        reached: rank of the cross moment of core group and instrument.
    """

    node: int
    core: Group
    instrument: tuple[Group, ...]
    rank: int
    needed: int
    reached: int


@dataclass(frozen=True)
class Specification:
    """Plans of all separators; ``plans[i]`` belongs to tree node ``i + 1``."""

    plans: tuple[SeparatorPlan, ...]

    def plan(self, node: int) -> SeparatorPlan:
        return self.plans[node - 1]

    def to_list(self) -> list[dict[str, Any]]:
        """Plain lists and numbers, for saving. Equal groups are one list, which a file holds once."""
        groups: dict[Group, list[str]] = {}

        def listed(group: Group) -> list[str]:
            return groups.setdefault(group, list(group))

        return [
            {
                "node": p.node,
                "core": listed(p.core),
                "instrument": [listed(g) for g in p.instrument],
                "rank": p.rank,
                "needed": p.needed,
                "reached": p.reached,
            }
            for p in self.plans
        ]

    @classmethod
    def from_list(cls, saved: list[dict[str, Any]]) -> Specification:
        """Inverse of :meth:`to_list`.

        Raises:
            StructureError: plans that are not numbered like the nodes, or whose numbers are none.
        """
        plans = []
        for node, p in enumerate(saved, 1):
            numbers = {name: p[name] for name in ("node", "rank", "needed", "reached")}
            if numbers["node"] != node or any(type(n) is not int or n < 0 for n in numbers.values()):
                raise StructureError(f"Plan of node {node}: expected its number, ranks from 0 on, got {numbers}.")
            plans.append(SeparatorPlan(core=tuple(p["core"]), instrument=tuple(map(tuple, p["instrument"])), **numbers))
        return cls(tuple(plans))


def specify(
    tree: JunctionTree, options: SpecificationOptions | None = None, sizes: Mapping[str, int] | None = None
) -> Specification:
    """Choose core groups bottom-up, then instruments, by generic rank.

    A second random draw is consulted only where the first falls short of what could be reached.

    Args:
        tree: junction tree of a graph whose variables all have a number of states.
        options: see :class:`SpecificationOptions`.
        sizes: feature dimensions of each observable, by which groups are limited; its number of states by default.
    """
    options = options or SpecificationOptions()
    specification = _planned(tree, replace(options, strict=False), None if sizes is None else tuple(sizes.items()))
    for plan in reversed(specification.plans):
        if plan.reached < plan.needed:
            _report(tree, plan.node, plan.needed, plan.reached, options)
    return specification


@lru_cache(maxsize=64)
def _planned(
    tree: JunctionTree, options: SpecificationOptions, items: tuple[tuple[str, int], ...] | None
) -> Specification:
    """A plan depends on nothing else, and models of one structure are made again and again: one per class, fold or seed."""
    sizes = None if items is None else dict(items)
    probes = _Probes(tree, options.seed)
    plans: dict[int, SeparatorPlan] = {}
    cores: dict[int, Group] = {}
    for node in range(len(tree) - 1, 0, -1):
        needed = probes.separator_rank(node)
        core, instrument, reached = _groups(tree, node, needed, cores, probes[0], options, sizes)
        if reached < needed:
            second = _groups(tree, node, needed, cores, probes[1], options, sizes)
            if second[-1] > reached:
                core, instrument, reached = second
        cores[node] = core
        rank = needed if options.rank is None else min(needed, options.rank)
        plans[node] = SeparatorPlan(node, core, instrument, rank, needed, reached)
    return Specification(tuple(plans[node] for node in range(1, len(tree))))


def _groups(
    tree: JunctionTree,
    node: int,
    needed: int,
    cores: Mapping[int, Group],
    probe: StructureProbe,
    options: SpecificationOptions,
    sizes: Mapping[str, int] | None,
) -> tuple[Group, tuple[Group, ...], int]:
    """Core group, instrument and the rank they reach, by one draw of parameters."""
    states = probe.network.states if sizes is None else sizes
    core = tree.leaf_observables[node]
    if not core:
        core = minimal_core_group(
            core_candidates(tree, node, cores), needed, lambda group: probe.core_rank(node, group), states
        )
    instrument, reached = choose_instruments(
        _near_leaves(tree, node, options, states),
        needed,
        lambda group: probe.instrument_block(core, group),
        states,
        options.singles,
        options.pool,
        options.largest_group,
    )
    return core, instrument, reached


def _near_leaves(tree: JunctionTree, node: int, options: SpecificationOptions, sizes: Mapping[str, int]) -> list[Group]:
    """Observables of each outside leaf, nearest leaf first; a leaf too large for one group is taken apart."""
    found = tree.distances(node, max(options.singles, options.pool))
    leaves = dict.fromkeys(tree.leaf_of[v] for _, v in found)
    groups = [tree.leaf_observables[leaf] for leaf in leaves]
    return [
        part for g in groups for part in ([g] if group_size(g, sizes) <= options.largest_group else [(v,) for v in g])
    ]


class _Probes:
    """Two draws, the second made only when the first leaves a doubt."""

    def __init__(self, tree: JunctionTree, seed: int) -> None:
        self._tree, self._seed = tree, seed
        self._draws = [StructureProbe(tree, seed)]
        self.states: Mapping[str, int] = self._draws[0].network.states

    def __getitem__(self, index: int) -> StructureProbe:
        while len(self._draws) <= index:
            self._draws.append(StructureProbe(self._tree, self._seed + len(self._draws)))
        return self._draws[index]

    def separator_rank(self, node: int) -> int:
        first = self[0].separator_rank(node)
        bound = group_size(tuple(self._tree.separators[node]), self.states)
        return first if first == bound else max(first, self[1].separator_rank(node))


def _report(tree: JunctionTree, node: int, needed: int, reached: int, options: SpecificationOptions) -> None:
    text = (
        f"Separator {tree.separator_name(node)}: instrument rank {reached}, needs {needed}. Answers that cross it will be "
        "biased. Add outside observables, raise pool= or largest_group=, or lower the latent cardinality."
    )
    if options.strict:
        raise StructureError(text)
    warnings.warn(text, RankWarning, stacklevel=4)
