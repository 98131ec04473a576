"""Columns as people write them: labels, masked arrays, Series; as arrays of numbers and states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from torchpbp.errors import DataError


def as_array(value: Any) -> np.ndarray:
    """An array of numbers, or of objects if the value holds strings: numpy would turn a NaN among strings into 'nan'."""
    array = unmasked(value) if isinstance(value, np.ndarray) else np.asarray(value)
    if array.dtype.kind in "US":
        array = np.asarray(value, dtype=object)
    return array


def unmasked(array: np.ndarray) -> np.ndarray:
    """The same array; if it is a masked one, with None (NaN among floating-point numbers) where the mask hides a value."""
    if not isinstance(array, np.ma.MaskedArray):
        return array
    if not np.ma.is_masked(array):
        return np.asarray(array.data)
    if array.dtype.kind == "f":
        return np.asarray(array.filled(np.nan))
    result = array.data.astype(object)
    result[np.ma.getmaskarray(array)] = None
    return np.asarray(result)


def own_tensor(array: np.ndarray) -> Tensor:
    """A tensor with memory of its own; an array out of pandas may be read-only, one out of a file in foreign byte order."""
    kind = array.dtype.kind
    # Platform-dependent types such as longlong, which torch refuses, become those of the same size.
    plain = f"{kind}{min(array.dtype.itemsize, 8)}" if kind in "iuf" else array.dtype.newbyteorder("=")
    return torch.from_numpy(array.astype(plain))


def is_code_range(labels: Sequence[Any]) -> bool:
    """Whether labels are just 0, 1, 2, …, so that label and state index are the same thing."""
    return list(labels) == list(range(len(labels)))


def are_labels(values: np.ndarray, labels: Sequence[Any]) -> bool:
    """Whether numbers are labels themselves, such as the years 2020 and 2021; NaN stands for a missing one."""
    present = values[~pd.isna(values)]
    return len(present) > 0 and not is_code_range(labels) and set(present.tolist()) <= set(labels)


def states_from_labels(
    name: str, values: np.ndarray, labels: Sequence[Any] | None, where: str, expected: str = "integer states"
) -> np.ndarray:
    """State index of each label; -1 for None, NaN and pandas NA."""
    missing = np.asarray(pd.isna(values))
    if labels is None:
        try:
            numbers = np.full(values.shape, np.nan)
            numbers[~missing] = values[~missing].astype(float)
            return numbers
        except (TypeError, ValueError):
            raise DataError(
                f"{where} '{name}': expected {expected}, got {values[~missing][0]!r}. The model was fitted without "
                "labels for this variable."
            ) from None
    result = np.full(values.shape, -1, dtype=np.int64)
    present = values[~missing]
    try:
        found = pd.Index(list(labels), dtype=object).get_indexer(present)
    except TypeError:  # lists, sets and the like
        raise DataError(f"{where} '{name}': expected labels out of {list(labels)}, got {present[0]!r}.") from None
    if (found < 0).any():
        unseen = present[found < 0][0]
        raise DataError(f"{where} '{name}': unseen category {unseen!r}. Known categories: {list(labels)}.")
    result[~missing] = found
    return result


def refuse_misaligned(columns: Mapping[str, Any], where: str) -> None:
    """Refuse Series that name the same rows in different places: columns are put side by side as they are.

    Args:
        columns: name -> column of any kind.
        where: begins the message.
    """
    series = {name: column for name, column in columns.items() if isinstance(column, pd.Series)}
    first = next(iter(series), None)
    for name, column in series.items():
        known = series[str(first)].index
        if not column.index.equals(known) and len(column.index.intersection(known)):
            raise DataError(
                f"{where} '{name}': its index has rows of '{first}' in other places. Align the two, as in a DataFrame, or pass "
                "arrays (to_numpy()) to have them taken as they stand."
            )
