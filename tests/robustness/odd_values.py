"""Values that people pass by mistake, or that come out of files: of every type, shape and size."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pandas as pd
import torch
from hypothesis import strategies as st

SCALARS = st.one_of(
    st.integers(-2, 4),
    st.sampled_from([2**31, -(2**63), 2**63, 2**64, 10**30]),
    st.floats(),
    st.booleans(),
    st.none(),
    st.text(max_size=3),
    st.sampled_from(
        [
            b"x",
            1j,
            decimal.Decimal("1"),
            datetime.date(2020, 1, 1),
            pd.NA,
            pd.NaT,
            np.float16(1),
            np.int8(-1),
            object(),
            int,
        ]
    ),
)

NUMPY_DTYPES = [
    "bool",
    "int8",
    "uint8",
    "int64",
    "uint64",
    ">i4",
    "float16",
    "float64",
    "complex64",
    "object",
    "str",
    "M8[s]",
]
TORCH_DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float64,
]
TORCH_DTYPES += [torch.complex64, torch.uint16, torch.uint64]
PANDAS_DTYPES = ["Int64", "boolean", "string", "category", "Float64", "object", "float32", "datetime64[ns]"]
SHAPES = st.sampled_from([(), (0,), (1,), (3,), (5,), (0, 2), (3, 1), (3, 2), (3, 3), (3, 2, 2), (0, 0), (1, 2)])


@st.composite
def numpy_arrays(draw: st.DrawFn) -> np.ndarray:
    shape, dtype = draw(SHAPES), draw(st.sampled_from(NUMPY_DTYPES))
    numbers = np.array(draw(st.lists(st.integers(-2, 4), min_size=1, max_size=4)))
    return np.resize(numbers, shape).astype(dtype)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape, dtype = draw(SHAPES), draw(st.sampled_from(TORCH_DTYPES))
    numbers = torch.tensor(np.resize(draw(st.lists(st.integers(0, 4), min_size=1, max_size=4)), shape).tolist())
    tensor = numbers.to(dtype)
    if dtype.is_floating_point:
        tensor = tensor * draw(st.sampled_from([1.0, 0.5, float("nan"), float("inf"), 1e30, -1.0]))
        tensor.requires_grad_(draw(st.booleans()))
    return tensor


@st.composite
def series(draw: st.DrawFn) -> pd.Series:
    values = draw(st.lists(st.one_of(st.integers(0, 2), st.none()), max_size=4))
    dtype = draw(st.sampled_from(PANDAS_DTYPES))
    try:
        made = pd.Series(values, dtype="object").astype(dtype)
    except (TypeError, ValueError):
        made = pd.Series(values, dtype="object")
    return made.set_axis([7] * len(made)) if draw(st.booleans()) else made


def odd_columns() -> st.SearchStrategy[Any]:
    """Anything in place of a column of states."""
    lists = st.lists(SCALARS, max_size=4)
    return st.one_of(
        SCALARS,
        lists,
        st.lists(lists, max_size=3),
        lists.map(tuple),
        numpy_arrays(),
        tensors(),
        series(),
        st.dictionaries(st.text(max_size=2), SCALARS, max_size=2),
        st.just(range(3)),
        st.builds(iter, st.just([0, 1, 0])),
        st.just({0, 1}),
        st.builds(lambda: pd.Categorical(["a", "b", None])),
        st.builds(lambda: pd.DataFrame({"q": [0, 1, 0]})),
    )
