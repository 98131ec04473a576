"""Labels of states, and numbers in arrays of objects, converted to states and numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchpbp.errors import DataError, LabelWarning, warn_caller
from torchpbp.graph.latent_graph import Domain
from torchpbp.inputs.arrays import own_tensor, shared_tensor
from torchpbp.inputs.states import EXACT
from torchpbp.lazy import is_series
from torchpbp.lazy import pandas as pd
from torchpbp.settings import shortened

NO_LABELS = " The model was fitted without labels for this variable."
"""Ends the error about a label where numbers were expected."""


def numeric_tensor(
    where: str,
    array: np.ndarray,
    labels: Sequence[Any] | None,
    domain: Domain,
    expected: str,
    start: int = 0,
    shared: bool = False,
) -> Tensor:
    """States of labels, or numbers as they are.

    Args:
        where: begins errors; names the variable.
        array: (rows, …) labels or numbers; None, NaN and pandas NA are missing.
        labels: of the variable's states, if it is known by labels.
        domain: of the variable.
        expected: what should have come, for errors.
        start: number of the first row, for errors.
        shared: the tensor may be over the memory of the array; it has its own by default.

    Returns:
        (rows, …) states as int64 where they come as labels or as whole numbers among objects, -1 where missing; otherwise the
        numbers in their own dtype.

    Raises:
        DataError: unknown labels, plain numbers for a variable with labels, values that are not real numbers.
    """
    if labels is not None and (array.dtype == object or (array.ndim == 1 and are_labels(array, labels))):
        return torch.from_numpy(states_from_labels(where, array.astype(object), labels, start))
    if labels is not None and array.ndim == 1 and not is_code_range(labels) and not pd.isna(array).all():
        raise DataError(
            f"{where}: expected labels out of {list(labels)[:6]}, got plain numbers. Pass labels, or an integer tensor of states."
        )
    if array.dtype == object:
        numbers = _object_numbers(where, array, domain, expected, start)
        filled = np.where(np.isnan(numbers), -1, numbers)
        whole = isinstance(domain, int) and array.ndim == 1 and bool(np.all(filled == np.round(filled)))
        return torch.from_numpy(filled.astype(np.int64) if whole else numbers)
    if array.dtype.kind not in "biuf":
        remedy = " Convert dates to numbers, such as days." if array.dtype.kind in "mM" else ""
        raise DataError(f"{where}: expected {expected}, got {array.dtype} values.{remedy}")
    return shared_tensor(array) if shared else own_tensor(array)


def is_code_range(labels: Sequence[Any]) -> bool:
    """Whether labels are just 0, 1, 2, …, so that label and state index are the same thing."""
    return list(labels) == list(range(len(labels)))


def are_labels(values: np.ndarray, labels: Sequence[Any]) -> bool:
    """Whether numbers are labels themselves, such as the years 2020 and 2021; NaN stands for a missing one."""
    present = values[~pd.isna(values)]
    return len(present) > 0 and not is_code_range(labels) and set(present.tolist()) <= set(labels)


def _object_numbers(where: str, values: np.ndarray, domain: Domain, expected: str, start: int) -> np.ndarray:
    """float64 numbers from an array of objects; NaN for None, NaN and pandas NA.

    Raises:
        DataError: a value that is not a number, or one that is too large for float64, or for an exact state.
    """
    missing = np.asarray(pd.isna(values))
    numbers = np.full(values.shape, np.nan)
    try:
        numbers[~missing] = values[~missing].astype(float)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # not a number, or beyond the largest float64
        present = list(values[~missing])
        rounded = [_rounded(value) for value in present]
        for value, number in zip(present, rounded, strict=True):
            if number is None:
                hint = NO_LABELS if isinstance(value, str) and isinstance(domain, int) else ""
                raise DataError(f"{where}: expected {expected}, got {shortened(value, 60)}.{hint}") from None
        numbers[~missing] = rounded
    beyond = np.abs(numbers) >= EXACT if isinstance(domain, int) else np.isinf(numbers)
    if beyond.any():
        place = tuple(np.argwhere(beyond)[0])
        wanted = f"a whole number from 0 to {domain - 1}" if isinstance(domain, int) else "a finite number"
        raise DataError(f"{where}, row {start + int(place[0])}: expected {wanted}, got {shortened(values[place], 60)}.")
    return numbers


def _rounded(value: Any) -> float | None:
    """The nearest float64, infinite if need be; None for a value that is not a number."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError, RuntimeError):
        return None


def states_from_labels(where: str, values: np.ndarray, labels: Sequence[Any], start: int = 0) -> np.ndarray:
    """State index of each label; -1 for None, NaN and pandas NA.

    Args:
        where: begins errors; names the variable.
        values: (rows, …) labels.
        labels: of the states, in their order.
        start: number of the first row, for errors.
    """
    missing = np.asarray(pd.isna(values))
    result = np.full(values.shape, -1, dtype=np.int64)
    present = values[~missing]
    try:
        states = pd.Index(list(labels), dtype=object).get_indexer(present)
    except TypeError:  # lists, sets and the like
        raise DataError(f"{where}: expected labels out of {list(labels)}, got {shortened(present[0], 60)}.") from None
    if (states < 0).any():
        first = int(np.flatnonzero(states < 0)[0])
        row = start + int(np.argwhere(~missing)[first][0])
        raise DataError(
            f"{where}, row {row}: unseen category {shortened(present[first], 60)}. Known categories: {list(labels)}."
        )
    result[~missing] = states
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


def check_alignment(columns: Mapping[str, Any], where: str) -> None:
    """Check that Series with rows in common have them in the same places: columns are put side by side as they are.

    Args:
        columns: name -> column of any kind.
        where: begins the error.

    Raises:
        DataError: a Series whose index has the rows of another one in other places.
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
