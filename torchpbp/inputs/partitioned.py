"""Tables whose rows lie in partitions on a cluster: Dask DataFrames and Ray Datasets, read where they lie.

A learner gives a function of one partition and a way to merge its results. Partitions are read by the workers, results are merged
in a tree on the cluster, and only the last one comes back. Neither engine is imported before one of its tables is passed.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor

from torchpbp.errors import DataError
from torchpbp.graph.domains import Domain
from torchpbp.inputs.arrow import has_dictionary
from torchpbp.inputs.columns import ROWS_PER_BATCH, ColumnReader
from torchpbp.inputs.labels import BOOLEANS, require_unique, warn_of_few_labels
from torchpbp.inputs.missing_values import MissingValues
from torchpbp.inputs.sources import cluster_engine
from torchpbp.lazy import is_categorical, is_frame

T = TypeVar("T")
Labels = dict[str, tuple[Any, ...]]
_Found = tuple[bool, tuple[Any, ...]]  # whether the column has categories, and its labels

FAN_IN = 8
"""Results merged by one task."""


class PartitionedTable(ABC):
    """A table whose rows lie in partitions, each a pandas DataFrame or an Arrow table on some worker."""

    columns: tuple[str, ...]

    @abstractmethod
    def declared_labels(self, names: Sequence[str]) -> dict[str, tuple[Any, ...] | None]:
        """Columns that may hold labels, out of some: their labels in order, or None where they are known to the rows only."""

    @abstractmethod
    def map_reduce(
        self, function: Callable[[Any], T], merge: Callable[[Sequence[T]], T], columns: Sequence[str], description: str
    ) -> T:
        """Apply a function to each partition and merge the results in a tree, in the order of the partitions.

        A task that is lost with its worker is run again by the engine, so both must leave their arguments as they are.

        Args:
            function: of a partition with some of the columns; picklable.
            merge: of up to :data:`FAN_IN` results, at least one, into one; picklable and associative.
            columns: those that the function needs.
            description: of the progress bar.
        """


def partitioned(data: Any) -> PartitionedTable | None:
    """A Dask DataFrame or Ray Dataset as a :class:`PartitionedTable`; None for all other data."""
    if isinstance(data, PartitionedTable):
        return data
    engine = cluster_engine(data)
    if engine == "dask":
        from torchpbp.inputs.dask_frames import DaskTable

        return DaskTable(data)
    if engine == "ray":
        from torchpbp.inputs.ray_datasets import RayTable

        return RayTable(data)
    return None


@dataclass(frozen=True)
class PartitionReader:
    """Reads partitions as a :class:`~torchpbp.inputs.ColumnReader` reads tables, with labels that all of them agree on.

    Args:
        states: number of states of each variable wanted.
        labels: of variables known by label.
        batch_size: rows of a partition handled at once.
    """

    states: dict[str, Domain]
    labels: Labels = field(default_factory=dict)
    batch_size: int = ROWS_PER_BATCH

    @classmethod
    def of(
        cls,
        table: PartitionedTable,
        states: Mapping[str, Domain],
        labels: Mapping[str, Sequence[Any]] | None = None,
        batch_size: int = ROWS_PER_BATCH,
    ) -> PartitionReader:
        """A reader of a table, whose label columns are read once ahead where their labels are not declared.

        Args:
            table: to be read.
            states: number of states of each variable wanted.
            labels: known from before.
            batch_size: rows of a partition handled at once.

        Raises:
            DataError: missing columns, or more labels than states.
        """
        absent = [v for v in states if v not in table.columns]
        if absent:
            raise DataError(f"missing columns {absent}. The data has: {', '.join(table.columns[:20]) or 'none'}.")
        require_unique(table.columns, states, "")
        known = ColumnReader(states, labels, missing=True)
        discrete = {v: n for v, n in states.items() if isinstance(n, int)}
        declared = table.declared_labels([v for v in discrete if v not in known.labels])
        wanted = [v for v, found in declared.items() if found is None]
        if wanted:
            search = functools.partial(_labels, {v: states[v] for v in wanted})
            declared |= {v: x for v, (_, x) in table.map_reduce(search, _all_labels, wanted, "labels").items()}
        new = {v: tuple(x) for v, x in declared.items() if x and (x != BOOLEANS or discrete[v] == len(BOOLEANS))}
        for v, found in new.items():
            known.learn_labels(v, list(found))
        warn_of_few_labels(new, discrete)
        return cls(dict(states), known.labels, batch_size)

    def tables(self, partition: Any, narrow: bool = False) -> tuple[Iterator[dict[str, Tensor]], MissingValues]:
        """Tables of a partition, none of an empty one, and what is missing in them once they are read.

        Args:
            partition: a pandas DataFrame or Arrow table.
            narrow: as for :meth:`torchpbp.inputs.ColumnReader.tables`.
        """
        missing = MissingValues()

        def read() -> Iterator[dict[str, Tensor]]:
            if len(partition):
                reader = ColumnReader(self.states, self.labels, missing=True, quiet=True)
                yield from reader.tables(partition, self.batch_size, narrow)
                missing.merge(reader.missing_values)

        return read(), missing


def _labels(states: dict[str, Domain], partition: Any) -> dict[str, _Found]:
    """Labels of the label columns of one partition."""
    reader = ColumnReader(states, missing=True, quiet=True)
    if len(partition):
        for _ in reader.tables(partition, narrow=True):
            pass
    return {v: (_has_categories(partition, v), labels) for v, labels in reader.labels.items()}


def _all_labels(parts: Sequence[dict[str, _Found]]) -> dict[str, _Found]:
    """Labels of some partitions: strings sorted, categories in the order of the first partition that has them."""
    result = {}
    for v in dict.fromkeys(v for part in parts for v in part):
        found = [part[v] for part in parts if v in part]
        ordered = any(categories for categories, _ in found)
        union = dict.fromkeys(label for _, labels in found for label in labels)
        result[v] = ordered, tuple(union if ordered else sorted(union))
    return result


def _has_categories(partition: Any, name: str) -> bool:
    """Whether a column of a partition numbers its labels itself."""
    return is_categorical(partition[name].array) if is_frame(partition) else has_dictionary(partition, name)


def merge_in_tree(parts: Sequence[T], merged: Callable[[Sequence[T]], T]) -> T:
    """The root of a tree over parts, in their order, made of tasks of an engine.

    Args:
        parts: results of the partitions, yet to be computed.
        merged: the task that merges some of them.
    """
    while len(parts) > 1:
        parts = [merged(parts[i : i + FAN_IN]) for i in range(0, len(parts), FAN_IN)]
    return parts[0]
