"""Values of variables that are vectors or images: columns of shape (rows, *shape), read as floating-point tensors.

A value is there as a whole or missing as a whole. Missing ones are NaN in all entries, None in a list or column of arrays, or
marked by the second part of a pair (values, seen).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchpbp.errors import DataError, ShapeError
from torchpbp.graph.domains import Continuous
from torchpbp.inputs.arrays import as_array, dense_tensor, name_of, unmasked
from torchpbp.inputs.labels import numeric_tensor
from torchpbp.lazy import pandas as pd


@dataclass(frozen=True)
class Leaves:
    """A column of vectors or images as it came: nothing is converted before a part of it is read.

    Args:
        values: (rows, *shape) tensor or array of numbers, or (rows,) array of objects, each of them a value or missing.
        shape: of one value.
        seen: (rows,) booleans, false where the value is missing, whatever ``values`` holds there; None: see ``values``.
    """

    values: Tensor | np.ndarray
    shape: tuple[int, ...]
    seen: Tensor | None = None

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice) -> Leaves:
        return Leaves(self.values[rows], self.shape, None if self.seen is None else self.seen[rows])

    def read(self, where: str, start: int = 0) -> Tensor:
        """(rows, *shape) values, float32 if they came as float32 or bytes, otherwise float64; NaN in all of a missing one.

        Gradients pass to the values that are there.

        Args:
            where: begins errors; names the variable.
            start: number of the first row, for errors.

        Raises:
            DataError: values that are not numbers; a value of which only some entries are NaN, or that is NaN though seen.
            ShapeError: values of another shape.
        """
        values = self.values
        if isinstance(values, np.ndarray) and values.dtype == object and values.ndim == 1:
            values = self._filled(values, where, start)
        if isinstance(values, np.ndarray):
            values = numeric_tensor(where, values, None, ANY, "numbers", start)
        values = floating(values)
        if self.seen is not None:
            values = torch.where(along(self.seen.to(values.device), values), values, torch.nan)
        self._check_whole(values.detach(), where, start)
        return values

    def _filled(self, entries: np.ndarray, where: str, start: int) -> Tensor | np.ndarray:
        """(rows, *shape) numbers, or objects, of an array of values with None, NaN or pandas NA in place of missing ones."""
        present = np.flatnonzero(~np.asarray(pd.isna(entries)))
        if not len(present):
            return np.full((len(entries), *self.shape), np.nan)
        some = list(entries[present])
        stacked = _stacked(where, some)
        if stacked is None or tuple(stacked.shape[1:]) != self.shape:
            wrong = next((i for i, x in enumerate(some) if shape_of_array(x) != self.shape), 0)
            found = shape_of_array(some[wrong])
            raise ShapeError(
                f"{where}, row {start + int(present[wrong])}: expected numbers of shape {self.shape}, got "
                f"{'entries of different lengths' if found is None else f'{kind_of_array(some[wrong])} of shape {found}'}."
            )
        if len(present) == len(entries):
            return stacked
        if isinstance(stacked, Tensor):
            stacked = floating(stacked)
            result = stacked.new_full((len(entries), *self.shape), torch.nan)
            return result.index_put((torch.from_numpy(present).to(result.device),), stacked)
        if stacked.dtype.kind not in "biufO":
            return stacked  # no numbers, which the caller reports
        kind = stacked.dtype if stacked.dtype in (np.float32, object) else np.float64
        filled = np.full((len(entries), *self.shape), np.nan, np.float32 if stacked.dtype == np.uint8 else kind)
        filled[present] = stacked
        return filled

    def _check_whole(self, values: Tensor, where: str, start: int) -> None:
        """Raise if some value is there in part."""
        gaps = values.isnan().flatten(1)
        empty = gaps.all(dim=1)
        partial = gaps.any(dim=1) & ~empty
        if bool(partial.any()):
            row = int(partial.nonzero()[0])
            entry = tuple(values[row].isnan().nonzero()[0].tolist())
            raise DataError(
                f"{where}, row {start + row}: {int(gaps[row].sum())} of {gaps.shape[1]} entries are NaN (the first at {entry}). "
                "A vector or image is observed or missing as a whole: fill these entries in, or make all of them NaN."
            )
        if self.seen is not None and bool((empty & self.seen.to(empty.device)).any()):
            row = int((empty & self.seen.to(empty.device)).nonzero()[0])
            raise DataError(
                f"{where}, row {start + row}: the value is marked as seen, but all its entries are NaN. Mark it as missing in "
                "the second part of the pair (values, seen)."
            )


ANY = Continuous()
"""Numbers without bounds; bounds are checked once missing values are known."""


def floating(values: Tensor) -> Tensor:
    """The same values in a floating-point type: float32 for float32 and bytes, which hold images, otherwise float64."""
    return values.to(torch.float32 if values.dtype in (torch.float32, torch.uint8) else torch.float64)


def along(rows: Tensor, values: Tensor) -> Tensor:
    """(rows,) booleans in a shape that goes with (rows, …) values."""
    return rows.view(-1, *[1] * (values.ndim - 1))


def _stacked(where: str, rows: list[Any]) -> Tensor | np.ndarray | None:
    """Values one above the other; None if they have different shapes, or none."""
    shapes = {shape_of_array(row) for row in rows}
    if len(shapes) > 1 or shapes & {(), None}:
        return None
    if not any(isinstance(row, Tensor) for row in rows):
        return np.stack([unmasked(row) if isinstance(row, np.ndarray) else np.asarray(row) for row in rows])
    tensors = [  # numpy would cut gradients off
        dense_tensor(where, row)
        if isinstance(row, Tensor)
        else numeric_tensor(where, as_array(where, row, "numbers"), None, ANY, "numbers")
        for row in rows
    ]
    same = len({t.dtype for t in tensors}) == 1
    return torch.stack(tensors if same else [t.to(torch.float64) for t in tensors])


def shape_of_array(value: Any) -> tuple[int, ...] | None:
    """Shape of an array of any kind; None for nested lists of different lengths."""
    if isinstance(value, Tensor):
        return tuple(value.shape)
    try:
        return tuple(np.shape(value))
    except (ValueError, TypeError, RuntimeError):
        return None


def kind_of_array(value: Any) -> str:
    """Name of the type of an array's entries."""
    if isinstance(value, Tensor):
        return name_of(value.dtype)
    try:
        return str(np.asarray(value).dtype)
    except (ValueError, TypeError, RuntimeError):
        return "object"
