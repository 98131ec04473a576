"""Ray Datasets: blocks read by Ray's workers, results merged by Ray tasks."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torchpbp.errors import TorchPBPError
from torchpbp.inputs.arrow import holds_labels
from torchpbp.inputs.labels import BOOLEANS
from torchpbp.inputs.partitioned import PartitionedTable, merge_in_tree

T = TypeVar("T")


class RayTable(PartitionedTable):
    """A Ray Dataset. Ray shows its own progress bar.

    Args:
        dataset: the Dataset.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.columns = tuple(dataset.columns() or ())

    def declared_labels(self, names: Sequence[str]) -> dict[str, tuple[Any, ...] | None]:
        import pyarrow

        schema = self._dataset.schema().base_schema
        if not isinstance(schema, pyarrow.Schema):  # blocks are pandas DataFrames
            return {v: None for v in names if schema.types[schema.names.index(v)].kind not in "biuf"}
        booleans: dict[str, tuple[Any, ...] | None] = {
            v: BOOLEANS for v in names if pyarrow.types.is_boolean(schema.field(v).type)
        }
        return booleans | {v: None for v in names if holds_labels(schema.field(v).type)}

    def map_reduce(
        self, function: Callable[[Any], T], merge: Callable[[Sequence[T]], T], columns: Sequence[str], description: str
    ) -> T:
        import pyarrow
        import ray

        selected = self._dataset.select_columns(list(columns))
        mapped = selected.map_batches(_Block(function), batch_format="pyarrow", batch_size=None)
        options = mapped.context.execution_options
        unordered, options.preserve_order = options.preserve_order, True
        try:
            blocks = mapped.materialize().to_arrow_refs()
        finally:
            options.preserve_order = unordered
        merged, shared = ray.remote(_merge), ray.put(merge)
        root = (
            merged.remote(shared, merge_in_tree(blocks, lambda parts: merged.remote(shared, *parts)))
            if blocks
            else None
        )
        result = None if root is None else ray.get(root)
        if isinstance(result, TorchPBPError):
            raise result
        return function(pyarrow.table({v: [] for v in columns})) if result is None else result


@dataclass(frozen=True)
class _Block:
    """A function of a block, whose result becomes a table with one row. Errors are results: Ray would hide their class."""

    function: Callable[[Any], Any]

    def __call__(self, block: Any) -> Any:
        import pyarrow

        try:
            result = self.function(block)
        except TorchPBPError as error:
            result = type(error)(f"partition, {error}")
        return pyarrow.table({"result": pyarrow.array([pickle.dumps(result)], pyarrow.large_binary())})


def _merge(merge: Callable[[Sequence[Any]], Any], *parts: Any) -> Any:
    """Merge results of blocks, which hold any number of them; None where there are none, the first error where there is one."""
    results = [result for part in parts for result in _results(part) if result is not None]
    errors = [result for result in results if isinstance(result, TorchPBPError)]
    if errors or not results:
        return errors[0] if errors else None
    return merge(results)


def _results(part: Any) -> list[Any]:
    import pyarrow

    if isinstance(part, pyarrow.Table):
        return [pickle.loads(content) for content in part.column("result").to_pylist()]
    return [part]
