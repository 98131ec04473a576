"""Dask DataFrames: partitions read and reduced by Dask's workers, or by threads where there is no cluster."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tqdm.auto import tqdm

from torchpbp.errors import TorchPBPError
from torchpbp.inputs.labels import BOOLEANS
from torchpbp.inputs.partitioned import PartitionedTable, merge_in_tree
from torchpbp.inputs.sources import PATIENCE

T = TypeVar("T")


class DaskTable(PartitionedTable):
    """A Dask DataFrame.

    Args:
        frame: the DataFrame.
    """

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
            elif dtype.kind == "b":
                result[v] = BOOLEANS
            elif dtype.kind not in "iufmM":  # objects and strings
                result[v] = None
        return result

    def map_reduce(
        self, function: Callable[[Any], T], merge: Callable[[Sequence[T]], T], columns: Sequence[str], description: str
    ) -> T:
        import dask

        # The functions are results of tasks, so that each worker gets them once and they can be made again.
        apply, combine = (dask.delayed(pickle.loads)(pickle.dumps(f)) for f in (function, merge))
        mapped = self._frame[list(columns)].map_partitions(
            _apply, apply, meta=("result", object), enforce_metadata=False
        )
        leaves = mapped.to_delayed()
        merged = dask.delayed(_merge)
        root = merge_in_tree(leaves, lambda parts: merged(combine, parts))
        with tqdm(total=len(leaves), desc=description, unit="partition", delay=PATIENCE, leave=False) as bar:
            return _compute(root, leaves, bar)


def _compute(root: Any, leaves: Sequence[Any], bar: tqdm[Any]) -> Any:
    """The result of a graph; the bar shows how many of its leaves are done."""
    import dask
    from dask.callbacks import Callback

    client = getattr(dask.base.get_scheduler(), "__self__", None)
    if client is None:  # threads or processes of this machine
        keys = {leaf.key for leaf in leaves}
        with Callback(posttask=lambda key, *_: bar.update(key in keys)):
            return root.compute()
    from distributed import as_completed

    result, *parts = client.compute([root, *leaves])
    done = as_completed(parts)
    del parts  # a part that is merged needs no memory
    for part in done:
        if part.status == "error":  # the result has the same
            break
        bar.update()
    return result.result()


def _apply(partition: Any, function: Callable[[Any], T], partition_info: dict[str, Any] | None = None) -> T:
    try:
        return function(partition)
    except TorchPBPError as error:
        number = "" if partition_info is None else f" {partition_info['number']}"
        raise type(error)(f"partition{number}, {error}") from None


def _merge(merge: Callable[[Sequence[T]], T], parts: Sequence[T]) -> T:
    return merge(parts)
