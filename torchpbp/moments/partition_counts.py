"""Counting on a cluster: joint tables of each partition, counted by the workers and summed in a tree."""

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
