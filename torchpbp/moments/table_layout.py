"""Layout of the cells of many joint tables in one vector.

The layout depends on the groups of variables alone. It is computed once per structure and shared by all fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain, combinations

import torch
from torch import Tensor

from torchpbp.errors import StructureError
from torchpbp.graph.domains import Scope
from torchpbp.grouping import grouped
from torchpbp.moments.covers import find_covers

LARGEST_TABLE = 1 << 31
"""Largest number of cells of one table, 16 GiB: it holds even for plans without a budget."""


class TableLayout:
    """Concatenated tables over several scopes in a vector. Scopes contained in others are not stored.

    Args:
        scopes: groups of variables to count jointly.
        states: number of states of each variable, in the order of the data.

    Attributes:
        cells: number of cells of all tables.
    """

    def __init__(self, scopes: Iterable[Scope], states: Mapping[str, int]) -> None:
        self.states = dict(states)
        self.position = {v: i for i, v in enumerate(self.states)}
        self.scopes = _maximal({tuple(sorted(set(s), key=self.position.__getitem__)) for s in scopes})
        sizes = [math.prod(self.states[v] for v in s) for s in self.scopes]
        for scope, size in zip(self.scopes, sizes, strict=True):
            if size > LARGEST_TABLE:
                raise StructureError(
                    f"Learning would need a table with {size:,} cells over {scope}, at most {LARGEST_TABLE:,} are allowed. "
                    "Use fewer states, a smaller largest_group=, or a structure with smaller cliques."
                )
        self.offsets = [0]
        for size in sizes:
            self.offsets.append(self.offsets[-1] + size)
        self.cells = self.offsets[-1]
        self._members = [frozenset(s) for s in self.scopes]
        self._steps: dict[int, dict[str, tuple[int, int]]] = {}
        self._index = {m: i for i, m in enumerate(self._members)}
        self._holders: dict[Scope, list[int]] = {}  # smallest table first
        for i in sorted(range(len(sizes)), key=sizes.__getitem__):
            for part in _parts(self.scopes[i]):
                self._holders.setdefault(part, []).append(i)

    @classmethod
    def of(
        cls, scopes: Iterable[Iterable[str]], states: Mapping[str, int], incomplete: Iterable[str] = ()
    ) -> TableLayout:
        """The cached layout of tables in which a missing value of the incomplete variables is an additional last state."""
        wider = frozenset(incomplete)
        return _cached(tuple(tuple(s) for s in scopes), tuple((v, n + (v in wider)) for v, n in states.items()))

    @cached_property
    def covers(self) -> list[tuple[Scope, list[int]]]:
        """Covers of the tables: groups of variables, and the indices of the tables in each."""
        return find_covers(self.scopes, self.states)

    @cached_property
    def index_arithmetic(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Scopes grouped by size: (rows of the data, strides, offsets), for coding a group at once."""
        result = []
        for members in grouped(range(len(self.scopes)), lambda i: len(self.scopes[i])).values():
            position = [[self.position[v] for v in self.scopes[i]] for i in members]
            rows = torch.tensor(position, dtype=torch.int64, device="cpu")
            steps = torch.tensor([strides([self.states[v] for v in self.scopes[i]]) for i in members], device="cpu")
            offsets = torch.tensor([self.offsets[i] for i in members], device="cpu")
            result.append((rows, steps.to(torch.int64).reshape(rows.shape), offsets))
        return result

    def cell_numbers(self, codes: Tensor, at_once: int | None = None) -> Iterator[Tensor]:
        """Cells in which rows are counted: (tables, rows) numbers, for several tables of one size at a time, in order.

        Args:
            codes: (variables, rows) states.
            at_once: largest number of tables at a time; all of one size by default.
        """
        for index in self.index_arithmetic:
            for start in range(0, len(index[0]), at_once or len(index[0])):
                rows, steps, offsets = (x[start:][:at_once].to(codes.device) for x in index)
                cells = offsets.unsqueeze(1).expand(-1, codes.shape[1])
                for k in range(rows.shape[1]):
                    cells = torch.addcmul(cells, codes[rows[:, k]], steps[:, k].unsqueeze(1))
                yield cells

    def holder(self, variables: Sequence[str]) -> int | None:
        """Index of the smallest table with all these variables (at least one); None if there is no such table."""
        wanted = frozenset(variables)
        if wanted in self._index:
            return self._index[wanted]
        if not wanted <= self.position.keys():
            return None
        part = tuple(sorted(wanted, key=self.position.__getitem__)[:2])
        return next((i for i in self._holders.get(part, ()) if wanted <= self._members[i]), None)

    def steps(self, variables: Sequence[str]) -> tuple[int, dict[str, tuple[int, int]]]:
        """The smallest table with all these variables: its offset, and the states and stride of each of its variables.

        Raises:
            StructureError: no table holds them all.
        """
        best = self.holder(variables) if variables else 0  # the sum of all cells of any table
        if best is None:
            raise StructureError(f"No table holds the variables {tuple(variables)}.")
        if best not in self._steps:
            scope = self.scopes[best]
            sizes = [self.states[v] for v in scope]
            self._steps[best] = dict(zip(scope, zip(sizes, strides(sizes), strict=True), strict=True))
        return self.offsets[best], self._steps[best]

    def marginal(self, counts: Tensor, variables: Sequence[str]) -> Tensor:
        """Counts of the joint states of some variables, with dimensions in the order of ``variables``.

        Args:
            counts: (cells of all tables,).
            variables: variables of some table.
        """
        offset, steps = self.steps(variables)
        sizes = [size for size, _ in steps.values()]
        stored = counts[offset : offset + math.prod(sizes)].reshape(sizes)
        summed = [axis for axis, v in enumerate(steps) if v not in variables]
        left = [v for v in steps if v in variables]
        marginal = stored.sum(dim=summed) if summed else stored
        return marginal.permute([left.index(v) for v in variables])


@lru_cache(maxsize=64)
def _cached(scopes: tuple[Scope, ...], states: tuple[tuple[str, int], ...]) -> TableLayout:
    return TableLayout(scopes, dict(states))


def _maximal(scopes: Iterable[Scope]) -> tuple[Scope, ...]:
    """Scopes that no other scope contains, larger ones first."""
    maximal: list[Scope] = []
    holders: dict[Scope, list[frozenset[str]]] = {}
    for scope in sorted(scopes, key=lambda s: (-len(s), s)):
        members = frozenset(scope)
        if scope and not any(members <= other for other in holders.get(scope[:2], [])):
            maximal.append(scope)
            for part in _parts(scope):
                holders.setdefault(part, []).append(members)
    return tuple(maximal)


def _parts(scope: Scope) -> Iterable[Scope]:
    """Single variables and pairs of a scope, the keys of a search for tables: few tables contain the same pair."""
    return chain(combinations(scope, 1), combinations(scope, 2))


def strides(sizes: Sequence[int]) -> list[int]:
    """Strides of the dimensions of a contiguous table."""
    result = [1] * len(sizes)
    for i in range(len(sizes) - 2, -1, -1):
        result[i] = result[i + 1] * sizes[i + 1]
    return result
