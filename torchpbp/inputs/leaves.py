"""Columns of vectors or images, in shape (rows, *shape): tensors, arrays, lists and columns of arrays, pairs (values, seen).

A value is observed or missing as a whole. Missing values are NaN in all entries, None in a list or column of arrays, or
false in ``seen`` of a pair (values, seen).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchpbp.errors import DataError, ShapeError
from torchpbp.inputs.arrays import as_array, dense_tensor, name_of, number_tensor, unmasked
from torchpbp.lazy import is_categorical, is_series
from torchpbp.lazy import pandas as pd


def open_leaves(
    where: str, value: Any, shape: tuple[int, ...], single: bool = False
) -> tuple[Tensor | np.ndarray, Tensor | None]:
    """An unconverted column of vectors or images in any form: the arguments ``values`` and ``seen`` of :func:`leaf_values`.

    Args:
        where: begins errors; names the variable.
        value: (rows, *shape) tensor or array; list, Series or array of objects with a value of this shape, or None, for each
            row; or a pair of such values and (rows,) booleans, true where the value is observed.
        shape: shape of one value.
        single: accept one value without a dimension of rows as one row.

    Raises:
        DataError: values that are not numbers, or ``seen`` of another dtype than bool.
        ShapeError: values or ``seen`` of another shape.
    """
    pair = _pair(value)
    values, marks = (value, None) if pair is None else pair
    alone = single and not is_series(values)  # a Series always has rows
    rows = _with_rows(where, _as_rows(where, values), shape, alone)
    return rows, None if marks is None else _seen(where, marks, len(rows), alone)


def leaf_values(
    where: str, values: Tensor | np.ndarray, shape: tuple[int, ...], seen: Tensor | None = None, start: int = 0
) -> Tensor:
    """(rows, *shape) values, float32 for input of dtype float32 or uint8, otherwise float64; missing values are all NaN.

    Observed values are differentiable.

    Args:
        where: begins errors; names the variable.
        values: (rows, *shape) tensor or array of numbers, or (rows,) array of objects, each a value or missing.
        shape: shape of one value.
        seen: (rows,) booleans, false where the value is missing (``values`` is ignored there); None: missing values are NaN.
        start: number of the first row, for errors.

    Raises:
        DataError: values that are not numbers; a value with some entries NaN, or all NaN though seen.
        ShapeError: values of another shape.
    """
    if isinstance(values, np.ndarray) and values.dtype == object and values.ndim == 1:
        values = _filled(where, values, shape, start)
    if isinstance(values, np.ndarray):
        values = number_tensor(where, values, "numbers")
    values = floating(values)
    if seen is not None:
        seen = seen.to(values.device)
        values = torch.where(along(seen, values), values, torch.nan)
    _check_complete(where, values.detach(), seen, start)
    return values


def _filled(where: str, entries: np.ndarray, shape: tuple[int, ...], start: int) -> Tensor | np.ndarray:
    """(rows, *shape) numbers of an array of objects, whose missing values are None, NaN or pandas NA."""
    present = np.flatnonzero(~np.asarray(pd.isna(entries)))
    if not len(present):
        return np.full((len(entries), *shape), np.nan)
    some = list(entries[present])
    for i, value in enumerate(some):
        value_shape = shape_of_array(value)
        if value_shape != shape:
            kind = (
                "entries of different lengths"
                if value_shape is None
                else f"{kind_of_array(value)} of shape {value_shape}"
            )
            raise ShapeError(f"{where}, row {start + int(present[i])}: expected numbers of shape {shape}, got {kind}.")
    stacked = _stacked(where, some)
    if len(present) == len(entries):
        return stacked
    if isinstance(stacked, np.ndarray):
        stacked = number_tensor(where, stacked, "numbers")
    stacked = floating(stacked)
    filled = stacked.new_full((len(entries), *shape), torch.nan)
    return filled.index_put((torch.from_numpy(present).to(filled.device),), stacked)


def _check_complete(where: str, values: Tensor, seen: Tensor | None, start: int) -> None:
    """Raise a DataError if a value is partly NaN, or NaN though marked as seen."""
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
    if seen is not None and bool((empty & seen).any()):
        row = int((empty & seen).nonzero()[0])
        raise DataError(
            f"{where}, row {start + row}: the value is marked as seen, but all its entries are NaN. Mark it as missing in "
            "the second part of the pair (values, seen)."
        )


def check_seen(where: str, seen: Tensor, rows: int) -> Tensor:
    """The second part of a pair (values, seen), checked to have one boolean for each row.

    Args:
        where: begins errors.
        seen: second part of the pair.
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


def floating(values: Tensor) -> Tensor:
    """The same values in a floating-point dtype: float32 for float32 and uint8 (images), otherwise float64."""
    return values.to(torch.float32 if values.dtype in (torch.float32, torch.uint8) else torch.float64)


def along(rows: Tensor, values: Tensor) -> Tensor:
    """(rows,) booleans in a shape that broadcasts with (rows, …) values."""
    return rows.view(-1, *[1] * (values.ndim - 1))


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


def _no_booleans(where: str, kind: str) -> DataError:
    return DataError(
        f"{where}: expected a pair (values, seen) with booleans as seen, true where the value is observed; got {kind}. Convert "
        "it: seen.to(torch.bool)."
    )


def _pair(value: Any) -> tuple[Any, Any] | None:
    """The parts of a pair (values, seen); None for plain values, including lists of two rows.

    A list is a pair only if its second part holds booleans: DataLoaders convert tuples to such lists.
    """
    if not isinstance(value, tuple | list) or len(value) != 2:
        return None
    values, seen = value
    shape, marks = shape_of_array(values), shape_of_array(seen)
    if kind_of_array(seen) == "bool":
        is_pair = kind_of_array(values) != "bool" or shape != marks
    else:  # reported as a pair without booleans
        is_pair = (
            isinstance(value, tuple) and marks is not None and len(marks) == 1 and (shape is None or len(shape) > 1)
        )
    return (values, seen) if is_pair else None


def _as_rows(where: str, value: Any) -> Tensor | np.ndarray:
    """A tensor or array of numbers, or an array of objects."""
    if isinstance(value, Tensor):
        return dense_tensor(where, value)
    if is_series(value):
        value = value.array
    if is_categorical(value):
        raise DataError(f"{where}: expected arrays of numbers, got a category column.")
    if isinstance(value, list | tuple) and any(isinstance(row, Tensor | np.ma.MaskedArray) for row in value):
        return np.fromiter(value, dtype=object, count=len(value))  # numpy would drop gradients and masks
    try:
        return as_array(where, value, "arrays of numbers")
    except DataError:
        if not isinstance(value, list | tuple):
            raise
        return np.fromiter(value, dtype=object, count=len(value))  # rows of different shapes, missing ones among them


def _with_rows(where: str, values: Tensor | np.ndarray, shape: tuple[int, ...], single: bool) -> Tensor | np.ndarray:
    """(rows, *shape) numbers, or (rows,) objects."""
    actual = tuple(values.shape)
    objects = isinstance(values, np.ndarray) and values.dtype == object
    if actual[1:] == shape or (objects and len(actual) == 1):
        return values
    if single and actual == shape:
        return values[None]
    if len(actual) == 0 and single and bool(_isnan(values)):
        return np.full(1, None, dtype=object)
    if len(actual) == 1 and bool(_isnan(values).all()):  # no rows, or none with a value
        return np.full(actual, None, dtype=object)
    remedy = ""
    if len(actual) > 1 and _same_order(actual[1:], shape):
        remedy = f" Reshape them: values.reshape(-1, {', '.join(map(str, shape))})."
    alone = f", or one value of shape {shape}" if single else ""
    raise ShapeError(
        f"{where}: expected values of shape (rows, {', '.join(map(str, shape))}){alone}; got {kind_of_array(values)} of shape "
        f"{actual}.{remedy}"
    )


def _same_order(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    """Whether the shapes differ only by flattening or by dimensions of size 1, with all axes in the same order."""
    flat = math.prod(first) == math.prod(second) and 1 in (len(first), len(second))
    return flat or [n for n in first if n > 1] == [n for n in second if n > 1]


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
    """Mask of missing numbers; false for dtypes without NaN."""
    if isinstance(values, Tensor):
        return values.isnan() if values.is_floating_point() else torch.zeros(values.shape, dtype=torch.bool)
    return np.asarray(pd.isna(values))


def _stacked(where: str, rows: list[Any]) -> Tensor | np.ndarray:
    """Values of equal shape, stacked along a first dimension."""
    if not any(isinstance(row, Tensor) for row in rows):
        return np.stack([unmasked(row) if isinstance(row, np.ndarray) else np.asarray(row) for row in rows])
    tensors = [  # numpy would detach gradients
        dense_tensor(where, row)
        if isinstance(row, Tensor)
        else number_tensor(where, as_array(where, row, "numbers"), "numbers")
        for row in rows
    ]
    same = len({t.dtype for t in tensors}) == 1
    return torch.stack(tensors if same else [t.to(torch.float64) for t in tensors])
