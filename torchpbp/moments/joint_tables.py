"""Moments of discrete data: probability tables of small groups of variables, counted in one pass.

With one-hot features and linear stage-1 regression every moment that learning needs is a joint probability of a few
variables. The tables are sums over rows: they can be accumulated batch by batch, merged across workers, and filled
from exact probabilities instead of counts.

A missing value is one state more, behind the others. So rows with missing values are counted like all others, and what each table says
of the rows in which its variables are known can be read off afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchpbp.distributed import gather_objects, sum_over_processes
from torchpbp.errors import DataError, NotFittedError, StructureError
from torchpbp.graph.domains import Scope
from torchpbp.inputs.arrays import require_device
from torchpbp.inputs.sources import narrow_dtype
from torchpbp.moments.covers import Cover, RowCounter
from torchpbp.moments.table_layout import TableLayout, table_layout
from torchpbp.moments.table_reading import reading

INDEX_BUDGET = 1 << 19
"""Indices held at once while counting few rows."""
ENOUGH_ROWS = 1 << 13
"""Rows from which on counting by covers pays; smaller mini-batches wait until there are as many."""


class JointTables:
    """Joint tables over several scopes, with counting by index arithmetic.

    Scopes contained in others are not stored: their tables are sums over the larger one.

    Args:
        scopes: groups of variables whose joint distribution is wanted.
        states: number of states of each variable; its order is the order of rows in :meth:`add`.
        incomplete: variables of which values may be missing: state number ``states[v]``.
        device: of the counts. Empty tables follow the first rows that are counted.
    """

    def __init__(
        self,
        scopes: Iterable[Iterable[str]],
        states: Mapping[str, int],
        incomplete: Iterable[str] = (),
        device: torch.device | str = "cpu",
    ) -> None:
        self.states, self.incomplete = dict(states), frozenset(incomplete)
        self.layout = layout_of(scopes, self.states, self.incomplete)
        self.scopes, self.offsets = self.layout.scopes, self.layout.offsets
        self.rows = 0.0
        self._counts = torch.zeros(self.layout.cells, dtype=torch.float64, device=device)
        self._waiting: list[list[Tensor]] = []  # rows not counted yet, as narrow columns
        self._waiting_rows = 0
        self._covers: list[tuple[Cover, list[int]]] = []  # with the numbers of the tables they stand for
        self._counter: RowCounter | None = None

    def add(self, codes: Tensor | Sequence[Tensor]) -> None:
        """Count a mini-batch.

        Args:
            codes: (variables, rows) states of any integer dtype, or one (rows,) tensor per variable; variables in the order
                of ``states``. States must be within range; only ``incomplete`` variables may have missing values.
        """
        columns = list(codes)
        total = len(columns[0]) if columns else 0
        if columns and columns[0].device != self._counts.device:
            if self.rows:
                require_device("Rows to be counted", columns[0], self._counts.device, "the rows counted before")
            self._counts = self._counts.to(columns[0].device)
        keep = total < ENOUGH_ROWS  # those rows wait, and the caller may reuse his memory
        sizes = self.layout.states.values()
        columns = [c.detach().to(narrow_dtype(s), copy=keep) for c, s in zip(columns, sizes, strict=True)]
        self.rows += total
        self._waiting.append(columns)
        self._waiting_rows += total
        if self._waiting_rows >= ENOUGH_ROWS:
            self._count_waiting()

    @property
    def counts(self) -> Tensor:
        """(cells of all tables,) counts as float64, one table after the other."""
        self.settle()
        return self._counts

    @counts.setter
    def counts(self, values: Tensor) -> None:
        self.settle()
        self._counts = values

    def settle(self) -> None:
        """Count rows that still wait, and bring what the covers hold into the tables."""
        if self._waiting_rows:
            self._count_waiting()
        for cover, members in self._covers:
            if len(members) > 1:
                sums = cover.marginals([self.scopes[i] for i in members])
                for i, marginal in zip(members, sums, strict=True):
                    self._counts[self.offsets[i] : self.offsets[i + 1]] += marginal
        self._covers, self._counter = [], None

    def _count_waiting(self) -> None:
        waiting, rows = self._waiting, self._waiting_rows
        self._waiting, self._waiting_rows = [], 0
        columns = waiting[0] if len(waiting) == 1 else [torch.cat(parts) for parts in zip(*waiting, strict=True)]
        if rows < ENOUGH_ROWS:
            self._count_directly(torch.stack([c.long() for c in columns]))
            return
        if self._counter is None:
            self._covers = [(self._cover(group, held), held) for group, held in self.layout.covers]
            self._counter = RowCounter([cover for cover, _ in self._covers])
        self._counter.add(dict(zip(self.states, columns, strict=True)))

    def _cover(self, group: Scope, members: list[int]) -> Cover:
        """A cover of a single table counts in place."""
        own = self._counts[self.offsets[members[0]] : self.offsets[members[0] + 1]] if len(members) == 1 else None
        return Cover(group, self.layout.states, own, self._counts.device)

    def _count_directly(self, codes: Tensor) -> None:
        """Count few rows, as many tables at once as have their cells in a processor's cache."""
        tables = 0
        for cells in self.layout.cell_numbers(codes, max(1, INDEX_BUDGET // max(1, codes.shape[1]))):
            first, last = self.offsets[tables], self.offsets[tables + len(cells)]
            tables += len(cells)
            counts, flat = self._counts[first:last], cells.reshape(-1) - first
            if len(counts) <= 4 * len(flat):
                counts += torch.bincount(flat, minlength=len(counts))
            else:
                counts.index_add_(0, flat, counts.new_ones(len(flat)))

    def merge(self, other: JointTables) -> None:
        """Add another worker's counts over the same scopes."""
        reason = "Tables can be merged only if they are over the same scopes and states"
        if other.states != self.states:
            both = dict.fromkeys((*self.states, *other.states))
            differ = {v: (self.states.get(v), other.states.get(v)) for v in both}
            differ = {v: pair for v, pair in differ.items() if pair[0] != pair[1]}
            raise StructureError(f"{reason}; numbers of states here and there: {differ}.")
        if other.scopes != self.scopes:
            here, there = set(self.scopes) - set(other.scopes), set(other.scopes) - set(self.scopes)
            raise StructureError(
                f"{reason}; only here: {sorted(here)[:3]}, only there: {sorted(there)[:3]}. Count with models of the same "
                "graph and options."
            )
        self.widen(other.incomplete)
        self.counts += other.widened(self.incomplete).counts
        self.rows += other.rows

    def to(self, device: torch.device | str) -> JointTables:
        """The same counts on a device; the very same object if they are there."""
        counts = self.counts
        if counts.device == torch.device(device):
            return self
        return _restored(self.scopes, self.states, self.incomplete, counts.to(device), self.rows)

    def copy(self) -> JointTables:
        """An independent copy."""
        return _restored(self.scopes, self.states, self.incomplete, self.counts.clone(), self.rows)

    def __reduce__(self) -> tuple[Any, ...]:
        """Counts and what they are of; the layout is made again, once in a process."""
        return _restored, (self.scopes, self.states, sorted(self.incomplete), self.counts, self.rows)

    def widen(self, incomplete: Iterable[str]) -> None:
        """Make room for missing values of further variables."""
        wide = self.widened(incomplete)
        if wide is not self:
            self.incomplete, self.layout, self.offsets, self._counts = (
                wide.incomplete,
                wide.layout,
                wide.offsets,
                wide._counts,
            )

    def widened(self, incomplete: Iterable[str]) -> JointTables:
        """The same counts, with room for missing values of further variables."""
        every = self.incomplete.union(incomplete)
        if every == self.incomplete:
            return self
        counts = self.counts
        result = JointTables(self.scopes, self.states, every, counts.device)
        for i, scope in enumerate(self.scopes):
            room = result._counts[result.offsets[i] : result.offsets[i + 1]]
            old = counts[self.offsets[i] : self.offsets[i + 1]].reshape([self.layout.states[v] for v in scope])
            room.reshape([result.layout.states[v] for v in scope])[tuple(slice(n) for n in old.shape)] = old
        result.rows = self.rows
        return result

    def restricted(self, scopes: Iterable[Iterable[str]]) -> JointTables:
        """Tables of their own over some of the scopes, or parts of them."""
        result = JointTables(scopes, self.states, self.incomplete, self._counts.device)
        if self.rows > 0:
            result.fill(self.sums)
        result.rows = self.rows
        return result

    def holds(self, variables: Sequence[str]) -> bool:
        """Whether some table has all these variables."""
        return not variables or self.layout.holder(variables) is not None

    def sum_over_processes(self) -> None:
        """Add the counts of all processes, each of which has counted its share of the rows."""
        self.widen(v for theirs in gather_objects(sorted(self.incomplete)) for v in theirs)
        sum_over_processes(self.counts)
        self.rows = float(sum_over_processes(torch.tensor(self.rows, dtype=torch.float64, device="cpu")))

    def fill(self, joint: Callable[[Scope], Tensor]) -> None:
        """Take exact probabilities in place of counts."""
        counts = self.counts
        for i, scope in enumerate(self.scopes):
            counts[self.offsets[i] : self.offsets[i + 1]] = joint(scope).reshape(-1)
        self.rows = 1.0

    def table(self, variables: Sequence[str]) -> Tensor:
        """P(variables) with dimensions in the order asked for, from the rows in which all of them are known."""
        if self.rows <= 0:
            raise NotFittedError("No rows have been counted yet.")
        if not variables:
            return self._counts.new_ones(())
        sums = self.sums(variables)
        if self.incomplete.isdisjoint(variables):
            return sums / self.rows
        known = sums[tuple(slice(self.states[v]) for v in variables)]
        return known / self.known(known.sum(), variables)

    def known(self, rows: Tensor, variables: Iterable[str]) -> Tensor:
        """Numbers of rows in which variables are known; a DataError where there are none."""
        if self.incomplete and not bool((rows > 0).all()):
            raise DataError(
                f"Learning needs rows in which {', '.join(dict.fromkeys(variables))} are all known, and there are none. Collect "
                "such rows, or use a graph in which these variables are less closely tied."
            )
        return rows

    def sums(self, variables: Sequence[str]) -> Tensor:
        """Counts of the joint states of some variables, with dimensions in the order asked for."""
        return self.layout.marginal(self.counts, variables)

    def marginals(self) -> dict[str, Tensor]:
        """P(v) of every variable."""
        if self.rows <= 0:
            raise NotFittedError("No rows have been counted yet.")
        sizes = sorted(set(self.states.values()))
        alike = [[v for v in self.states if self.states[v] == size] for size in sizes]
        key = "marginals", tuple(self.states.values())  # a layout does not tell a missing value from a state
        read = reading(
            self.layout,
            key,
            lambda number: [number([(v,) for v in names], [n]) for names, n in zip(alike, sizes, strict=True)],
        )
        sums = {v: p for names, t in zip(alike, read(self.counts), strict=True) for v, p in zip(names, t, strict=True)}
        return {
            v: sums[v] / (self.known(sums[v].sum(), [v]) if v in self.incomplete else self.rows) for v in self.states
        }

    def missing_shares(self) -> dict[str, float]:
        """Share of missing values of each variable."""
        sums = {v: self.sums([v]) for v in self.states if v in self.incomplete}
        return {v: float(sums[v][-1] / self.rows) if v in sums else 0.0 for v in self.states}

    def constant_variables(self) -> list[str]:
        """Variables with several states of which only one was ever seen."""
        return [v for v, p in self.marginals().items() if len(p) > 1 and float(p.max()) == 1.0]


def count_tables(
    tables: Iterable[Mapping[str, Tensor]], groups: Iterable[Iterable[str]], states: Mapping[str, int]
) -> JointTables:
    """Count rows; room for missing values is made where the first ones turn up.

    Args:
        tables: variable -> (rows,) states, ``states[v]`` where missing.
        groups: of variables whose joint states are counted.
        states: number of states of each variable.
    """
    counts = JointTables(groups, states)
    for table in tables:
        if len(next(iter(table.values()))):
            counts.widen(v for v, n in states.items() if v not in counts.incomplete and int(table[v].max()) == n)
        counts.add([table[v] for v in states])
    return counts


def _restored(
    scopes: Sequence[Scope], states: Mapping[str, int], incomplete: Iterable[str], counts: Tensor, rows: float
) -> JointTables:
    tables = JointTables(scopes, states, incomplete)
    tables._counts, tables.rows = counts, rows
    return tables


def layout_of(
    scopes: Iterable[Iterable[str]], states: Mapping[str, int], incomplete: Iterable[str] = ()
) -> TableLayout:
    """Where the cells of such :class:`JointTables` lie, and how many there are, before any is allocated."""
    wider = frozenset(incomplete)
    return table_layout(tuple(tuple(s) for s in scopes), tuple((v, n + (v in wider)) for v, n in states.items()))
