"""Labels of states: detection in columns, and conversion to states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from torchpbp.errors import DataError, LabelWarning, warn_caller
from torchpbp.lazy import is_categorical, is_frame, is_series
from torchpbp.lazy import pandas as pd
from torchpbp.settings import shortened

BOOLEANS = (False, True)
"""Labels of a boolean column, equal to its states."""


def is_code_range(labels: Sequence[Any]) -> bool:
    """Whether labels are 0, 1, 2, … or False and True, so that label and state are the same number."""
    return list(labels) == list(range(len(labels)))


def same_numbers(first: Sequence[Any] | None, second: Sequence[Any] | None) -> bool:
    """Whether two columns, with labels or without, denote states by the same numbers."""
    return all(labels is None or is_code_range(labels) for labels in (first, second))


def are_labels(values: np.ndarray, labels: Sequence[Any]) -> bool:
    """Whether numbers are labels, such as the years 2020 and 2021; NaN is missing."""
    present = values[~pd.isna(values)]
    return len(present) > 0 and set(present.tolist()) <= set(labels)


def found_labels(where: str, column: Any) -> list[Any] | None:
    """Labels in a column: ordered categories, sorted strings, or booleans; None for numbers.

    Args:
        where: begins errors.
        column: a pandas array of categories, or an array.

    Raises:
        DataError: strings among other values.
    """
    if is_categorical(column):
        return list(column.categories)
    if column.dtype == bool:
        return list(BOOLEANS)
    if column.dtype != object or column.ndim != 1:
        return None
    present = column[~pd.isna(column)]
    strings = sum(isinstance(x, str) for x in present)
    if strings and strings < len(present):
        raise DataError(f"{where} mixes strings with other values. Use one kind, or a pandas category column.")
    if strings:
        return sorted(set(present))
    return list(BOOLEANS) if len(present) and all(isinstance(x, bool | np.bool_) for x in present) else None


def states_from_labels(where: str, values: np.ndarray, labels: Sequence[Any], start: int = 0) -> np.ndarray:
    """State of each label; -1 for None, NaN, NaT and pandas NA.

    Args:
        where: begins errors; names the variable.
        values: (rows, …) labels.
        labels: labels of the states, in their order.
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


def states_from_categories(where: str, column: pd.Categorical, labels: Sequence[Any]) -> np.ndarray:
    """State of each entry of a category column, in the smallest dtype; -1 where missing.

    The categories may be a subset of the labels, in any order. Unused categories may be missing from the labels.
    """
    states = pd.Index(list(labels), dtype=object).get_indexer(list(column.categories))
    if (states < 0).any() and (states[column.codes[column.codes >= 0]] < 0).any():
        return states_from_labels(where, np.asarray(column.astype(object), dtype=object), labels)
    return np.append(states, -1).astype(np.min_scalar_type(-len(labels) - 1))[column.codes]


def warn_of_few_labels(labels: Mapping[str, Sequence[Any]], states: Mapping[str, int]) -> None:
    """Warn, once for all columns, of variables with fewer labels than states.

    Args:
        labels: column -> its labels in the data.
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


def named_columns(table: Any, names: Iterable[str], where: str) -> dict[str, Any]:
    """Some columns of a dict or DataFrame: each of them exists, once, and Series have their rows in the same places.

    Args:
        table: dict of columns or DataFrame.
        names: of the columns.
        where: begins errors.

    Raises:
        DataError: missing columns, columns of one name, Series with different indices.
    """
    names = list(names)
    absent = [v for v in names if v not in table]
    if absent:
        raise DataError(
            f"{where}missing columns {absent}. The data has: {', '.join(map(str, list(table)[:20])) or 'none'}."
        )
    if is_frame(table):
        require_unique(list(table.columns), names, where)
    columns = {v: table[v] for v in names}
    check_alignment(columns, f"{where}column")
    return columns


def check_alignment(columns: Mapping[str, Any], where: str) -> None:
    """Check that Series and DataFrames with common rows have them in the same positions, since columns are read by position.

    Args:
        columns: name -> column of any kind.
        where: begins the error.

    Raises:
        DataError: an index with the rows of another index in other positions.
    """
    indexed = {name: column for name, column in columns.items() if is_series(column) or is_frame(column)}
    first = next(iter(indexed), None)
    for name, column in indexed.items():
        index = indexed[str(first)].index
        if not column.index.equals(index) and len(column.index.intersection(index)):
            raise DataError(
                f"{where} '{name}': its index has rows of '{first}' in other places. Align the two, as in a DataFrame, or pass "
                "arrays (to_numpy()) to have them taken as they stand."
            )


def require_unique(names: Sequence[Any], wanted: Any, where: str) -> None:
    """Raise a DataError for columns that are read and occur more than once.

    Args:
        names: names of all columns.
        wanted: names of the columns to read.
        where: begins the error.
    """
    if len(set(names)) < len(names):
        twice = [v for v in dict.fromkeys(names) if v in wanted and list(names).count(v) > 1]
        if twice:
            raise DataError(f"{where}columns {twice} occur more than once. Give each column a unique name.")
