"""Moments of discrete data: probability tables of small groups of variables, counted in one pass.

With one-hot features and linear stage-1 regression every moment that learning needs is a joint probability of a few
variables. The tables are sums over rows: they can be accumulated batch by batch, merged across workers, and filled
from exact probabilities instead of counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from torchpbp.distributed import sum_over_processes
from torchpbp.errors import NotFittedError, StructureError
from torchpbp.inputs.sources import narrow_dtype
from torchpbp.stage2.covers import Cover, count_rows, find_covers

Scope = tuple[str, ...]

LARGEST_TABLE = 1 << 26
"""Cells of one table; beyond it a structure is refused rather than the memory exhausted."""
INDEX_BUDGET = 1 << 22
"""Indices held at once while counting few rows."""
ENOUGH_ROWS = 1 << 13
"""Rows from which on counting by covers pays; smaller mini-batches wait until there are as many."""


class JointTables:
    """Joint tables over several scopes, with counting by index arithmetic.

    Scopes contained in others are not stored: their tables are sums over the larger one.

    Args:
        scopes: groups of variables whose joint distribution is wanted.
        states: number of states of each variable; its order is the order of rows in :meth:`add`.
    """

    def __init__(self, scopes: Iterable[Iterable[str]], states: Mapping[str, int]) -> None:
        self.states = dict(states)
        position = {v: i for i, v in enumerate(self.states)}
        wanted = {tuple(sorted(set(s), key=position.__getitem__)) for s in scopes}
        self.scopes = _maximal(wanted)
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
        self.rows = 0.0
        self._counts = torch.zeros(self.offsets[-1], dtype=torch.float64)
        self._waiting: list[list[Tensor]] = []  # rows not counted yet, as narrow columns
        self._waiting_rows = 0
        self._covers: list[tuple[Cover, list[int]]] = []  # with the numbers of the tables they stand for
        self._cover_groups: list[tuple[Scope, list[int]]] | None = None
        members = [frozenset(s) for s in self.scopes]
        self._holders: dict[str, list[tuple[int, frozenset[str]]]] = {}  # smallest table first
        for i in sorted(range(len(sizes)), key=sizes.__getitem__):
            for v in self.scopes[i]:
                self._holders.setdefault(v, []).append((i, members[i]))
        self._index = self._index_arithmetic(position)

    def _index_arithmetic(self, position: Mapping[str, int]) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Scopes grouped by size: (rows of the data, strides, offsets), so that one product codes a whole group."""
        groups: dict[int, list[int]] = {}
        for i, scope in enumerate(self.scopes):
            groups.setdefault(len(scope), []).append(i)
        result = []
        for members in groups.values():
            rows = torch.tensor([[position[v] for v in self.scopes[i]] for i in members], dtype=torch.int64)
            strides = torch.tensor([_strides([self.states[v] for v in self.scopes[i]]) for i in members])
            offsets = torch.tensor([self.offsets[i] for i in members])
            result.append((rows, strides.to(torch.int64).reshape(rows.shape), offsets))
        return result

    def add(self, codes: Tensor | Sequence[Tensor]) -> None:
        """Count a mini-batch.

        Args:
            codes: (variables, rows) states of any integer dtype, or one (rows,) tensor per variable; variables in the order
                of ``states``. States must be within range.
        """
        columns = list(codes)
        total = len(columns[0]) if columns else 0
        keep = total < ENOUGH_ROWS  # those rows wait, and the caller may reuse his memory
        sizes = self.states.values()
        columns = [c.detach().to("cpu", narrow_dtype(s), copy=keep) for c, s in zip(columns, sizes, strict=True)]
        self.rows += total
        self._waiting.append(columns)
        self._waiting_rows += total
        if self._waiting_rows >= ENOUGH_ROWS:
            self._count_waiting()

    @property
    def counts(self) -> Tensor:
        """(cells of all tables,) counts as float64, one table after the other."""
        self._settle()
        return self._counts

    @counts.setter
    def counts(self, values: Tensor) -> None:
        self._settle()
        self._counts = values

    def _settle(self) -> None:
        """Count rows that still wait, and bring what the covers hold into the tables."""
        if self._waiting_rows:
            self._count_waiting()
        for cover, members in self._covers:
            if len(members) > 1:
                sums = cover.marginals([self.scopes[i] for i in members])
                for i, found in zip(members, sums, strict=True):
                    self._counts[self.offsets[i] : self.offsets[i + 1]] += found
        self._covers = []

    def _count_waiting(self) -> None:
        waiting, rows = self._waiting, self._waiting_rows
        self._waiting, self._waiting_rows = [], 0
        columns = waiting[0] if len(waiting) == 1 else [torch.cat(parts) for parts in zip(*waiting, strict=True)]
        if rows < ENOUGH_ROWS:
            self._count_directly(torch.stack([c.long() for c in columns]))
            return
        if not self._covers:
            self._covers = [(self._cover(group, held), held) for group, held in self._groups()]
        count_rows([cover for cover, _ in self._covers], dict(zip(self.states, columns, strict=True)))

    def _groups(self) -> list[tuple[Scope, list[int]]]:
        if self._cover_groups is None:
            self._cover_groups = find_covers(self.scopes, self.states)
        return self._cover_groups

    def _cover(self, group: Scope, members: list[int]) -> Cover:
        """A cover of a single table counts in place."""
        own = self._counts[self.offsets[members[0]] : self.offsets[members[0] + 1]] if len(members) == 1 else None
        return Cover(group, self.states, own)

    def _count_directly(self, codes: Tensor) -> None:
        """Count few rows, all tables of one size at once."""
        step = max(1, INDEX_BUDGET // max(1, len(self.scopes)))
        for start in range(0, codes.shape[1], step):
            part = codes[:, start : start + step]
            for rows, strides, offsets in self._index:
                cells = offsets.unsqueeze(1).expand(-1, part.shape[1])
                for k in range(rows.shape[1]):
                    cells = torch.addcmul(cells, part[rows[:, k]], strides[:, k].unsqueeze(1))
                found = cells.reshape(-1)
                if len(self._counts) <= 4 * len(found):
                    self._counts += torch.bincount(found, minlength=len(self._counts))
                else:
                    self._counts.index_add_(0, found, torch.ones(len(found), dtype=torch.float64))

    def merge(self, other: JointTables) -> None:
        """Add another worker's counts over the same scopes."""
        refused = "Tables can be merged only if they are over the same scopes and states"
        if other.states != self.states:
            both = dict.fromkeys((*self.states, *other.states))
            differ = {v: (self.states.get(v), other.states.get(v)) for v in both}
            differ = {v: pair for v, pair in differ.items() if pair[0] != pair[1]}
            raise StructureError(f"{refused}; numbers of states here and there: {differ}.")
        if other.scopes != self.scopes:
            here, there = set(self.scopes) - set(other.scopes), set(other.scopes) - set(self.scopes)
            raise StructureError(
                f"{refused}; only here: {sorted(here)[:3]}, only there: {sorted(there)[:3]}. Count with models of the same "
                "graph and options."
            )
        self.counts += other.counts
        self.rows += other.rows

    def restricted(self, scopes: Iterable[Iterable[str]]) -> JointTables:
        """Tables of their own over some of the scopes, or parts of them."""
        result = JointTables(scopes, self.states)
        if self.rows > 0:
            result.fill(self._sums)
        result.rows = self.rows
        return result

    def holds(self, variables: Sequence[str]) -> bool:
        """Whether some table has all these variables."""
        return not variables or self._holder(variables) is not None

    def sum_over_processes(self) -> None:
        """Add the counts of all processes, each of which has counted its share of the rows."""
        sum_over_processes(self.counts)
        self.rows = float(sum_over_processes(torch.tensor(self.rows, dtype=torch.float64)))

    def fill(self, joint: Callable[[Scope], Tensor]) -> None:
        """Take exact probabilities in place of counts."""
        counts = self.counts
        for i, scope in enumerate(self.scopes):
            counts[self.offsets[i] : self.offsets[i + 1]] = joint(scope).reshape(-1)
        self.rows = 1.0

    def table(self, variables: Sequence[str]) -> Tensor:
        """P(variables) with dimensions in the order asked for."""
        if self.rows <= 0:
            raise NotFittedError("No rows have been counted yet.")
        return self._sums(variables) / self.rows if variables else torch.ones((), dtype=torch.float64)

    def _holder(self, variables: Sequence[str]) -> int | None:
        """Number of the smallest table with all these variables."""
        wanted = set(variables)
        rarest = min(variables, key=lambda v: len(self._holders.get(v, ())))
        return next((i for i, members in self._holders.get(rarest, ()) if wanted <= members), None)

    def _sums(self, variables: Sequence[str]) -> Tensor:
        """Counts of the joint states of some variables, with dimensions in the order asked for."""
        best = self._holder(variables)
        if best is None:
            raise StructureError(f"No table holds the variables {tuple(variables)}.")
        scope = self.scopes[best]
        stored = self.counts[self.offsets[best] : self.offsets[best + 1]].reshape([self.states[v] for v in scope])
        summed = [axis for axis, v in enumerate(scope) if v not in variables]
        left = [v for v in scope if v in variables]
        found = stored.sum(dim=summed) if summed else stored
        return found.permute([left.index(v) for v in variables])

    def constant_variables(self) -> list[str]:
        """Variables with several states of which only one was ever seen."""
        return [v for v, s in self.states.items() if s > 1 and float(self.table([v]).max()) == 1.0]


def _maximal(scopes: Iterable[Scope]) -> tuple[Scope, ...]:
    """Scopes that no other scope contains, larger ones first."""
    kept: list[Scope] = []
    holders: dict[str, list[frozenset[str]]] = {}
    for scope in sorted(scopes, key=lambda s: (-len(s), s)):
        members = frozenset(scope)
        if scope and not any(members <= other for other in holders.get(scope[0], [])):
            kept.append(scope)
            for v in scope:
                holders.setdefault(v, []).append(members)
    return tuple(kept)


def _strides(sizes: Sequence[int]) -> list[int]:
    result = [1] * len(sizes)
    for i in range(len(sizes) - 2, -1, -1):
        result[i] = result[i + 1] * sizes[i + 1]
    return result
