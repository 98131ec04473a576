"""Vectors and images in training tables: every form that is accepted, every mistake that raises."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from torchpbp import Continuous
from torchpbp.errors import DataError, ShapeError
from torchpbp.inputs import ColumnReader, MissingValues, observed
from torchpbp.inputs import columns as columns_module

NAN = math.nan
PEN = [[1.0, 2.0], [NAN, NAN], [3.0, 4.0]]
PICTURE = torch.arange(18, dtype=torch.uint8).reshape(3, 1, 2, 3)
DOMAINS = {"pen": Continuous(shape=(2,)), "picture": Continuous(0.0, 255.0, (1, 2, 3)), "x": 2}
TABLE = {"pen": torch.tensor(PEN), "picture": PICTURE, "x": torch.tensor([0, 1, 1])}


def read(data: Any, missing: bool = True, **options: Any) -> dict[str, Tensor]:
    (table,) = ColumnReader(DOMAINS, missing=missing).tables(data, **options)
    return table


def pens(column: Any) -> Tensor:
    return read({**TABLE, "pen": column})["pen"]


ARRAYS = [np.array([1.0, 2.0]), None, np.array([3.0, 4.0])]
HIDDEN = [[1.0, 2.0], [math.inf, NAN], [3.0, 4.0]]  # what is not seen is not looked at


def test_values_of_a_table_have_no_gradient() -> None:
    assert not pens(torch.tensor(PEN, requires_grad=True)).requires_grad


@pytest.mark.parametrize(
    ("dtype", "kept"),
    [
        (torch.float32, torch.float32),
        (torch.uint8, torch.float32),
        (torch.float16, torch.float64),
        (torch.float64, torch.float64),
        (torch.bool, torch.float64),
        (torch.int8, torch.float64),
        (torch.uint16, torch.float64),
        (torch.uint64, torch.float64),
    ],
)
def test_single_precision_and_bytes_stay_small(dtype: torch.dtype, kept: torch.dtype) -> None:
    numbers = torch.tensor([[0, 1], [1, 1], [1, 0]])
    values = pens(numbers.to(dtype))
    assert values.dtype == kept
    assert values.tolist() == numbers.tolist()


@pytest.mark.parametrize(
    ("dtype", "kept"), [("float32", torch.float32), ("uint8", torch.float32), ("int64", torch.float64)]
)
def test_a_missing_value_among_arrays_keeps_their_type(dtype: str, kept: torch.dtype) -> None:
    values = pens([np.array([1, 2], dtype), None, np.array([3, 4], dtype)])
    assert values.dtype == kept
    assert observed(values).tolist() == [True, False, True]


def test_images_of_bytes_are_read_as_they_are() -> None:
    pictures = read(TABLE)["picture"]
    assert pictures.dtype == torch.float32
    assert torch.equal(pictures, PICTURE.float())


def test_a_frame_with_columns_of_arrays() -> None:
    frame = pd.DataFrame({"pen": ARRAYS, "picture": list(PICTURE.numpy()), "x": ["no", "yes", "no"]}, index=[7, 8, 9])
    table = read(frame)
    assert table["pen"].shape == (3, 2)
    assert torch.equal(table["picture"], PICTURE.float())
    assert table["x"].tolist() == [0, 1, 0]


def test_a_table_in_parts_is_the_same_table() -> None:
    table = {**TABLE, "pen": (torch.tensor(HIDDEN), torch.tensor([True, False, True]))}
    parts = list(ColumnReader(DOMAINS, missing=True).tables(table, rows=2))
    assert [len(part["pen"]) for part in parts] == [2, 1]
    for v, whole in read(table).items():
        assert torch.equal(torch.cat([part[v] for part in parts]).nan_to_num(-1.0), whole.nan_to_num(-1.0))


def test_large_values_are_read_in_fewer_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_module, "ENTRIES_PER_BATCH", 17)  # two rows of 2 + 6 entries
    parts = list(ColumnReader(DOMAINS, missing=True).tables(TABLE))
    assert [len(part["x"]) for part in parts] == [2, 1]
    monkeypatch.setattr(columns_module, "ENTRIES_PER_BATCH", 1)
    assert [len(part["x"]) for part in ColumnReader(DOMAINS, missing=True).tables(TABLE)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("column", "error", "text"),
    [
        ([[1, 2], [NAN, 2], [3, 4]], DataError, r"column 'pen', row 1: 1 of 2 entries are NaN \(the first at \(0,\)\)"),
        ([[1, 2], [None, 2], [3, 4]], DataError, "row 1: 1 of 2 entries are NaN"),
        (
            [[1, 2], [3, 4], [3, math.inf]],
            DataError,
            r"column 'pen', row 2, entry \(1,\): expected finite numbers, got inf",
        ),
        ([[1, 2], [3, 4], [1e200, 0]], DataError, r"row 2, entry \(0,\): value 1e\+200 is too large"),
        (
            torch.zeros(3),
            ShapeError,
            r"column 'pen': expected values of shape \(rows, 2\); got float32 of shape \(3,\)",
        ),
        (torch.zeros(3, 3), ShapeError, r"expected values of shape \(rows, 2\); got float32 of shape \(3, 3\)\.$"),
        (torch.zeros(3, 2, 1), ShapeError, r"Reshape them: values.reshape\(-1, 2\)"),
        (torch.zeros(2), ShapeError, r"expected values of shape \(rows, 2\); got float32 of shape \(2,\)"),
        (torch.zeros(4, 2), ShapeError, "different lengths"),
        ([[1, 2], [3, 4, 5], None], ShapeError, r"row 1: expected numbers of shape \(2,\), got int64 of shape \(3,\)"),
        (
            [[1, 2], [3, [4, 5]], None],
            DataError,
            "row 1: expected numbers, got entries of different lengths",
        ),
        ([torch.zeros(2), torch.zeros(3), None], ShapeError, r"row 1: .* got float32 of shape \(3,\)"),
        ([torch.zeros(2), "ab", None], DataError, "row 1: expected numbers, got 'ab'"),
        ([torch.zeros(2), ["a", "b"], None], DataError, "expected numbers, got 'a'"),
        ([None, 5.0, None], ShapeError, r"row 1: expected numbers of shape \(2,\), got float64 of shape \(\)"),
        ([["a", "b"]] * 3, DataError, "expected numbers, got 'a'"),
        ([np.array(["a", "b"]), None, None], DataError, "row 0: expected numbers, got 'a'"),
        (np.zeros((3, 2), dtype="M8[s]"), DataError, "Convert dates to numbers"),
        (np.zeros((3, 2), dtype=complex), DataError, "complex128"),
        (torch.zeros(3, 2, dtype=torch.complex64), DataError, "real part"),
        (pd.Categorical(["a", "b", "a"]), DataError, "row 0: expected numbers, got 'a'"),
        ("abc", ShapeError, r"expected values of shape \(rows, 2\)"),
        (None, ShapeError, r"expected values of shape \(rows, 2\)"),
        ((torch.zeros(3, 2), torch.ones(3)), DataError, r"pair \(values, seen\) with booleans as seen.*got float32"),
        ((torch.zeros(3, 2), [1, 0, 1]), DataError, "booleans as seen.*got int64"),
        ((torch.zeros(3, 2), [True, None, True]), DataError, "booleans as seen.*got object"),
        ((torch.zeros(3, 2), torch.ones(2, dtype=torch.bool)), ShapeError, r"seen of shape \(3,\).*got shape \(2,\)"),
        (
            (torch.zeros(3, 2), torch.ones(3, 2, dtype=torch.bool)),
            ShapeError,
            r"seen of shape \(3,\).*got shape \(3, 2\)",
        ),
        ((torch.tensor(PEN), torch.ones(3, dtype=torch.bool)), DataError, "row 1: the value is marked as seen"),
        (
            (torch.tensor([[1.0, NAN]] * 3), torch.tensor([False, True, True])),
            DataError,
            "row 1: 1 of 2 entries are NaN",
        ),
    ],
)
def test_mistakes_in_a_column_raise(column: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        pens(column)


def test_one_bad_pixel_is_named_by_its_row_in_the_table() -> None:
    pictures = PICTURE.float()
    pictures[2, 0, 1, 0] = NAN
    with pytest.raises(
        DataError, match=r"column 'picture', row 2: 1 of 6 entries are NaN \(the first at \(0, 1, 0\)\)"
    ):
        list(ColumnReader(DOMAINS, missing=True).tables({**TABLE, "picture": pictures}, rows=1))


def test_values_outside_the_range_raise() -> None:
    with pytest.raises(
        DataError, match=r"column 'picture', row 0, entry \(0, 1, 0\): value 300.0 lies outside .*0.0, 255.0"
    ):
        read({**TABLE, "picture": PICTURE.float() * 100})
    read({**TABLE, "picture": (PICTURE.float() * 100, torch.zeros(3, dtype=torch.bool))})  # none of them is there


def test_axes_in_another_order_are_not_to_be_reshaped() -> None:
    with pytest.raises(ShapeError, match=r"\(rows, 1, 2, 3\); got uint8 of shape \(3, 1, 3, 2\)\.$"):
        read({**TABLE, "picture": PICTURE.transpose(2, 3)})
    with pytest.raises(ShapeError, match=r"Reshape them: values.reshape\(-1, 1, 2, 3\)"):
        read({**TABLE, "picture": PICTURE.reshape(3, 2, 3, 1)})


def test_a_learner_of_complete_rows_names_the_first_missing_value() -> None:
    with pytest.raises(
        DataError, match=r"column 'pen', row 1: expected finite numbers, got nan\. 1 of 3 values are missing"
    ):
        read(TABLE, missing=False)


@pytest.mark.parametrize("rows", [0, 1])
def test_few_rows(rows: int) -> None:
    table = {v: column[:rows] for v, column in TABLE.items()}
    if rows:
        assert read(table)["picture"].shape == (1, 1, 2, 3)
        return
    with pytest.raises(DataError, match="empty"):
        read(table)


def test_missing_values_are_counted_by_value() -> None:
    reader = ColumnReader(DOMAINS, missing=True)
    list(reader.tables({**TABLE, "picture": [None, PICTURE[1].numpy(), None], "x": [0, -1, 1]}, rows=2))
    assert reader.missing_values == MissingValues(3, 0, {"pen": 1, "picture": 2, "x": 1})
    assert reader.missing_values.shares["picture"] == pytest.approx(2 / 3)
    list(reader.tables({"pen": [None] * 3, "picture": [None, None, PICTURE[0].numpy()], "x": [-1, 0, 1]}))
    assert reader.missing_values.empty == 1
    with pytest.raises(DataError, match="Column 'pen': all 3 values are missing"):
        reader.missing_values.check()


@pytest.mark.parametrize(
    "column", [[None] * 3, np.full(3, NAN), np.full((3, 2), NAN), pd.Series([NAN] * 3), pd.Series([None] * 3)]
)
def test_a_column_without_any_value_is_missing(column: Any) -> None:
    assert not observed(pens(column)).any()


def test_where_values_are() -> None:
    assert observed(torch.tensor([[NAN, NAN], [NAN, 1.0], [1.0, 2.0]])).tolist() == [False, True, True]
    assert observed(torch.full((2, 1, 3, 4), NAN)).tolist() == [False, False]
    assert observed(torch.zeros(0, 1, 3, 4)).shape == (0,)
    assert observed(torch.tensor([NAN, 1.0])).tolist() == [False, True]
    assert observed(torch.tensor([-1, 0])).tolist() == [False, True]
