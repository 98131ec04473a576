"""Values that people pass by mistake or that come out of files, and a plain reading of them to compare with."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import math
import numbers
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import torch
from hypothesis import strategies as st

SCALARS = st.one_of(
    st.integers(-2, 4),
    st.floats(),
    st.booleans(),
    st.none(),
    st.sampled_from(["no", "yes", "", "1"]),
    st.sampled_from([2**31, 2**63, 2**64 - 1, 10**30, b"x", 1j, decimal.Decimal("1"), datetime.date(2020, 1, 1)]),
    st.sampled_from([pd.NA, pd.NaT, np.float16(1), np.int8(-1), object(), int]),
)
NUMPY_DTYPES = ["bool", "int8", "uint8", "int64", "uint64", ">i4", "float16", "float64", "complex64", "object", "str"]
TORCH_DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int64, torch.float16, torch.bfloat16, torch.float64]
TORCH_DTYPES += [torch.complex64, torch.uint64]
PANDAS_DTYPES = ["Int64", "boolean", "string", "category", "Float64", "object", "float32", "datetime64[ns]"]
SHAPES = st.sampled_from([(), (0,), (1,), (3,), (0, 2), (3, 1), (3, 2), (3, 3), (3, 2, 2), (1, 2)])


@st.composite
def numpy_arrays(draw: st.DrawFn) -> np.ndarray:
    values = np.array(draw(st.lists(st.integers(-2, 4), min_size=1, max_size=4)))
    return np.resize(values, draw(SHAPES)).astype(draw(st.sampled_from(NUMPY_DTYPES)))


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    values = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    tensor = torch.tensor(np.resize(values, draw(SHAPES)).tolist()).to(draw(st.sampled_from(TORCH_DTYPES)))
    if tensor.is_floating_point():
        tensor = tensor * draw(st.sampled_from([1.0, 0.5, math.nan, math.inf, 1e30, -1.0]))
        tensor.requires_grad_(draw(st.booleans()))
    return tensor


@st.composite
def series(draw: st.DrawFn) -> pd.Series:
    made = pd.Series(draw(st.lists(st.one_of(st.integers(0, 2), st.none()), max_size=4)), dtype="object")
    with contextlib.suppress(TypeError, ValueError):
        made = made.astype(draw(st.sampled_from(PANDAS_DTYPES)))
    return made.set_axis([7] * len(made)) if draw(st.booleans()) else made


@st.composite
def plain_columns(draw: st.DrawFn, tensors_only: bool = False) -> Any:
    """Columns of states, labels or weights in the forms in which they are usually passed."""
    if tensors_only:
        column = torch.tensor(draw(st.lists(st.sampled_from([0, 1, -1, 2]), min_size=1, max_size=6)))
        return draw(st.sampled_from([column, column.int(), torch.eye(2, dtype=torch.float64)[column.clamp(0, 1)]]))
    kinds = [[0, 1], [0, 1, -1], [0, 1, None], [0.0, 1.0, math.nan], ["no", "yes"], ["no", "yes", None], [0, 1, 2]]
    column = draw(st.lists(st.sampled_from(draw(st.sampled_from(kinds))), min_size=3, max_size=8))
    forms = [list, tuple, np.array, pd.Series, lambda c: pd.Series(c, dtype="category")]
    return draw(st.sampled_from(forms))(column)


def odd_columns() -> st.SearchStrategy[Any]:
    """Anything in place of a column of states."""
    lists = st.lists(SCALARS, max_size=4)
    return st.one_of(
        SCALARS,
        lists,
        lists.map(tuple),
        st.lists(st.lists(st.floats(-1, 2), min_size=2, max_size=2), max_size=3),
        numpy_arrays(),
        tensors(),
        series(),
        st.dictionaries(st.text(max_size=2), SCALARS, max_size=2),
        st.sampled_from([range(2), {0, 1}, pd.Categorical(["no", "yes", None]), pd.DataFrame({"q": [0, 1, 0]})]),
        st.builds(iter, st.just([0, 1, 0])),
    )


class Unreadable(Exception):
    """The value has no meaning as a column."""


def entries(column: Any) -> list[Any]:
    """The rows of a column as Python objects; a single value is one row."""
    if isinstance(column, torch.Tensor):
        column = column.detach().tolist()
    elif isinstance(column, np.ndarray | pd.Series | pd.Categorical):
        column = column.tolist()
    elif isinstance(column, pd.DataFrame):
        column = column.to_numpy().tolist()
    if isinstance(column, Iterable) and not isinstance(column, str | bytes | list | tuple | range):
        raise Unreadable
    return list(column) if isinstance(column, list | tuple | range) else [column]


def number(entry: Any) -> float:
    """A finite number, or NaN for a missing value."""
    if entry is None or entry is pd.NA or entry is pd.NaT:
        return math.nan
    try:
        value = float(entry) if isinstance(entry, numbers.Real | decimal.Decimal | np.bool_ | str) else math.inf
    except ValueError:  # a string that is no number
        value = math.inf
    if math.isinf(value):
        raise Unreadable
    return value


def weights(column: Any, labels: tuple[str, ...] = ("0", "1"), soft: bool = True) -> np.ndarray:
    """(rows, states) weights over states: a row of ones for a missing value, a single one for a state or its label.

    Raises:
        Unreadable: a row that is neither a missing value, a state, a label nor, if ``soft``, a list of weights.
    """
    count, rows = len(labels), []
    for entry in entries(column):
        if isinstance(entry, list | tuple) and soft:
            row = np.array([number(w) for w in entry])
            if row.shape != (count,) or not (row >= 0).all() or not row.any():
                raise Unreadable
            rows.append(row)
            continue
        value = labels.index(entry) if isinstance(entry, str) and entry in labels else number(entry)
        if math.isnan(value) or value == -1:
            rows.append(np.ones(count))
        elif value in range(count):
            rows.append(np.eye(count)[int(value)])
        else:
            raise Unreadable
    return np.array(rows).reshape(-1, count)
