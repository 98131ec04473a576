"""Counting on a cluster: joint tables of each partition, counted by the workers and added up in a tree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchpbp.errors import DataError
from torchpbp.inputs.clusters import PartitionedTable, PartitionReader
from torchpbp.inputs.missing_values import MissingValues
from torchpbp.moments.joint_tables import JointTables, count_tables

Counted = tuple[JointTables, MissingValues]


@dataclass(frozen=True)
class PartitionCounter:
    """Counts one partition.

    Args:
        reader: of partitions.
        groups: of variables whose joint states are counted.
        states: number of states of each variable.
    """

    reader: PartitionReader
    groups: tuple[tuple[str, ...], ...]
    states: Mapping[str, int]

    def __call__(self, partition: Any) -> Counted:
        tables, missing = self.reader.tables(partition, narrow=True)
        counts = count_tables(tables, self.groups, self.states)
        counts.settle()  # from here on only read, perhaps by several threads
        return counts, missing


def count_partitions(
    table: PartitionedTable, reader: PartitionReader, groups: Iterable[Iterable[str]], states: Mapping[str, int]
) -> Counted:
    """Joint tables of all rows, the same as from one process, and what is missing in them.

    Args:
        table: the rows.
        reader: of its partitions.
        groups: of variables whose joint states are counted.
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
    """Counts of several sets of rows, added up; the parts stay as they are."""
    counts, missing = parts[0][0].copy(), MissingValues()
    for other, _ in parts[1:]:
        counts.merge(other)
    for _, theirs in parts:
        missing.merge(theirs)
    return counts, missing
