"""One table of the forms of a column: every reader takes them all, and marks or names the same invalid rows."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from tests.inputs.test_leaves import ARRAYS, HIDDEN, PEN
from torchpbp import Continuous
from torchpbp.errors import DataError
from torchpbp.inputs import ColumnReader, observed, read_evidence
from torchpbp.inputs.columns import read_column
from torchpbp.inputs.evidence import read_layer_evidence

NAN = math.nan
DOUBLE = torch.tensor(PEN, dtype=torch.float64)
SEEN = torch.tensor([True, False, True])
Reader = Callable[[Any, Any, Sequence[Any] | None], Tensor]


def from_table(value: Any, domain: Any, labels: Sequence[Any] | None) -> Tensor:
    reader = ColumnReader({"x": domain}, None if labels is None else {"x": labels}, missing=True)
    (table,) = reader.tables({"x": value})
    return table["x"]


def from_evidence(value: Any, domain: Any, labels: Sequence[Any] | None) -> Tensor:
    evidence = read_evidence({"x": value}, {"x": domain}, labels=None if labels is None else {"x": labels})
    assert evidence.soft == {}
    return {**evidence.hard, **evidence.real}["x"]


READERS: dict[str, Reader] = {
    "read_column": lambda value, domain, labels: read_column("x", value, domain, labels),
    "table": from_table,
    "evidence": from_evidence,
}
STATES = {
    "list": [0, -1, 2, 1],
    "tuple": (0, -1, 2, 1),
    "None": [0, None, 2, 1],
    "floats": [0.0, NAN, 2.0, 1.0],
    "float32": np.array([0, NAN, 2, 1], dtype=np.float32),
    "int8": np.array([0, -1, 2, 1], dtype=np.int8),
    "another byte order": np.array([0, -1, 2, 1], dtype=">i8"),
    "objects": np.array([0, None, 2, 1], dtype=object),
    "every other entry": np.repeat([0, -1, 2, 1], 2)[::2],
    "strings of digits": ["0", None, "2", "1"],
    "masked integers": np.ma.array([0, 9, 2, 1], mask=[0, 1, 0, 0]),
    "masked floats": np.ma.array([0.0, 9.0, 2.0, 1.0], mask=[0, 1, 0, 0]),
    "masked nowhere": np.ma.array([0, -1, 2, 1]),
    "tensor": torch.tensor([0, -1, 2, 1]),
    "int8 tensor": torch.tensor([0, -1, 2, 1], dtype=torch.int8),
    "float tensor": torch.tensor([0, NAN, 2, 1]),
    "bfloat16 tensor": torch.tensor([0, NAN, 2, 1], dtype=torch.bfloat16),
    "list of tensors": [torch.tensor(i) for i in (0, -1, 2, 1)],
    "Series": pd.Series([0, -1, 2, 1], index=[7, 7, 3, 1]),
    "Int8": pd.Series([0, None, 2, 1], dtype="Int8"),
    "Float64": pd.Series([0, None, 2, 1], dtype="Float64"),
    "categories": pd.Series([0, None, 2, 1], dtype="category"),
    "Series of objects": pd.Series([0, pd.NA, 2, 1], dtype=object),
    "sparse Series": pd.Series([0, -1, 2, 1], dtype="Sparse[int]"),
    "pandas array": pd.array([0, None, 2, 1], dtype="Int8"),
}
COMPLETE = {
    kind: make([0, 2, 1, 1])
    for kind, make in {
        "uint8": lambda x: np.array(x, dtype=np.uint8),
        "uint16": lambda x: np.array(x, dtype=np.uint16),
        "uint64": lambda x: np.array(x, dtype=np.uint64),
        "uint8 tensor": lambda x: torch.tensor(x, dtype=torch.uint8),
        "uint64 tensor": lambda x: torch.tensor(x).to(torch.uint64),
        "UInt8": lambda x: pd.Series(x, dtype="UInt8"),
    }.items()
}
BOOLEANS = {
    "list": [False, True],
    "array": np.array([False, True]),
    "tensor": torch.tensor([False, True]),
    "Series": pd.Series([False, True]),
    "boolean": pd.Series([False, True], dtype="boolean"),
}
LABELS = {
    "list": ["blue", None, "red"],
    "NaN": ["blue", NAN, "red"],
    "array": np.array(["blue", None, "red"], dtype=object),
    "masked": np.ma.array(["blue", "pink", "red"], mask=[0, 1, 0]),
    "Series": pd.Series(["blue", None, "red"]),
    "strings": pd.Series(["blue", pd.NA, "red"], dtype="string"),
    "categories": pd.Series(["blue", None, "red"], dtype="category"),
    "categories in another order": pd.Categorical(["blue", None, "red"], categories=["red", "blue"]),
    "tensor of states": torch.tensor([2, -1, 0]),
}
NUMBERS = {
    "list": [0.5, 1.0, NAN, -1.0],
    "None": [0.5, 1.0, None, -1.0],
    "float32": np.array([0.5, 1.0, NAN, -1.0], dtype=np.float32),
    "objects": np.array([0.5, 1.0, None, -1.0], dtype=object),
    "masked": np.ma.array([0.5, 1.0, 9.0, -1.0], mask=[0, 0, 1, 0]),
    "tensor": torch.tensor([0.5, 1.0, NAN, -1.0]),
    "Float64": pd.Series([0.5, 1.0, None, -1.0], dtype="Float64"),
    "Series of objects": pd.Series([0.5, 1.0, pd.NA, -1.0], dtype=object),
}
INTEGERS = {
    "masked": np.ma.array([1, 2, 3, -1], mask=[0, 1, 0, 0]),
    "Int64": pd.Series([1, None, 3, -1], dtype="Int64"),
    "objects": [1, None, 3, -1],
}
VECTORS = {
    "tensor": DOUBLE,
    "transposed tensor": DOUBLE.T.contiguous().T,
    "sparse tensor": DOUBLE.to_sparse(),
    "float16 tensor": DOUBLE.half(),
    "bfloat16 tensor": DOUBLE.bfloat16(),
    "array": np.array(PEN),
    "array of another byte order": np.array(PEN, dtype=">f8"),
    "masked array": np.ma.masked_array([[1, 2], [8, 9], [3, 4]], mask=[[0, 0], [1, 1], [0, 0]]),
    "array of objects": np.array([[1, 2], [None, None], [3, 4]], dtype=object),
    "lists": PEN,
    "list of arrays": [np.array(row) for row in PEN],
    "list with None": ARRAYS,
    "list with NaN": [[1, 2], NAN, [3, 4]],
    "list with NA": [[1, 2], pd.NA, [3, 4]],
    "list of tensors": list(DOUBLE),
    "list of tensors and None": [DOUBLE[0], None, np.array([3.0, 4.0])],
    "list of masked arrays": [*ARRAYS[:1], np.ma.masked_array([8.0, 9.0], mask=[1, 1]), *ARRAYS[2:]],
    "tuple of arrays": tuple(np.array(row) for row in PEN),
    "Series": pd.Series(ARRAYS),
    "Series of lists": pd.Series([[1, 2], None, [3, 4]]),
    "Series of tensors": pd.Series(list(DOUBLE)),
    "pair of tensors": (torch.tensor(HIDDEN, dtype=torch.float64), SEEN),
    "pair of arrays": (np.array(HIDDEN), SEEN.numpy()),
    "pair of lists": (HIDDEN, [True, False, True]),
    "pair in a list": [torch.tensor(HIDDEN, dtype=torch.float64), SEEN],
    "pair of Series": (pd.Series(ARRAYS), pd.Series([True, False, True])),
    "pair of integers": (torch.tensor([[1, 2], [-9, 9], [3, 4]]), SEEN),
}
TABLES: dict[str, tuple[dict[str, Any], Any, Sequence[Any] | None, list[Any]]] = {
    "states": (STATES, 3, None, [0, -1, 2, 1]),
    "complete states": (COMPLETE, 3, None, [0, 2, 1, 1]),
    "booleans": (BOOLEANS, 2, None, [0, 1]),
    "labels": (LABELS, 3, ("red", "green", "blue"), [2, -1, 0]),
    "numbers as labels": ({"list": [30, None, 10], "floats": np.array([30.0, NAN, 10.0])}, 3, (10, 20, 30), [2, -1, 0]),
    "labels from 0": ({"list": [2, 0]}, 3, (0, 1, 2), [2, 0]),
    "numbers": (NUMBERS, Continuous(), None, [0.5, 1.0, NAN, -1.0]),
    "integers": (INTEGERS, Continuous(), None, [1.0, NAN, 3.0, -1.0]),
    "vectors": (VECTORS, Continuous(shape=(2,)), None, PEN),
}
"""Kind -> its forms, domain, labels, and the column that each form is read as."""


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("reader", READERS)
def test_every_reader_takes_every_form(reader: str, kind: str) -> None:
    forms, domain, labels, expected = TABLES[kind]
    dtype = torch.int64 if isinstance(domain, int) else torch.float64
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for form, value in forms.items():
            found = READERS[reader](value, domain, labels)
            target = torch.tensor(expected, dtype=dtype)
            torch.testing.assert_close(found, target, equal_nan=True, msg=f"{reader}, {kind}, {form}: {found}")


INVALID: dict[str, tuple[Any, Any, list[bool]]] = {
    "states": (torch.tensor([0, 3, -1, -2, 2]), 3, [False, True, False, True, False]),
    "unsigned states": (torch.tensor([0, 200], dtype=torch.uint8), 3, [False, True]),
    "wrapped states": (torch.from_numpy(np.array([2**64 - 1, 1], dtype=np.uint64)), 3, [True, False]),
    "numbers": (torch.tensor([0.5, NAN, math.inf, -math.inf]), Continuous(), [False, False, True, True]),
    "range": (torch.tensor([-0.1, 0.0, 1.0, 1.1, NAN]), Continuous(0.0, 1.0), [True, False, False, True, False]),
    "half a range": (torch.tensor([-0.1, 1e30]), Continuous(low=0.0), [True, False]),
    "vectors": (
        torch.tensor([[1.0, 2.0], [NAN, NAN], [NAN, 2.0], [1.0, math.inf], [9.0, 0.0]]),
        Continuous(-5.0, 5.0, (2,)),
        [False, False, True, True, True],
    ),
    "pairs": (
        (torch.tensor([[NAN, NAN], [NAN, 1.0], [NAN, 1.0], [1.0, 2.0]]), torch.tensor([True, True, False, True])),
        Continuous(shape=(2,)),
        [True, True, False, False],
    ),
}


def test_a_mask_of_states_among_fractions() -> None:
    states, invalid = read_column("x", torch.tensor([0.5, NAN, 2.0, math.inf, -math.inf, 3.0]), 3, strict=False)
    assert invalid.tolist() == [True, False, False, True, True, True]
    assert states.tolist() == [-1, -1, 2, -1, -1, -1]


@pytest.mark.parametrize("kind", INVALID)
def test_a_mask_marks_the_rows_about_which_errors_are_raised(kind: str) -> None:
    value, domain, expected = INVALID[kind]
    values, invalid = read_column("x", value, domain, strict=False)
    assert invalid.tolist() == expected
    assert not observed(values)[invalid].any()
    evidence, rows = read_layer_evidence({"x": value}, {"x": domain})
    assert rows.tolist() == expected
    assert not observed({**evidence.hard, **evidence.real}["x"])[rows].any()
    for i, wrong in enumerate(expected):
        row = tuple(part[i : i + 1] for part in value) if isinstance(value, tuple) else value[i : i + 1]
        for read in READERS.values():
            if wrong:
                with pytest.raises(DataError, match="row 0"):
                    read(row, domain, None)
            else:
                torch.testing.assert_close(read(row, domain, None).double(), values[i : i + 1].double(), equal_nan=True)
