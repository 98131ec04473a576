"""Generic ranks of forests in closed form: trees of variables whose separators are single variables.

For a variable h with k states, each branch of the tree expresses a generic subspace of the functions of h, which contains the
constant. For almost all parameters such subspaces are as independent as numbers of states allow: the joint functions of branches
of ranks r₁, r₂, … have dimension min(k, r₁ r₂ …), and the sums of their single functions min(k, 1 + Σ (rᵢ − 1)). The rank of
P(inside, outside) across h is the smaller one of both sides. Products of some observables, but not of all, have no such formula;
their functions of h are drawn at random, along the few edges from them to h.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from torchpbp.graph.junction_tree import JunctionTree
from torchpbp.planning.groups import GroupSearch
from torchpbp.planning.plan import Group
from torchpbp.planning.rank_bounds import RankBounds

Matrix = npt.NDArray[np.float64]


class ForestRanks:
    """Ranks on a junction tree of a forest.

    Args:
        tree: the junction tree; all its variables must have a number of states.
        bounds: exact rank bounds of its separators.
        seed: seed of the random draws for products of observables.
    """

    def __init__(self, tree: JunctionTree, bounds: RankBounds, seed: int) -> None:
        self.tree, self.bounds = tree, bounds
        self._states = {v: tree.graph.num_states(v) for v in tree.graph.names}
        self._number = {v: i for i, v in enumerate(self._states)}
        self._seed = seed
        self._edges: dict[tuple[str, str], Matrix] = {}
        self._chosen: dict[Hashable, tuple[tuple[tuple[int, ...], ...], int]] = {}
        self._above: dict[str, str] = {}
        self._depth: dict[str, int] = {}
        for root in self._states:
            if root in self._depth:
                continue
            self._above[root], self._depth[root] = "", 0
            queue = [root]
            for v in queue:
                for u in tree.graph.neighbors(v):
                    if u not in self._depth:
                        self._above[u], self._depth[u] = v, self._depth[v] + 1
                        queue.append(u)

    def separator_rank(self, node: int) -> int:
        """Rank of P(all observables inside, all observables outside) across separator ``node``."""
        return self.bounds.rank(node)

    def core_rank(self, node: int, core: Sequence[str]) -> int:
        """Rank of P(core, all observables outside)."""
        return min(self._spanned(node, core, math.prod), self.bounds.outside[node])

    def groups(self, search: GroupSearch) -> tuple[Group, tuple[Group, ...], int]:
        """Core group, instrument and the rank they reach. Equivalent separators are planned once."""
        return search.core(self.core_rank), *self._instrument(search)

    def _instrument(self, search: GroupSearch) -> tuple[tuple[Group, ...], int]:
        alone = search.near[: search.options.singles]
        if alone and self._alone_rank(search.node, alone) >= search.needed:
            return tuple(alone), search.needed
        likeness, names = self._likeness(search)
        key = likeness, search.needed
        if key not in self._chosen:
            chosen, reached = search.instrument(lambda group: self._block(search.node, group))
            place = {v: i for i, v in enumerate(names)}
            self._chosen[key] = tuple(tuple(place[v] for v in group) for group in chosen), reached
        places, reached = self._chosen[key]
        return tuple(tuple(names[i] for i in group) for group in places), reached

    # -- paths to the separator's variable -----------------------------------------------------------------------

    def _alone_rank(self, node: int, groups: Iterable[Group]) -> int:
        """Dimension of the sums of single groups' functions; 1 for groups of several observables, which need a draw."""
        if any(len(g) > 1 for g in groups):
            return 1
        return self._spanned(node, [v for g in groups for v in g], lambda ranks: 1 + sum(r - 1 for r in ranks))

    def _spanned(self, node: int, observables: Iterable[str], joined: Callable[[list[int]], int]) -> int:
        """Dimension of the functions of the separator's variable that observables express.

        Args:
            node: node below the separator.
            observables: observables that express the functions.
            joined: dimension of the functions of several branches as a function of their ranks.
        """
        (h,) = self.tree.separators[node] or ("",)
        members = set(observables)
        incoming: dict[str, list[int]] = {}
        for v, towards in self._ways(h, members):
            rank = self._states[v] if v in members else min(self._states[v], joined(incoming.get(v, [])))
            incoming.setdefault(towards, []).append(rank)
        if h in members:
            return self._states[h]
        return min(self._states[h], joined(incoming.get(h, []))) if h else 1

    def _ways(self, h: str, observables: Iterable[str]) -> list[tuple[str, str]]:
        """(variable, next variable towards h) on the paths from observables to h, farthest first."""
        steps: dict[str, tuple[int, str]] = {}
        for v in observables:
            way = self._way(v, h)
            for i, (a, b) in enumerate(pairwise(way)):
                steps[a] = i - len(way), b
        return [(v, towards) for v, (_, towards) in sorted(steps.items(), key=lambda s: (s[1][0], self._number[s[0]]))]

    def _way(self, v: str, h: str) -> list[str]:
        """Path of variables from v to h, inclusive; empty if they are not connected."""
        up, down = [v], [h]
        while h and up[-1] != down[-1]:
            side = up if self._depth[up[-1]] >= self._depth[down[-1]] else down
            above = self._above[side[-1]]
            if not above:
                return []
            side.append(above)
        return up + down[-2::-1] if h else []

    def _likeness(self, search: GroupSearch) -> tuple[Hashable, list[str]]:
        """A key that is equal for separators with equal paths to equal observables, and these observables in order."""
        near, states = search.near, search.states
        (h,) = self.tree.separators[search.node] or ("",)
        numbers, ways = {h: 0}, list[tuple[int, int]]()
        for group in near:
            for v in group:
                way = self._way(v, h)[::-1]
                for a, b in pairwise(way):
                    if b not in numbers:
                        numbers[b] = len(numbers)
                        ways.append((numbers[a], self._states[b]))
        names = [v for group in near for v in group]
        where = tuple(tuple((numbers.get(v, -1), states[v]) for v in group) for group in near)
        return (self._states.get(h, 1), tuple(ways), where), names

    # -- draws ---------------------------------------------------------------------------------------------------

    def _block(self, node: int, group: Group) -> Tensor:
        """(states of the separator's variable, joint states of the group) random functions of a group."""
        (h,) = self.tree.separators[node] or ("",)
        members = set(group)
        incoming: dict[str, Matrix] = {}

        def seen_at(v: str) -> Matrix:
            indicators = np.eye(self._states[v]) if v in members else np.ones((self._states[v], 1))
            return _pointwise(indicators, incoming[v]) if v in incoming else indicators

        for v, towards in self._ways(h, members):
            message = self._edge(v, towards) @ seen_at(v)
            incoming[towards] = _pointwise(incoming[towards], message) if towards in incoming else message
        return torch.from_numpy(seen_at(h) if h else np.ones((1, 1)))

    def _edge(self, v: str, towards: str) -> Matrix:
        """(states of ``towards``, states of ``v``) well-conditioned random matrix whose rows sum to 1.

        It is not a conditional distribution, but ranks are generic among all such matrices, and long paths stay accurate.
        """
        if (v, towards) not in self._edges:
            rng = np.random.default_rng([self._seed, self._number[v], self._number[towards]])
            rows, columns = self._states[towards], self._states[v]
            left, right = _basis(rng, rows), _basis(rng, columns)
            least = min(rows, columns)
            scale = rng.uniform(0.8, 1.25, least)
            scale[0] = np.sqrt(rows / columns)
            shift = rng.normal(size=columns) / columns
            self._edges[v, towards] = (left[:, :least] * scale) @ right[:, :least].T + (shift - shift.mean())
        return self._edges[v, towards]


def _pointwise(a: Matrix, b: Matrix) -> Matrix:
    """Products of all pairs of columns: (k, m) and (k, n) give (k, m n)."""
    return (a[:, :, None] * b[:, None, :]).reshape(len(a), -1)


def _basis(rng: np.random.Generator, size: int) -> Matrix:
    """A random orthogonal matrix whose first column is constant."""
    columns = rng.normal(size=(size, size))
    columns[:, 0] = 1.0
    basis, _ = np.linalg.qr(columns)
    return np.concatenate([np.full((size, 1), size**-0.5), basis[:, 1:]], axis=1)
