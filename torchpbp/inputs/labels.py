"""Columns as people write them: labels, masked arrays, Series; as arrays of numbers and states."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchpbp.errors import DataError, LabelWarning, warn_caller
from torchpbp.inputs.states import EXACT, written
from torchpbp.lazy import is_series
from torchpbp.lazy import pandas as pd

NO_LABELS = " The model was fitted without labels for this variable."
"""Ends the message about a label where numbers were expected."""


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


def object_numbers(
    where: str,
    values: np.ndarray,
    start: int = 0,
    states: int | None = None,
    expected: str = "numbers",
    remark: str = "",
    hint: str = "",
) -> np.ndarray:
    """float64 numbers from an array of objects; NaN for None, NaN and pandas NA.

    Args:
        where: begins messages; names the variable.
        values: (rows, …) objects.
        start: number of the first row, for messages.
        states: of a discrete variable, whose states must be exact; None for values of a continuous one.
        expected, remark, hint: parts of the message about what is no number.

    Raises:
        DataError: what is no number, or a number that is too large for float64, or for an exact state.
    """
    missing = np.asarray(pd.isna(values))
    numbers = np.full(values.shape, np.nan)
    try:
        numbers[~missing] = values[~missing].astype(float)
    except (TypeError, ValueError, OverflowError):  # what is no number, or one beyond the largest float64
        present = list(values[~missing])
        wrong = [value for value in present if _rounded(value) is None]
        if wrong:
            raise DataError(f"{where}{remark}: expected {expected}, got {written(wrong[0])}.{hint}") from None
        numbers[~missing] = [_rounded(value) for value in present]
    beyond = np.isinf(numbers) if states is None else np.abs(numbers) >= EXACT
    if beyond.any():
        place = tuple(np.argwhere(beyond)[0])
        wanted = "a finite number" if states is None else f"a whole number from 0 to {states - 1}"
        raise DataError(f"{where}, row {start + int(place[0])}: expected {wanted}, got {written(values[place])}.")
    return numbers


def _rounded(value: Any) -> float | None:
    """The nearest float64, infinite if need be; None for what is no number."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError):
        return None


def states_from_labels(where: str, values: np.ndarray, labels: Sequence[Any], start: int = 0) -> np.ndarray:
    """State index of each label; -1 for None, NaN and pandas NA.

    Args:
        where: begins messages; names the variable.
        values: (rows, …) labels.
        labels: of the states, in their order.
        start: number of the first row, for messages.
    """
    missing = np.asarray(pd.isna(values))
    result = np.full(values.shape, -1, dtype=np.int64)
    present = values[~missing]
    try:
        found = pd.Index(list(labels), dtype=object).get_indexer(present)
    except TypeError:  # lists, sets and the like
        raise DataError(f"{where}: expected labels out of {list(labels)}, got {written(present[0])}.") from None
    if (found < 0).any():
        first = int(np.flatnonzero(found < 0)[0])
        row = start + int(np.argwhere(~missing)[first][0])
        raise DataError(
            f"{where}, row {row}: unseen category {written(present[first])}. Known categories: {list(labels)}."
        )
    result[~missing] = found
    return result


def warn_of_few_labels(labels: Mapping[str, Sequence[Any]], states: Mapping[str, int]) -> None:
    """Warn, once for all columns, of labels that are fewer than the states of their variables.

    Args:
        labels: column -> its labels, as they were found in the data.
        states: variable -> its number of states.
    """
    few = {v: len(x) for v, x in labels.items() if len(x) < states[v]}
    if few:
        listed = ", ".join(f"'{v}' ({n} of {states[v]})" for v, n in list(few.items())[:20])
        more = f" and {len(few) - 20} more" if len(few) > 20 else ""
        warn_caller(
            f"Columns with fewer labels than the graph gives them states: {listed}{more}. The model takes the states without "
            "a label for states that never occur. Give the graph as many states as there are labels, or, where a label just "
            "does not occur in these rows, make the column a pandas category column with all its categories.",
            LabelWarning,
        )


def refuse_misaligned(columns: Mapping[str, Any], where: str) -> None:
    """Refuse Series that name the same rows in different places: columns are put side by side as they are.

    Args:
        columns: name -> column of any kind.
        where: begins the message.
    """
    series = {name: column for name, column in columns.items() if is_series(column)}
    first = next(iter(series), None)
    for name, column in series.items():
        known = series[str(first)].index
        if not column.index.equals(known) and len(column.index.intersection(known)):
            raise DataError(
                f"{where} '{name}': its index has rows of '{first}' in other places. Align the two, as in a DataFrame, or pass "
                "arrays (to_numpy()) to have them taken as they stand."
            )
