"""Numbers beyond int64, and beyond what a float64 holds exactly: rejected by row and value, never taken for a missing value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from torchpbp import Continuous, GenerativeClassifier, KernelPBP, templates
from torchpbp.errors import DataError
from torchpbp.features import complete_table
from torchpbp.inputs import read_evidence
from torchpbp.inputs.columns import ColumnReader
from torchpbp.inputs.states import EXACT, OUTSIDE, comparable, whole_numbers

TOP = 2**64 - 1  # -1 as a signed number
STATES = {"x": 4}

COLUMNS: list[tuple[Any, str]] = [
    (np.array([0, TOP], dtype=np.uint64), str(TOP)),
    (np.array([0, 2**63], dtype=np.uint64), str(2**63)),
    (torch.from_numpy(np.array([0, TOP], dtype=np.uint64)), str(TOP)),
    (torch.tensor([0, 2**32 - 1], dtype=torch.uint32), str(2**32 - 1)),
    (torch.tensor([0, 2**16 - 1], dtype=torch.uint16), str(2**16 - 1)),
    (torch.tensor([0, 255], dtype=torch.uint8), "255"),
    (torch.tensor([0, 2**63 - 1]), str(2**63 - 1)),
    (torch.tensor([0, -(2**63)]), str(-(2**63))),
    (pd.Series([0, TOP], dtype="uint64"), str(TOP)),
    (pd.Series([0, TOP], dtype="UInt64"), str(TOP)),
    (pd.Series([0, TOP, None], dtype="UInt64"), r"1\.8446744073709552e\+19"),  # pandas makes it a float
    ([0, TOP], r"1\.8446744073709552e\+19"),
    ([0, TOP, None], str(TOP)),
    (np.array([0, 2**53 + 1], dtype=object), str(2**53 + 1)),
    (np.array([0, -(2**53) - 1, None], dtype=object), str(-(2**53) - 1)),
    ([0, 10**400], r"1e\+400"),
    ([0, -(10**5000), None], r"-1e\+5000"),
    (np.array([0, 1.8446744073709552e19]), r"1\.8446744073709552e\+19"),
    (np.array([0, -1.8446744073709552e19]), r"-1\.8446744073709552e\+19"),
    (np.array([0, 9223372036854775808.0]), r"9\.223372036854776e\+18"),
    (np.array([0, 2.0**53]), r"9007199254740992\.0"),
    (torch.tensor([0.0, 2.0**100]), r"1\.2676506002282294e\+30"),
    (torch.tensor([0.0, 65504.0], dtype=torch.float16), "65504"),
    (np.ma.masked_array([0, TOP, 0], mask=[False, False, True], dtype=np.uint64), str(TOP)),
]
IDS = [f"{i}-{type(c).__name__}-{getattr(c, 'dtype', '')}" for i, (c, _) in enumerate(COLUMNS)]


@pytest.mark.parametrize(("column", "value"), COLUMNS, ids=IDS)
def test_training_names_row_and_value(column: Any, value: str) -> None:
    with pytest.raises(DataError, match=rf"column 'x', row 1: .*{value}"):
        list(ColumnReader(STATES, missing=True).tables({"x": column}))


@pytest.mark.parametrize(("column", "value"), COLUMNS, ids=IDS)
def test_rows_are_counted_over_batches(column: Any, value: str) -> None:
    with pytest.raises(DataError, match=rf"column 'x', row 1: .*{value}"):
        list(ColumnReader(STATES, missing=True).tables({"x": column}, rows=1, narrow=True))


@pytest.mark.parametrize(("column", "value"), COLUMNS, ids=IDS)
def test_mini_batches(column: Any, value: str) -> None:
    with pytest.raises(DataError, match=rf"mini-batch 1, column 'x', row 1: .*{value}"):
        list(ColumnReader(STATES, missing=True).tables([{"x": [0, 1]}, {"x": column}]))


@pytest.mark.parametrize(("column", "value"), COLUMNS, ids=IDS)
def test_evidence_names_row_and_value(column: Any, value: str) -> None:
    with pytest.raises(DataError, match=rf"Evidence on 'x', row 1: .*{value}"):
        read_evidence({"x": column}, STATES)


def test_a_matrix_of_unsigned_numbers() -> None:
    for matrix in (np.array([[0], [TOP]], dtype=np.uint64), torch.from_numpy(np.array([[0], [TOP]], dtype=np.uint64))):
        with pytest.raises(DataError, match=f"column 'x', row 1: state {TOP} is out of range"):
            list(ColumnReader(STATES, missing=True).tables(matrix))


@pytest.mark.parametrize("values", [[0, TOP], [0, TOP, None], [None, 2**63]])
def test_arrow(values: list[int | None]) -> None:
    pa = pytest.importorskip("pyarrow")
    row, value = next((i, x) for i, x in enumerate(values) if x is not None and x >= 2**63)
    table = pa.table({"x": pa.array(values, pa.uint64())})
    for data in (table, [table]):
        with pytest.raises(DataError, match=f"column 'x', row {row}: .*{value}"):
            list(ColumnReader(STATES, missing=True).tables(data))
    small = pa.table({"x": pa.array([3, None, 0], pa.uint64())})
    (read,) = ColumnReader(STATES, missing=True).tables(small)
    assert read["x"].tolist() == [3, -1, 0]


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8])
def test_small_numbers_of_any_type_are_states(dtype: torch.dtype) -> None:
    column = torch.tensor([1, 0, 1]).to(dtype)
    (read,) = ColumnReader(STATES).tables({"x": column})
    assert read["x"].tolist() == [1, 0, 1]
    assert read_evidence({"x": column}, STATES).hard["x"].tolist() == [1, 0, 1]


def test_continuous_values_too_large_for_a_float() -> None:
    domains = {"x": Continuous()}
    for column in ([0.5, 10**400], np.array([0.5, -(10**400), None], dtype=object)):
        with pytest.raises(DataError, match=r"column 'x', row 1: expected a finite number, got -?1e\+400"):
            list(ColumnReader(domains, missing=True).tables({"x": column}))
        with pytest.raises(DataError, match=r"Evidence on 'x', row 1: expected a finite number, got -?1e\+400"):
            read_evidence({"x": column}, domains)
    assert read_evidence({"x": [2**53 + 1, None]}, domains).real["x"][0] == 2.0**53  # rounded, as all values are
    unsigned = np.array([0, TOP], dtype=np.uint64)
    assert read_evidence({"x": unsigned}, domains).real["x"].tolist() == [0.0, 2.0**64]


def test_a_value_that_is_not_a_number_is_named() -> None:
    with pytest.raises(DataError, match="expected states or weights, got 'red'"):
        read_evidence({"x": [1, 10**400, "red"]}, STATES)


def test_a_classifier_names_the_row_of_x() -> None:
    graph = templates.naive_bayes(2, 2, 4)
    y = np.array([0, 0, 1, 1, 1])
    for value, text in ((TOP, str(TOP)), (2**63, str(2**63))):
        x = np.array([[0, 1], [1, 2], [0, 3], [0, value], [1, 2]], dtype=np.uint64)
        with pytest.raises(DataError, match=f"column 'x2', row 3: state {text} is out of range"):
            GenerativeClassifier(graph, KernelPBP).fit(x, y)
        fitted = GenerativeClassifier(graph, KernelPBP).fit(x[[0, 1, 2, 4, 4]], y)
        with pytest.raises(DataError, match=f"Evidence on 'x2', row 3: state {text} is out of range"):
            fitted.predict(x)
    floats = np.array([[0, 1], [1, 2], [0, 3], [0, 1.8446744073709552e19], [1, 2]])
    with pytest.raises(DataError, match=r"column 'x2', row 3: expected a whole number .* got 1\.8446744073709552e\+19"):
        GenerativeClassifier(graph, KernelPBP).fit(floats, y)
    objects = np.array([[0, 1], [1, 2], [0, 3], [0, 10**400], [1, 2]], dtype=object)
    with pytest.raises(DataError, match="expected numbers that a float64 can hold"):
        GenerativeClassifier(graph, KernelPBP).fit(objects, y)


def test_completion_of_tables() -> None:
    column = torch.from_numpy(np.array([0, TOP, 1], dtype=np.uint64))
    other = torch.tensor([0, -1, 1])
    with pytest.raises(DataError, match=f"column 'x', row 1: state {TOP} is out of range"):
        complete_table({"x": column, "y": other}, {"x": 4, "y": 2})
    with pytest.raises(DataError, match="column 'y', row 2: state 7 is out of range"):
        complete_table({"x": other, "y": torch.tensor([0, 1, 7])}, {"x": 4, "y": 2})


def test_shared_parts() -> None:
    unsigned = torch.from_numpy(np.array([3, TOP], dtype=np.uint64))
    assert comparable(unsigned).tolist() == [3, OUTSIDE]
    assert comparable(torch.tensor([True, False])).tolist() == [1, 0]
    codes, bad = whole_numbers(torch.tensor([2.0, torch.nan, 0.5, EXACT, -EXACT, torch.inf], dtype=torch.float64))
    assert codes[:2].tolist() == [2, -1]
    assert bad.tolist() == [False, False, True, True, True, True]
