"""Tables in partitions on a cluster: Dask DataFrames and Ray Datasets, read by the workers.

A learner provides a function of one partition and a function that merges results. Results are merged in a tree on the cluster, and
only the final one is returned. An engine implements three operations: tasks of all partitions, a task that merges some results, and
the value of a task. An engine is imported only when one of its tables is passed.
"""

from __future__ import annotations

import functools
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor
from tqdm.auto import tqdm

from torchpbp.errors import DataError, TorchPBPError
from torchpbp.graph.domains import Domain
from torchpbp.inputs.arrow import has_dictionary, holds_labels
from torchpbp.inputs.columns import ROWS_PER_BATCH, ColumnReader
from torchpbp.inputs.labels import BOOLEANS, require_unique, warn_of_few_labels
from torchpbp.inputs.missing_values import MissingValues
from torchpbp.inputs.sources import PATIENCE, cluster_engine
from torchpbp.lazy import is_categorical, is_frame

T = TypeVar("T")
Labels = dict[str, tuple[Any, ...]]
_ColumnLabels = tuple[bool, tuple[Any, ...]]  # whether the column has categories, and its labels

FAN_IN = 8
"""Results merged by one task."""


class PartitionedTable(ABC):
    """A table in partitions, each a pandas DataFrame or an Arrow table on some worker.

    The engine reruns tasks lost with their worker, so functions must not modify their arguments.
    """

    columns: tuple[str, ...]

    @abstractmethod
    def declared_labels(self, names: Sequence[str]) -> dict[str, tuple[Any, ...] | None]:
        """Ordered labels of those ``names`` that may hold labels; None for labels that only the rows contain."""

    @abstractmethod
    def mapped(self, function: Callable[[Any], Any], columns: Sequence[str]) -> list[Any]:
        """Tasks that apply a picklable function to each partition with some of the columns, in the order of the partitions."""

    @abstractmethod
    def merged(self, merge: Callable[[Sequence[Any]], Any], parts: Sequence[Any]) -> Any:
        """The task that merges the results of some tasks by a picklable function."""

    @abstractmethod
    def value(self, root: Any, leaves: Sequence[Any], description: str) -> Any:
        """The result of a task.

        Args:
            root: the task.
            leaves: the tasks of partitions that it depends on, for a progress bar.
            description: label of the progress bar.
        """

    def map_reduce(
        self, function: Callable[[Any], T], merge: Callable[[Sequence[T]], T], columns: Sequence[str], description: str
    ) -> T:
        """Apply a function to each partition and merge the results in a tree.

        Args:
            function: picklable function of a partition with these columns.
            merge: picklable, associative function of one to :data:`FAN_IN` results.
            columns: columns that the function needs.
            description: label of the progress bar.
        """
        leaves = parts = self.mapped(function, columns)
        while parts is leaves or len(parts) > 1:
            parts = [self.merged(merge, parts[i : i + FAN_IN]) for i in range(0, len(parts), FAN_IN)]
        return self.value(parts[0], leaves, description)


class DaskTable(PartitionedTable):
    """A Dask DataFrame, read by Dask's workers, or by threads without a cluster."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame
        self.columns = tuple(map(str, frame.columns))

    def declared_labels(self, names: Sequence[str]) -> dict[str, tuple[Any, ...] | None]:
        result: dict[str, tuple[Any, ...] | None] = {}
        for v in names:
            dtype = self._frame.dtypes[v]
            if dtype == "category":
                column = self._frame[v].cat
                result[v] = tuple(column.categories) if column.known else None
            elif dtype.kind not in "iufmM":  # booleans, objects and strings
                result[v] = BOOLEANS if dtype.kind == "b" else None
        return result

    def mapped(self, function: Callable[[Any], Any], columns: Sequence[str]) -> list[Any]:
        mapped = self._frame[list(columns)].map_partitions(
            _applied_by_dask, _as_task(function), meta=("result", object), enforce_metadata=False
        )
        return list(mapped.to_delayed())

    def merged(self, merge: Callable[[Sequence[Any]], Any], parts: Sequence[Any]) -> Any:
        import dask

        return dask.delayed(_called)(_as_task(merge), list(parts))

    def value(self, root: Any, leaves: Sequence[Any], description: str) -> Any:
        import dask
        from dask.callbacks import Callback

        client = getattr(dask.base.get_scheduler(), "__self__", None)
        with tqdm(total=len(leaves), desc=description, unit="partition", delay=PATIENCE, leave=False) as bar:
            if client is None:  # threads or processes of this machine
                keys = {leaf.key for leaf in leaves}
                with Callback(posttask=lambda key, *_: bar.update(key in keys)):
                    return root.compute()
            from distributed import as_completed

            result, *parts = client.compute([root, *leaves])
            done = as_completed(parts)
            del parts  # frees the memory of merged parts
            for part in done:
                if part.status == "error":  # the root has the same error
                    break
                bar.update()
            return result.result()


def _as_task(function: Callable[..., Any]) -> Any:
    """A function as the result of a Dask task: it is sent to each worker once, and Dask can recompute it."""
    import dask

    return dask.delayed(pickle.loads)(pickle.dumps(function))


def _called(function: Callable[[Sequence[Any]], Any], parts: Sequence[Any]) -> Any:
    return function(parts)


def _applied_by_dask(partition: Any, function: Callable[[Any], T], partition_info: Any = None) -> T:
    try:
        return function(partition)
    except TorchPBPError as error:
        number = "" if partition_info is None else f" {partition_info['number']}"
        raise type(error)(f"partition{number}, {error}") from None


class RayTable(PartitionedTable):
    """A Ray Dataset, whose blocks are read by Ray's workers.

    Ray shows its own progress bar. Errors are returned as results, because Ray hides the class of raised errors.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.columns = tuple(dataset.columns() or ())

    def declared_labels(self, names: Sequence[str]) -> dict[str, tuple[Any, ...] | None]:
        import pyarrow

        schema = self._dataset.schema().base_schema
        result: dict[str, tuple[Any, ...] | None] = {}
        for v in names:
            if not isinstance(schema, pyarrow.Schema):  # blocks are pandas DataFrames
                kind = schema.types[schema.names.index(v)].kind
                boolean, labelled = kind == "b", kind not in "biuf"
            else:
                boolean, labelled = pyarrow.types.is_boolean(schema.field(v).type), holds_labels(schema.field(v).type)
            if boolean or labelled:
                result[v] = BOOLEANS if boolean else None
        return result

    def mapped(self, function: Callable[[Any], Any], columns: Sequence[str]) -> list[Any]:
        import ray

        selected = self._dataset.select_columns(list(columns))
        mapped = selected.map_batches(_RayBlock(function), batch_format="pyarrow", batch_size=None)
        options = mapped.context.execution_options
        unordered, options.preserve_order = options.preserve_order, True
        try:
            blocks = mapped.materialize().to_arrow_refs()
        finally:
            options.preserve_order = unordered
        return blocks or [ray.put(None)]

    def merged(self, merge: Callable[[Sequence[Any]], Any], parts: Sequence[Any]) -> Any:
        import ray

        return ray.remote(_merged_by_ray).remote(merge, *parts)

    def value(self, root: Any, leaves: Sequence[Any], description: str) -> Any:
        import ray

        result = ray.get(root)
        if isinstance(result, TorchPBPError):
            raise result
        return result

    def map_reduce(
        self, function: Callable[[Any], T], merge: Callable[[Sequence[T]], T], columns: Sequence[str], description: str
    ) -> T:
        import pyarrow

        result = super().map_reduce(function, merge, columns, description)
        return function(pyarrow.table({v: [] for v in columns})) if result is None else result


@dataclass(frozen=True)
class _RayBlock:
    """Wraps a function of a block; the result is pickled into a table with one row."""

    function: Callable[[Any], Any]

    def __call__(self, block: Any) -> Any:
        import pyarrow

        try:
            result = self.function(block)
        except TorchPBPError as error:
            result = type(error)(f"partition, {error}")
        return pyarrow.table({"result": pyarrow.array([pickle.dumps(result)], pyarrow.large_binary())})


def _merged_by_ray(merge: Callable[[Sequence[Any]], Any], *parts: Any) -> Any:
    """Merged results of all blocks: the first error if there is one, None without results."""
    results = [result for part in parts for result in _ray_results(part) if result is not None]
    errors = [result for result in results if isinstance(result, TorchPBPError)]
    if errors or not results:
        return errors[0] if errors else None
    return merge(results)


def _ray_results(part: Any) -> list[Any]:
    import pyarrow

    return [pickle.loads(x) for x in part.column("result").to_pylist()] if isinstance(part, pyarrow.Table) else [part]


def partitioned(data: Any) -> PartitionedTable | None:
    """A Dask DataFrame or Ray Dataset as a :class:`PartitionedTable`; None for all other data."""
    if isinstance(data, PartitionedTable):
        return data
    engine = cluster_engine(data)
    return None if engine is None else {"dask": DaskTable, "ray": RayTable}[engine](data)


@dataclass(frozen=True)
class PartitionReader:
    """A :class:`~torchpbp.inputs.ColumnReader` for partitions, with labels common to all of them.

    Args:
        states: number of states of each variable to read.
        labels: labels of variables with labelled states.
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
        """A reader of a table. Columns with undeclared labels are read in a first pass.

        Args:
            table: table to read.
            states: number of states of each variable to read.
            labels: labels of earlier tables.
            batch_size: rows of a partition handled at once.

        Raises:
            DataError: missing columns, or more labels than states.
        """
        absent = [v for v in states if v not in table.columns]
        if absent:
            raise DataError(f"missing columns {absent}. The data has: {', '.join(table.columns[:20]) or 'none'}.")
        require_unique(table.columns, states, "")
        reader = ColumnReader(states, labels, missing=True)
        discrete = {v: n for v, n in states.items() if isinstance(n, int)}
        declared = table.declared_labels([v for v in discrete if v not in reader.labels])
        undeclared = [v for v, categories in declared.items() if categories is None]
        if undeclared:
            search = functools.partial(_labels, {v: states[v] for v in undeclared})
            declared |= {v: x for v, (_, x) in table.map_reduce(search, _all_labels, undeclared, "labels").items()}
        new = {v: tuple(x) for v, x in declared.items() if x and (x != BOOLEANS or discrete[v] == len(BOOLEANS))}
        for v, categories in new.items():
            reader.learn_labels(v, list(categories))
        warn_of_few_labels(new, discrete)
        return cls(dict(states), reader.labels, batch_size)

    def tables(self, partition: Any, narrow: bool = False) -> tuple[Iterator[dict[str, Tensor]], MissingValues]:
        """Tables of a partition, none for an empty one, and their missing values, complete after iteration.

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


def _labels(states: dict[str, Domain], partition: Any) -> dict[str, _ColumnLabels]:
    """Labels of the label columns of one partition."""
    reader = ColumnReader(states, missing=True, quiet=True)
    if len(partition):
        for _ in reader.tables(partition, narrow=True):
            pass
    return {v: (_has_categories(partition, v), labels) for v, labels in reader.labels.items()}


def _all_labels(parts: Sequence[dict[str, _ColumnLabels]]) -> dict[str, _ColumnLabels]:
    """Labels of some partitions: strings sorted, categories in the order of their first partition."""
    result = {}
    for v in dict.fromkeys(v for part in parts for v in part):
        columns = [part[v] for part in parts if v in part]
        ordered = any(categories for categories, _ in columns)
        union = dict.fromkeys(label for _, labels in columns for label in labels)
        result[v] = ordered, tuple(union if ordered else sorted(union))
    return result


def _has_categories(partition: Any, name: str) -> bool:
    """Whether a column of a partition is categorical."""
    return is_categorical(partition[name].array) if is_frame(partition) else has_dictionary(partition, name)
