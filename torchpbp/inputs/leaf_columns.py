"""Columns of vectors or images in any form: tensors, arrays, lists and columns of arrays, pairs (values, seen)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchpbp.errors import DataError, ShapeError
from torchpbp.inputs.arrays import as_array, dense_tensor, name_of
from torchpbp.inputs.leaves import Leaves, kind_of_array, shape_of_array
from torchpbp.lazy import is_categorical, is_series
from torchpbp.lazy import pandas as pd


def open_leaves(where: str, value: Any, shape: tuple[int, ...], single: bool = False) -> Leaves:
    """A column of vectors or images in any form.

    Args:
        where: begins errors; names the variable.
        value: (rows, *shape) tensor or array; list, Series or array of objects with a value of this shape, or None, for each
            row; or a pair of such values and (rows,) booleans that say which of them are there.
        shape: of one value.
        single: whether one value without a dimension for rows is taken for one row.

    Raises:
        DataError: values that are not numbers, booleans of another type.
        ShapeError: another shape, or booleans for another number of rows.
    """
    pair = _pair(value)
    given, marks = (value, None) if pair is None else pair
    alone = single and not is_series(given)  # a Series has rows, whatever its length
    values = _with_rows(where, _as_rows(where, given), shape, alone)
    return Leaves(values, shape, None if marks is None else _seen(where, marks, len(values), alone))


def check_seen(where: str, seen: Tensor, rows: int) -> Tensor:
    """The second part of a pair (values, seen), if it has one boolean for each row.

    Args:
        where: begins errors.
        seen: the second part.
        rows: number of values.
    """
    if seen.dtype != torch.bool:
        raise _no_booleans(where, name_of(seen.dtype))
    if tuple(seen.shape) != (rows,):
        raise ShapeError(
            f"{where}: expected a pair (values, seen) with seen of shape ({rows},), one boolean for each row of values; got "
            f"shape {tuple(seen.shape)}."
        )
    return seen


def _no_booleans(where: str, kind: str) -> DataError:
    return DataError(
        f"{where}: expected a pair (values, seen) with booleans as seen, true where the value is there; got {kind}. Convert "
        "it: seen.to(torch.bool)."
    )


def _pair(value: Any) -> tuple[Any, Any] | None:
    """The parts of a pair (values, seen); None for values by themselves, two rows of them included.

    A list is a pair only where its second part holds booleans: DataLoaders make such lists of tuples.
    """
    if not isinstance(value, tuple | list) or len(value) != 2:
        return None
    values, seen = value
    shape, marks = shape_of_array(values), shape_of_array(seen)
    if kind_of_array(seen) == "bool":
        found = kind_of_array(values) != "bool" or shape != marks
    else:  # reported as a pair without booleans
        found = isinstance(value, tuple) and marks is not None and len(marks) == 1 and (shape is None or len(shape) > 1)
    return (values, seen) if found else None


def _as_rows(where: str, value: Any) -> Tensor | np.ndarray:
    """A tensor or array of numbers, or an array of objects."""
    if isinstance(value, Tensor):
        return dense_tensor(where, value)
    if is_series(value):
        value = value.array
    if is_categorical(value):
        raise DataError(f"{where}: expected arrays of numbers, got a category column.")
    if isinstance(value, list | tuple) and any(isinstance(row, Tensor | np.ma.MaskedArray) for row in value):
        return np.fromiter(value, dtype=object, count=len(value))  # numpy would cut off gradients and masks
    try:
        return as_array(where, value, "arrays of numbers")
    except DataError:
        if not isinstance(value, list | tuple):
            raise
        return np.fromiter(value, dtype=object, count=len(value))  # rows of different shapes, missing ones among them


def _with_rows(where: str, values: Tensor | np.ndarray, shape: tuple[int, ...], single: bool) -> Tensor | np.ndarray:
    """(rows, *shape) numbers, or (rows,) objects."""
    found = tuple(values.shape)
    objects = isinstance(values, np.ndarray) and values.dtype == object
    if found[1:] == shape or (objects and len(found) == 1):
        return values
    if single and found == shape:
        return values[None]
    if len(found) == 0 and single and bool(_isnan(values)):
        return np.full(1, None, dtype=object)
    if len(found) == 1 and bool(_isnan(values).all()):  # no rows, or none with a value
        return np.full(found, None, dtype=object)
    remedy = ""
    if len(found) > 1 and _same_order(found[1:], shape):
        remedy = f" Reshape them: values.reshape(-1, {', '.join(map(str, shape))})."
    alone = f", or one value of shape {shape}" if single else ""
    raise ShapeError(
        f"{where}: expected values of shape (rows, {', '.join(map(str, shape))}){alone}; got {kind_of_array(values)} of shape {found}.{remedy}"
    )


def _same_order(found: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether one shape is the other one made flat, or with dimensions of size 1 in other places: axes keep their order."""
    flat = math.prod(found) == math.prod(shape) and 1 in (len(found), len(shape))
    return flat or [n for n in found if n > 1] == [n for n in shape if n > 1]


def _seen(where: str, marks: Any, rows: int, single: bool) -> Tensor:
    """(rows,) booleans."""
    if isinstance(marks, Tensor):
        seen = dense_tensor(where, marks)
    else:
        array = as_array(where, marks.array if is_series(marks) else marks, "booleans")
        if array.dtype.kind != "b":
            raise _no_booleans(where, str(array.dtype))
        seen = torch.from_numpy(array.copy())
    return check_seen(where, seen.reshape(1) if single and seen.ndim == 0 else seen, rows)


def _isnan(values: Tensor | np.ndarray) -> Any:
    """Where there is no number; false for numbers that cannot be NaN."""
    if isinstance(values, Tensor):
        return values.isnan() if values.is_floating_point() else torch.zeros(values.shape, dtype=torch.bool)
    return np.asarray(pd.isna(values))
