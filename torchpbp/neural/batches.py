"""Batches of rows as PBPModule takes them, and a loader of tables that gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from torchpbp.distributed import own_share
from torchpbp.errors import DataError, ShapeError
from torchpbp.settings import flag, whole
from torchpbp.settings import seed as checked_seed

if TYPE_CHECKING:
    from torchpbp.models.pbp import PBP


def read_batch(batch: Any, model: PBP, device: torch.device | str) -> dict[str, Tensor]:
    """A batch as observable -> (rows, …) tensor.

    Args:
        batch: dict by name, or tensors in the order of the graph's observables.
        model: whose observables are wanted.
        device: where they go.
    """
    names = list(model.graph.observed)
    if not isinstance(batch, Mapping):
        if not isinstance(batch, (tuple, list)) or len(batch) != len(names):
            raise DataError(
                f"PBPModule: expected a batch that is a dict of tensors, or a tuple of {len(names)} tensors for {', '.join(names)}; "
                f"got {type(batch).__name__}."
            )
        batch = dict(zip(names, batch, strict=True))
    absent = [v for v in names if v not in batch]
    if absent:
        raise DataError(f"PBPModule: the batch lacks {', '.join(absent)}. It has: {', '.join(map(str, batch))}.")
    table: dict[str, Tensor] = {}
    for v in names:
        value = torch.as_tensor(batch[v]).to(device)
        shape = model.leaf_shape(v)
        if value.ndim == 0 or tuple(value.shape[1:]) != shape:
            expected = "(rows, " + ", ".join(map(str, shape)) + ")" if shape else "(rows,)"
            raise ShapeError(f"PBPModule: batch column '{v}': expected {expected}, got {tuple(value.shape)}.")
        states = model.states.get(v)
        if states is None:
            table[v] = _values(v, value)
        else:
            table[v] = _states(v, value, states)
    lengths = {v: len(x) for v, x in table.items()}
    if len(set(lengths.values())) > 1:
        raise ShapeError(f"PBPModule: columns of a batch have different lengths: {lengths}.")
    return table


def _values(name: str, value: Tensor) -> Tensor:
    if value.is_complex():
        raise DataError(f"PBPModule: batch column '{name}': expected real numbers, got {value.dtype}.")
    if value.dtype not in (torch.float32, torch.float64):
        value = value.to(torch.get_default_dtype())
    if bool(value.isinf().any()):
        row = int(value.isinf().reshape(len(value), -1).any(dim=1).nonzero()[0])
        raise DataError(
            f"PBPModule: batch column '{name}', row {row}: expected finite numbers, or NaN where missing; got infinity."
        )
    return value


def _states(name: str, value: Tensor, states: int) -> Tensor:
    if value.is_floating_point():
        missing = value.isnan()
        codes = torch.where(missing, torch.full_like(value, -1), value).to(torch.int64)
        if bool(((codes != value) & ~missing).any()):
            raise DataError(f"PBPModule: batch column '{name}': expected whole states, got fractions.")
    else:
        codes = value.to(torch.int64)
        if value.dtype == torch.uint64 and bool((codes < 0).any()):
            raise DataError(
                f"PBPModule: batch column '{name}': expected states from 0 to {states - 1}, got 2⁶³ or more."
            )
    if len(codes) and (int(codes.min()) < -1 or int(codes.max()) >= states):
        raise DataError(
            f"PBPModule: batch column '{name}': expected states from 0 to {states - 1}, or -1 where missing; got {int(codes.min())} to "
            f"{int(codes.max())}."
        )
    return codes


def several_batches(
    batches: Callable[[], Iterator[Any]], rows: int | None, model: PBP, device: torch.device | str
) -> Iterator[dict[str, Tensor]]:
    """Batches as a model reads them, up to a number of rows, the last one cut short."""
    left = rows
    for batch in batches():
        if left is not None and left <= 0:
            return
        table = read_batch(batch, model, device)
        if left is not None:
            table = {v: x[:left] for v, x in table.items()}
            left -= len(next(iter(table.values())))
        yield table


class TableLoader(DataLoader[dict[str, Tensor]]):
    """Batches of a table in memory, as dicts of tensors; their order depends on seed and epoch only.

    In several processes each takes its share of the rows of every batch.

    Args:
        table: name -> (rows, …) tensor; the same in all processes.
        batch_size: rows per batch, at most; batches are as equal as can be.
        shuffle: draw a new order in each epoch.
        seed: of the orders.

    Example:
        >>> loader = TableLoader({"x": torch.arange(10)}, batch_size=5)
        >>> sorted(int(i) for batch in loader for i in batch["x"])
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    def __init__(self, table: Mapping[str, Any], batch_size: int, shuffle: bool = True, seed: int = 0) -> None:
        columns = {v: torch.as_tensor(x) for v, x in table.items()}
        lengths = {v: len(x) for v, x in columns.items()}
        if not lengths or len(set(lengths.values())) > 1 or 0 in lengths.values():
            raise ShapeError(f"TableLoader: expected columns of one length, at least one row; got {lengths}.")
        rows = next(iter(lengths.values()))
        size = whole(1).check("batch_size", batch_size)
        order = _Orders(rows, -(-rows // size), flag().check("shuffle", shuffle), checked_seed().check("seed", seed))
        super().__init__(_Columns(columns), batch_size=None, sampler=order)


class _Columns(Dataset[dict[str, Tensor]]):
    """Rows of a table by their numbers."""

    def __init__(self, columns: Mapping[str, Tensor]) -> None:
        self.columns = dict(columns)

    def __getitem__(self, rows: Tensor) -> dict[str, Tensor]:
        return {v: x[rows] for v, x in self.columns.items()}


class _Orders(DistributedSampler[Tensor]):
    """Numbers of the rows of each batch, or of this process's share of them; Lightning leaves samplers of this kind alone."""

    def __init__(self, rows: int, batches: int, shuffle: bool, seed: int) -> None:
        # Not that of the class above, which wants a process group now and shares whole batches.
        self.rows, self.batches, self.shuffle, self.seed = rows, batches, shuffle, seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Lightning calls it before each epoch, after an interruption too."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[Tensor]:
        order = torch.arange(self.rows)
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
            order = torch.randperm(self.rows, generator=generator)
        for batch in torch.tensor_split(order, self.batches):
            yield batch[own_share(len(batch))]
