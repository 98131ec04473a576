"""Generic ranks of a structure, computed with random parameters.

For almost all parameters the rank of a table such as P(inside, outside) has one maximal value, which a random draw attains.
Enumeration of all observables is infeasible; instead each observable has random weights in each row, and one exact upward and
downward pass turns them into messages. Products of random weights span all functions of the observables, so the messages span
all messages of evidence inside or outside of a separator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from torchpbp.exact.calibration import PotentialTree, potential_tree, shafer_shenoy
from torchpbp.exact.contraction import contract
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.exact.prior import Prior
from torchpbp.graph.junction_tree import JunctionTree
from torchpbp.planning.groups import GroupSearch
from torchpbp.planning.plan import Group
from torchpbp.planning.rank_bounds import RankBounds
from torchpbp.planning.spans import numerical_rank

_PROBE = object()


class StructureProbe:
    """Ranks of one random draw of parameters on a junction tree's structure.

    Args:
        tree: the junction tree; all its variables must have a number of states.
        seed: seed of the draw.
    """

    def __init__(self, tree: JunctionTree, seed: int) -> None:
        self.tree = tree
        # An undirected model multiplies many tables, and near-deterministic tables hide rank below rounding errors.
        sharpness = 0.5 if tree.graph.directed else 1.0
        self.network = DiscreteNetwork.random(tree.graph, seed=seed, concentration=sharpness)
        self._seed = seed

    @cached_property
    def _model(self) -> PotentialTree:
        """The draw on the junction tree, whose nodes have few neighbours, so observables below a node are close to each other."""
        return potential_tree(self.tree.full_tree(), self.network.states, self.network.factors)

    @cached_property
    def _prior(self) -> Prior:
        return Prior(self._model, self.network.states)

    @cached_property
    def _messages(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Per separator (probes, states) messages from inside, and from outside relative to those without evidence."""
        states = self.network.states
        largest = max(math.prod(states[v] for v in s) for s in self.tree.separators)
        generator = torch.Generator().manual_seed(self._seed)
        probes = largest + 8
        weights = {
            v: torch.randn(probes, states[v], generator=generator, dtype=torch.float64) for v in self.tree.leaf_of
        }
        run = shafer_shenoy(self._model, weights, probes, hosts=self.tree.leaf_of)
        plain = shafer_shenoy(self._model, {}, 1)
        inside = tuple(m.reshape(probes, -1) for m in run.upward)
        outside = tuple((m / p).reshape(probes, -1) for m, p in zip(run.downward, plain.downward, strict=True))
        weighted = tuple(i * p.reshape(1, -1) for i, p in zip(inside, plain.downward, strict=True))
        return weighted, outside

    def separator_rank(self, node: int) -> int:
        """Rank of P(all observables inside, all observables outside) across separator ``node``."""
        inside, outside = (side[node] for side in self._messages)
        size = inside.shape[1]
        return min(size, numerical_rank(_unit_rows(inside) @ _unit_rows(outside).T))

    def core_rank(self, node: int, core: Sequence[str]) -> int:
        """Rank of P(core, all observables outside)."""
        separator = tuple(sorted(self.tree.separators[node]))
        scope = tuple(dict.fromkeys((*core, *separator)))
        outside = self._messages[1][node]
        table = outside.reshape(-1, *[self.network.states[v] for v in separator])
        cross = contract([self._prior.joint(scope), table], [scope, (_PROBE, *separator)], (*core, _PROBE)).reshape(
            -1, len(outside)
        )
        return numerical_rank(_unit_columns(_unit_rows(cross)))

    def core_factor(self, node: int, core: Sequence[str]) -> Tensor:
        """(at most core states, separator states) R of P(core | separator) = Q R, with rows scaled as in :func:`scaled_cross`.

        Given the separator, core group and outside are independent, and Q does not affect singular values: with R in place of the
        core group, matrices are as small as the separator.
        """
        joint = self._prior.cross(tuple(core), tuple(sorted(self.tree.separators[node])))
        conditional = joint / joint.sum(dim=0, keepdim=True)
        return torch.linalg.qr(conditional / joint.sum(dim=1, keepdim=True).sqrt()).R

    def instrument_block(self, node: int, factor: Tensor, group: Sequence[str]) -> Tensor:
        """(rows of the factor, group states) cross moment, scaled to equal weight of rare and common states.

        Args:
            node: node below the separator.
            factor: factor of the core group, see :meth:`core_factor`.
            group: outside observables.
        """
        joint = self._prior.cross(tuple(sorted(self.tree.separators[node])), tuple(group))
        return factor @ joint / joint.sum(dim=0).sqrt()


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


def scaled_cross(table: Tensor) -> Tensor:
    """A joint table P(a, b) divided by √(P(a) P(b)), which gives rare and common states equal weight."""
    return table / (table.sum(dim=1, keepdim=True) * table.sum(dim=0, keepdim=True)).sqrt()


def _unit_rows(matrix: Tensor) -> Tensor:
    return matrix / matrix.norm(dim=1, keepdim=True).clamp(min=1e-300)


def _unit_columns(matrix: Tensor) -> Tensor:
    return matrix / matrix.norm(dim=0, keepdim=True).clamp(min=1e-300)
