"""Ranks of any junction tree by random draws, where no closed form is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchpbp.graph.junction_tree import JunctionTree
from torchpbp.planning.core_groups import choose_core
from torchpbp.planning.instruments import choose_instruments
from torchpbp.planning.plan import Group, PlanOptions
from torchpbp.planning.rank_bounds import RankBounds
from torchpbp.planning.ranks import StructureProbe


class ProbedRanks:
    """Two draws of random parameters; the second is made only where the first falls short of the possible rank.

    Args:
        tree: the junction tree; all its variables must have a number of states.
        bounds: of its ranks.
        seed: of the first draw.
    """

    def __init__(self, tree: JunctionTree, bounds: RankBounds, seed: int) -> None:
        self._tree, self._bounds, self._seed = tree, bounds, seed
        self._draws = [StructureProbe(tree, seed)]

    def __getitem__(self, index: int) -> StructureProbe:
        while len(self._draws) <= index:
            self._draws.append(StructureProbe(self._tree, self._seed + len(self._draws)))
        return self._draws[index]

    def separator_rank(self, node: int) -> int:
        """Rank of P(all observables inside, all observables outside) across separator ``node``."""
        first = self[0].separator_rank(node)
        return first if first == self._bounds.rank(node) else max(first, self[1].separator_rank(node))

    def groups(
        self,
        node: int,
        needed: int,
        cores: Mapping[int, Group],
        near: Sequence[Group],
        states: Mapping[str, int],
        options: PlanOptions,
    ) -> tuple[Group, tuple[Group, ...], int]:
        """Core group, instrument and the rank they reach, see :meth:`ForestRanks.groups`."""
        first = self._by_draw(self[0], node, needed, cores, near, states, options)
        if first[-1] == needed:
            return first
        second = self._by_draw(self[1], node, needed, cores, near, states, options)
        return second if second[-1] > first[-1] else first

    def _by_draw(
        self,
        probe: StructureProbe,
        node: int,
        needed: int,
        cores: Mapping[int, Group],
        near: Sequence[Group],
        states: Mapping[str, int],
        options: PlanOptions,
    ) -> tuple[Group, tuple[Group, ...], int]:
        core = choose_core(self._tree, node, needed, cores, probe.core_rank, states)
        factor = probe.core_factor(node, core)
        instrument, reached = choose_instruments(
            near,
            needed,
            lambda group: probe.instrument_block(node, factor, group),
            states,
            options.singles,
            options.pool,
            options.largest_group,
        )
        return core, instrument, reached
