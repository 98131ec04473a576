"""Moments of discrete data: probability tables of small groups of variables, counted in one pass.

With one-hot features and linear stage-1 regression every moment that learning needs is a joint probability of a few
variables. The tables are sums over rows: they can be accumulated batch by batch, merged across workers, and filled
from exact probabilities instead of counts.

A missing value is an additional last state. Rows with missing values are thus counted like all others, and the complete rows of each
table remain separate cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchpbp.distributed import gather_objects, sum_over_processes
from torchpbp.errors import DataError, NotFittedError, StructureError
from torchpbp.graph.domains import Scope
from torchpbp.inputs.arrays import require_device
from torchpbp.inputs.clusters import PartitionedTable, PartitionReader
from torchpbp.inputs.missing_values import MissingValues
from torchpbp.inputs.sources import narrow_dtype
from torchpbp.moments.covers import Cover, RowCounter
from torchpbp.moments.table_layout import TableLayout
from torchpbp.moments.table_reading import reading

INDEX_BUDGET = 1 << 19
"""Largest number of indices in memory while counting few rows."""
ENOUGH_ROWS = 1 << 13
"""Smallest number of rows for which counting by covers is faster; smaller mini-batches are buffered."""


class JointTables:
    """Joint tables over several scopes, with counting by index arithmetic.

    Scopes contained in others are not stored: their tables are marginals of the larger one.

    Args:
        scopes: groups of variables to count jointly.
        states: number of states of each variable; its order is the order of rows in :meth:`add`.
        incomplete: variables that may have missing values, which are the state ``states[v]``.
        device: device of the counts. Empty tables move to the device of the first rows.
    """

    def __init__(
        self,
        scopes: Iterable[Iterable[str]],
        states: Mapping[str, int],
        incomplete: Iterable[str] = (),
        device: torch.device | str = "cpu",
    ) -> None:
        self.states, self.incomplete = dict(states), frozenset(incomplete)
        self.layout = TableLayout.of(scopes, self.states, self.incomplete)
        self.scopes, self.offsets = self.layout.scopes, self.layout.offsets
        self.rows = 0.0
        self._counts = torch.zeros(self.layout.cells, dtype=torch.float64, device=device)
        self._waiting: list[list[Tensor]] = []  # buffered rows, as narrow columns
        self._waiting_rows = 0
        self._covers: list[tuple[Cover, list[int]]] = []  # covers, and the indices of their tables
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
        keep = total < ENOUGH_ROWS  # buffered rows are copied, since the caller may reuse the memory
        sizes = self.layout.states.values()
        columns = [c.detach().to(narrow_dtype(s), copy=keep) for c, s in zip(columns, sizes, strict=True)]
        self.rows += total
        self._waiting.append(columns)
        self._waiting_rows += total
        if self._waiting_rows >= ENOUGH_ROWS:
            self._count_waiting()

    @property
    def counts(self) -> Tensor:
        """(cells of all tables,) float64 counts of the concatenated tables."""
        self.settle()
        return self._counts

    @counts.setter
    def counts(self, values: Tensor) -> None:
        self.settle()
        self._counts = values

    def settle(self) -> None:
        """Count buffered rows, and add the counts of covers to the tables."""
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
        """A cover; that of a single table counts in place."""
        table = self._counts[self.offsets[members[0]] : self.offsets[members[0] + 1]] if len(members) == 1 else None
        return Cover(group, self.layout.states, table, self._counts.device)

    def _count_directly(self, codes: Tensor) -> None:
        """Count few rows, for as many tables at once as fit into the processor's cache."""
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
        """The same counts on a device; the object itself if the device is unchanged."""
        counts = self.counts
        if counts.device == torch.device(device):
            return self
        return _restored(self.scopes, self.states, self.incomplete, counts.to(device), self.rows)

    def copy(self) -> JointTables:
        """An independent copy."""
        return _restored(self.scopes, self.states, self.incomplete, self.counts.clone(), self.rows)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle counts, scopes and states; the layout is recomputed, once per process."""
        return _restored, (self.scopes, self.states, sorted(self.incomplete), self.counts, self.rows)

    def widen(self, incomplete: Iterable[str]) -> None:
        """Extend the tables in place for missing values of further variables."""
        wide = self.widened(incomplete)
        if wide is not self:
            self.incomplete, self.layout, self.offsets, self._counts = (
                wide.incomplete,
                wide.layout,
                wide.offsets,
                wide._counts,
            )

    def widened(self, incomplete: Iterable[str]) -> JointTables:
        """The same counts in tables extended for missing values of further variables."""
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
        """Independent tables over some of the scopes, or subsets of them."""
        result = JointTables(scopes, self.states, self.incomplete, self._counts.device)
        if self.rows > 0:
            result.fill(self.sums)
        result.rows = self.rows
        return result

    def holds(self, variables: Sequence[str]) -> bool:
        """Whether some table contains all these variables."""
        return not variables or self.layout.holder(variables) is not None

    def sum_over_processes(self) -> None:
        """Replace the counts by the sum over all processes."""
        self.widen(v for theirs in gather_objects(sorted(self.incomplete)) for v in theirs)
        sum_over_processes(self.counts)
        self.rows = float(sum_over_processes(torch.tensor(self.rows, dtype=torch.float64, device="cpu")))

    def fill(self, joint: Callable[[Scope], Tensor]) -> None:
        """Replace the counts by exact probabilities."""
        counts = self.counts
        for i, scope in enumerate(self.scopes):
            counts[self.offsets[i] : self.offsets[i + 1]] = joint(scope).reshape(-1)
        self.rows = 1.0

    def table(self, variables: Sequence[str]) -> Tensor:
        """P(variables) with dimensions in the order of ``variables``, from the rows that observe all of them."""
        if self.rows <= 0:
            raise NotFittedError("No rows have been counted yet.")
        if not variables:
            return self._counts.new_ones(())
        sums = self.sums(variables)
        if self.incomplete.isdisjoint(variables):
            return sums / self.rows
        complete = sums[tuple(slice(self.states[v]) for v in variables)]
        return complete / self.known(complete.sum(), variables)

    def known(self, rows: Tensor, variables: Iterable[str]) -> Tensor:
        """The numbers of rows that observe variables; raises a DataError if one is 0."""
        if self.incomplete and not bool((rows > 0).all()):
            raise DataError(
                f"Learning needs rows in which {', '.join(dict.fromkeys(variables))} are all known, and there are none. Collect "
                "such rows, or use a graph in which these variables are less closely tied."
            )
        return rows

    def sums(self, variables: Sequence[str]) -> Tensor:
        """Counts of the joint states of some variables, with dimensions in the order of ``variables``."""
        return self.layout.marginal(self.counts, variables)

    def marginals(self) -> dict[str, Tensor]:
        """P(v) of every variable."""
        if self.rows <= 0:
            raise NotFittedError("No rows have been counted yet.")
        sizes = sorted(set(self.states.values()))
        alike = [[v for v in self.states if self.states[v] == size] for size in sizes]
        key = "marginals", tuple(self.states.values())  # layouts do not distinguish missing values from states
        read = reading(
            self.layout,
            key,
            lambda cells_of: [cells_of([(v,) for v in names], [n]) for names, n in zip(alike, sizes, strict=True)],
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
        """Variables with several states of which only one occurs."""
        return [v for v, p in self.marginals().items() if len(p) > 1 and float(p.max()) == 1.0]


def count_tables(
    tables: Iterable[Mapping[str, Tensor]], groups: Iterable[Iterable[str]], states: Mapping[str, int]
) -> JointTables:
    """Count rows; tables are extended when a variable's first missing value occurs.

    Args:
        tables: variable -> (rows,) states, ``states[v]`` where missing.
        groups: groups of variables whose joint states are counted.
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


Counted = tuple[JointTables, MissingValues]


@dataclass(frozen=True)
class PartitionCounter:
    """Counts one partition.

    Args:
        reader: reader of partitions.
        groups: groups of variables whose joint states are counted.
        states: number of states of each variable.
    """

    reader: PartitionReader
    groups: tuple[tuple[str, ...], ...]
    states: Mapping[str, int]

    def __call__(self, partition: Any) -> Counted:
        tables, missing = self.reader.tables(partition, narrow=True)
        counts = count_tables(tables, self.groups, self.states)
        counts.settle()  # later reads may come from several threads
        return counts, missing


def count_partitions(
    table: PartitionedTable, reader: PartitionReader, groups: Iterable[Iterable[str]], states: Mapping[str, int]
) -> Counted:
    """Joint tables of all rows, equal to those of a single process, and counts of missing values.

    Args:
        table: the rows.
        reader: reader of the partitions.
        groups: groups of variables whose joint states are counted.
        states: number of states of each variable.

    Raises:
        DataError: no rows, or rows that cannot be read.
    """
    counter = PartitionCounter(reader, tuple(map(tuple, groups)), dict(states))
    counts, missing = table.map_reduce(counter, merge_counted, list(states), "counting")
    if not missing.rows:
        raise DataError("The training data is empty: expected at least one row, got none.")
    return counts, missing


def merge_counted(parts: Sequence[Counted]) -> Counted:
    """Sum of the counts of several sets of rows; the parts are not modified."""
    counts, missing = parts[0][0].copy(), MissingValues()
    for other, _ in parts[1:]:
        counts.merge(other)
    for _, theirs in parts:
        missing.merge(theirs)
    return counts, missing
