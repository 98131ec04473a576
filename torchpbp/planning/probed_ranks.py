"""Ranks of any junction tree by random draws, for trees without a closed form."""

from __future__ import annotations

from torchpbp.graph.junction_tree import JunctionTree
from torchpbp.planning.group_search import GroupSearch
from torchpbp.planning.plan import Group
from torchpbp.planning.rank_bounds import RankBounds
from torchpbp.planning.ranks import StructureProbe


class ProbedRanks:
    """Ranks by two draws of random parameters; the second is used only if the first is below the bound.

    Args:
        tree: the junction tree; all its variables must have a number of states.
        bounds: bounds of its ranks.
        seed: seed of the first draw.
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

    def groups(self, search: GroupSearch) -> tuple[Group, tuple[Group, ...], int]:
        """Core group, instrument and the rank they reach."""
        first = self._by_draw(self[0], search)
        if first[-1] == search.needed:
            return first
        second = self._by_draw(self[1], search)
        return second if second[-1] > first[-1] else first

    @staticmethod
    def _by_draw(probe: StructureProbe, search: GroupSearch) -> tuple[Group, tuple[Group, ...], int]:
        core = search.core(probe.core_rank)
        factor = probe.core_factor(search.node, core)
        return core, *search.instrument(lambda group: probe.instrument_block(search.node, factor, group))
