"""Batches of rows for PBPModule, and a loader of tables in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchpbp.distributed import own_share
from torchpbp.errors import DataError, ShapeError
from torchpbp.inputs.arrays import array_or_categories, as_tensor
from torchpbp.inputs.columns import Column, read_column
from torchpbp.inputs.labels import BOOLEANS, found_labels, named_columns
from torchpbp.lazy import is_frame
from torchpbp.lazy import pandas as pd
from torchpbp.settings import flag, whole
from torchpbp.settings import seed as checked_seed

if TYPE_CHECKING:
    from torchpbp.models.pbp import PBP


def read_batch(batch: Any, model: PBP, device: torch.device | str) -> dict[str, Tensor]:
    """A batch as observable -> (rows, …) tensor.

    Args:
        batch: dict by name, or columns in the order of the graph's observables; see
            :func:`torchpbp.inputs.columns.read_column`.
        model: with the observables to read.
        device: of the result.
    """
    names = list(model.graph.observed)
    if not isinstance(batch, Mapping) and not is_frame(batch):
        if not isinstance(batch, (tuple, list)) or len(batch) != len(names):
            raise DataError(
                f"PBPModule: expected a batch that is a dict of tensors, or a tuple of {len(names)} tensors for {', '.join(names)}; "
                f"got {type(batch).__name__}."
            )
        batch = dict(zip(names, batch, strict=True))
    table: dict[str, Tensor] = {}
    for v, value in named_columns(batch, names, "PBPModule: batch, ").items():
        value = value.to(device) if isinstance(value, Tensor) else value
        labels = model.labels.get(v) or model.graph.labels.get(v)
        column = read_column(f"PBPModule: batch column '{v}'", value, model.graph.variables[v], labels).to(device)
        table[v] = column.to(_dtype_in_training(value)) if column.is_floating_point() else column
    lengths = {v: len(x) for v, x in table.items()}
    if len(set(lengths.values())) > 1:
        raise ShapeError(f"PBPModule: columns of a batch have different lengths: {lengths}.")
    return table


def _dtype_in_training(value: Any) -> torch.dtype:
    """Dtype of a column of numbers: float32 and float64 are kept, others become torch's default."""
    kind = str(getattr(value, "dtype", "")).removeprefix("torch.")
    return {"float32": torch.float32, "float64": torch.float64}.get(kind, torch.get_default_dtype())


def several_batches(
    batches: Callable[[], Iterator[Any]], rows: int | None, model: PBP, device: torch.device | str
) -> Iterator[dict[str, Tensor]]:
    """Batches read for a model, truncated after a number of rows."""
    left = rows
    for batch in batches():
        if left is not None and left <= 0:
            return
        table = read_batch(batch, model, device)
        if left is not None:
            table = {v: x[:left] for v, x in table.items()}
            left -= len(next(iter(table.values())))
        yield table


class TableLoader:
    """Batches of a table in memory, as dicts of tensors; their order depends on seed and epoch only.

    An iterable for loops and for Lightning's Trainer. With several processes, each loads its share of the rows of every batch.

    Args:
        table: name -> (rows, …) tensor, array, list or Series, or a DataFrame; the same in all processes. States may be given
            by label. None, NaN, pandas NA, masked entries and states of -1 are missing values.
        batch_size: largest number of rows per batch; sizes of batches differ by at most one row.
        shuffle: draw a new order in each epoch.
        seed: of the orders.
        labels: name -> labels of its states, such as those of the graph; by default the categories of a category column, or
            the sorted strings of a column of strings.

    Attributes:
        labels: name -> labels of the states, for columns given by label.

    Raises:
        DataError: unknown labels, values that are not numbers, Series with different indices.
        ShapeError: no rows, or columns of different lengths.

    Example:
        >>> loader = TableLoader({"x": torch.arange(10)}, batch_size=5)
        >>> sorted(int(i) for batch in loader for i in batch["x"])
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    batch_sampler = None  # Lightning reads this attribute of all that have a sampler

    def __init__(
        self,
        table: Mapping[str, Any] | pd.DataFrame,
        batch_size: int,
        shuffle: bool = True,
        seed: int = 0,
        labels: Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        self.labels: dict[str, tuple[Any, ...]] = {v: tuple(x) for v, x in (labels or {}).items()}
        items = named_columns(table, table.keys(), "TableLoader: ")
        columns = {str(v): self._column(str(v), x) for v, x in items.items()}
        lengths = {v: len(x) if x.ndim else 0 for v, x in columns.items()}
        if not lengths or len(set(lengths.values())) > 1 or 0 in lengths.values():
            raise ShapeError(f"TableLoader: expected columns of one length, at least one row; got {lengths}.")
        rows = next(iter(lengths.values()))
        size = whole(1).check("batch_size", batch_size)
        self.columns = columns
        self.sampler = Orders(
            rows, -(-rows // size), flag().check("shuffle", shuffle), checked_seed().check("seed", seed)
        )

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for rows in self.sampler:
            yield {v: x[rows] for v, x in self.columns.items()}

    def _column(self, name: str, value: Any) -> Tensor:
        """A column as a tensor: states for a column with labels, otherwise numbers."""
        where = f"TableLoader: column '{name}'"
        if isinstance(value, Tensor):
            return as_tensor(where, value)
        value = array_or_categories(where, value, "labels or numbers")
        column_labels = found_labels(where, value)
        if column_labels is not None and column_labels != list(BOOLEANS):
            self.labels.setdefault(name, tuple(column_labels))
        labels = self.labels.get(name)
        if labels is None:
            return as_tensor(where, np.asarray(value), "labels or numbers")
        return Column.open(where, value, len(labels), labels).tensor().long()


class Orders:
    """Row numbers of each batch that are in this process.

    Args:
        rows: number of rows over all processes.
        batches: number of batches.
        shuffle: draw a new order in each epoch.
        seed: of the orders.
        before, count: rows of the processes before this one, and of this one; by default each process holds all rows, and takes
            its share of every batch.
    """

    def __init__(
        self, rows: int, batches: int, shuffle: bool, seed: int, before: int = 0, count: int | None = None
    ) -> None:
        self.rows, self.batches, self.shuffle, self.seed = rows, batches, shuffle, seed
        self.before, self.count = before, count
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning before each epoch, also after resuming."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[Tensor]:
        order = torch.arange(self.rows, device="cpu")
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
            order = torch.randperm(self.rows, generator=generator, device="cpu")
        for batch in torch.tensor_split(order, self.batches):
            if self.count is None:
                yield batch[own_share(len(batch))]
            else:
                yield batch[(batch >= self.before) & (batch < self.before + self.count)] - self.before
