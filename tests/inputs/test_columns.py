"""Training tables: dicts, data frames and streams of them, and every mistake that raises."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from torchpbp.errors import DataError, ShapeError
from torchpbp.inputs import ColumnReader, read_evidence

STATES = {"x": 3, "y": 2}
X, Y = [0, 2, 1, 1], [1, 0, 0, 1]


def read(data: object, states: dict[str, int] = STATES, rows: int = 1000, **options: object) -> list[list[int]]:
    reader = ColumnReader(states, **options)
    batches = list(reader.batches(data, rows))
    assert all(b.dtype == torch.int64 and b.shape[0] == len(states) for b in batches)
    return torch.cat(batches, dim=1).tolist()


def test_rows_follow_the_order_of_the_states_and_other_columns_are_ignored():
    frame = pd.DataFrame({"other": ["a", None, "c", "d"], "y": Y, "x": X})
    assert read(frame) == [X, Y]
    assert read(frame, {"y": 2, "x": 3}) == [Y, X]


def test_tables_are_cut_into_batches():
    reader = ColumnReader(STATES)
    batches = list(reader.batches({"x": X, "y": Y}, rows=3))
    assert [b.tolist() for b in batches] == [[[0, 2, 1], [1, 0, 0]], [[1], [1]]]


def test_tensors_that_require_grad_or_are_read_only_give_no_warnings():
    array = np.array(X)
    array.setflags(write=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read({"x": array, "y": Y}) == [X, Y]
        assert read(pd.DataFrame({"x": X, "y": Y})) == [X, Y]


# -- labels ----------------------------------------------------------------------------------------------------------


def test_category_columns_use_their_categories():
    reader = ColumnReader(STATES)
    column = pd.Categorical(["low", "high", "mid", "mid"], categories=["low", "mid", "high"], ordered=True)
    frame = pd.DataFrame({"x": column, "y": Y})
    assert torch.cat(list(reader.batches(frame)), dim=1).tolist() == [X, Y]
    assert reader.labels == {"x": ("low", "mid", "high")}


def test_string_columns_are_sorted():
    reader = ColumnReader(STATES)
    for column in (["b", "d", "c", "c"], np.array(["b", "d", "c", "c"]), pd.Series(["b", "d", "c", "c"])):
        assert torch.cat(list(reader.batches({"x": column, "y": Y})), dim=1).tolist() == [X, Y]
    assert reader.labels == {"x": ("b", "c", "d")}
    assert all(type(label) is str for label in reader.labels["x"])


def test_labels_may_be_fewer_than_states():
    reader = ColumnReader({"x": 5})
    assert next(iter(reader.batches({"x": ["a", "b"]}))).tolist() == [[0, 1]]


def test_integer_categories_are_labels():
    reader = ColumnReader({"x": 3})
    assert next(iter(reader.batches({"x": pd.Series([20, 30, 10], dtype="category")}))).tolist() == [[1, 2, 0]]
    assert reader.labels == {"x": (10, 20, 30)}


def test_known_labels_are_kept():
    assert read({"x": ["c", "a"]}, {"x": 3}, labels={"x": ["c", "b", "a"]}) == [[0, 2]]
    with pytest.raises(
        DataError, match=r"column 'x', row 1: unseen category 'z'\. Known categories: \['c', 'b', 'a'\]"
    ):
        read({"x": ["c", "z"]}, {"x": 3}, labels={"x": ["c", "b", "a"]})


# -- streams ---------------------------------------------------------------------------------------------------------


def test_iterables_of_mini_batches():
    tables = [{"x": X[:1], "y": Y[:1]}, {"x": X[1:], "y": torch.tensor(Y[1:])}]
    assert read(tables) == [X, Y]
    assert read(iter(tables)) == [X, Y]
    assert read(t for t in tables) == [X, Y]
    assert read([pd.DataFrame({"x": X, "y": Y})]) == [X, Y]


def test_empty_mini_batches_are_skipped():
    nothing = {"x": [], "y": []}
    assert read([nothing, {"x": X, "y": Y}, nothing]) == [X, Y]


def test_a_data_loader():
    class Rows(Dataset):
        def __len__(self) -> int:
            return len(X)

        def __getitem__(self, i: int) -> dict[str, int]:
            return {"x": X[i], "y": Y[i]}

    assert read(DataLoader(Rows(), batch_size=3)) == [X, Y]


def test_categories_in_a_stream():
    categories = pd.CategoricalDtype(["a", "b", "c"])
    stream = [{"x": pd.Series(part, dtype=categories)} for part in (["b", "a"], ["c"])]
    assert read(stream, {"x": 3}) == [[1, 0, 2]]
    fewer = [{"x": pd.Series(["b", "a"], dtype=categories)}, {"x": pd.Series(["a"], dtype="category")}]
    assert read(fewer, {"x": 3}) == [[1, 0, 0]]


def test_a_stream_is_read_one_table_at_a_time():
    seen = []

    def tables():
        for i in range(3):
            seen.append(i)
            yield {"x": [i], "y": [0]}

    batches = ColumnReader(STATES).batches(tables())
    next(batches)
    assert seen == [0]


# -- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ({"x": [], "y": []}, DataError, "training data is empty: expected at least one row, got none"),
        (pd.DataFrame({"x": [], "y": []}), DataError, "training data is empty"),
        ([], DataError, "training data is empty"),
        (iter(()), DataError, "training data is empty"),
        ([{"x": [], "y": []}], DataError, "training data is empty"),
        ({}, DataError, r"missing columns \['x', 'y'\]. The data has: none"),
        ({"x": X, "z": X}, DataError, r"missing columns \['y'\]. The data has: x, z"),
        (pd.DataFrame({"y": Y}), DataError, r"missing columns \['x'\]. The data has: y"),
        ([{"x": X, "y": Y}, {"x": X}], DataError, r"mini-batch 1, missing columns \['y'\]"),
        (
            {"x": torch.rand(2) / 2 + 0.1, "y": [0, 1]},
            DataError,
            "column 'x', row 0: expected a whole number from 0 to 2",
        ),
        (
            {"x": [1j, 0], "y": [0, 1]},
            DataError,
            "column 'x': expected states from 0 to 2, got complex128 values",
        ),
        ({"x": [0.5, 1], "y": [0, 1]}, DataError, r"row 0: .*got 0.5.*declare the variable Continuous\(\)"),
        (
            {"x": [0, math.nan], "y": [0, 1]},
            DataError,
            r"1 of 2 values are missing \(first at row 1\), and this learner needs complete rows",
        ),
        ({"x": pd.Series([0, None], dtype="Int64"), "y": [0, 1]}, DataError, "missing"),
        (
            {"x": np.array([0, 0.5], dtype=object), "y": [0, 1]},
            DataError,
            "column 'x', row 1: expected a whole number .*got 0.5",
        ),
        ({"x": [0, None], "y": [0, 1]}, DataError, r"column 'x': 1 of 2 values are missing \(first at row 1\)"),
        ({"x": [-1, -1], "y": [0, 1]}, DataError, r"2 of 2 values are missing \(all of them\)"),
        ({"x": [None, None], "y": [0, 1]}, DataError, r"2 of 2 values are missing \(all of them\)"),
        ({"x": ["a", None], "y": [0, 1]}, DataError, "1 of 2 values are missing"),
        ({"x": ["a", math.nan], "y": [0, 1]}, DataError, "1 of 2 values are missing"),
        ({"x": pd.Series(["a", pd.NA], dtype="string"), "y": [0, 1]}, DataError, "1 of 2 values are missing"),
        ({"x": ["a", 1], "y": [0, 1]}, DataError, "column 'x' mixes strings with other values"),
        ({"x": pd.Series(["a", None], dtype="category"), "y": [0, 1]}, DataError, "1 of 2 values are missing"),
        ({"x": [0, 3], "y": [0, 1]}, DataError, "column 'x', row 1: state 3 is out of range; expected 0 to 2"),
        ({"x": [0, -2], "y": [0, 1]}, DataError, "column 'x', row 1: state -2 is out of range"),
        ({"x": torch.tensor([0, 200], dtype=torch.uint8), "y": [0, 1]}, DataError, "state 200 is out of range"),
        ({"x": [0, 1], "y": [0, 2]}, DataError, "column 'y', row 1: state 2 is out of range; expected 0 to 1"),
        (
            [{"x": X, "y": Y}, {"x": [9], "y": [0]}],
            DataError,
            "mini-batch 1, column 'x', row 0: state 9 is out of range",
        ),
        ({"x": X, "y": Y[:2]}, ShapeError, r"columns have different lengths: {'x': 4, 'y': 2}"),
        ({"x": [[0, 1]], "y": [[0, 1]]}, ShapeError, r"column 'x': expected one state per row.*of shape \(1, 2\)"),
        ({"x": 1, "y": 0}, ShapeError, r"column 'x': expected one state per row.*of shape \(\)\. A list of rows"),
        ({"x": torch.tensor(1), "y": 0}, ShapeError, r"of shape \(\)"),
        ([{"x": 1, "y": 0}], ShapeError, "mini-batch 0, column 'x': expected one state per row"),  # rows, not batches
        (
            {"x": [[0], [1, 2]], "y": [0, 1]},
            DataError,
            "column 'x': expected states from 0 to 2, got entries of different lengths",
        ),
        ({"x": list("abcd"), "y": Y}, DataError, "column 'x' has 4 categories, but the graph gives it 3 states"),
        (
            {"x": pd.Categorical(["a"], categories=list("abcd")), "y": [0]},
            DataError,
            "column 'x' has 4 categories, but the graph gives it 3 states",
        ),
        (
            [{"x": ["a"], "y": [0]}],
            DataError,
            "mini-batch 0, column 'x' holds strings. Mini-batches need pandas category",
        ),
        ({"x": np.array(["a", 1], dtype=object), "y": [0, 1]}, DataError, "column 'x' mixes strings with other values"),
        ({"x": np.array([1, "a"], dtype=object), "y": [0, 1]}, DataError, "column 'x' mixes strings with other values"),
        (
            {"x": np.array(["2020-01-01"], dtype="datetime64[D]"), "y": [0]},
            DataError,
            "got datetime64.* Convert dates to numbers",
        ),
        (
            {"x": pd.to_datetime(pd.Series(["2020-01-01"])), "y": [0]},
            DataError,
            "got datetime64.* Convert dates to numbers",
        ),
        (b"x", DataError, "Expected a dict of columns, a pandas DataFrame, an array .* got bytes"),
        (5, DataError, "got int"),
        (None, DataError, "got NoneType"),
        ([(X, Y)], DataError, "Mini-batch 0: expected a dict of columns, a DataFrame, or a tensor .* got tuple"),
        ([()], DataError, "Mini-batch 0: expected a dict of columns, .* got tuple"),
    ],
)
def test_mistakes_raise(data, error, message):
    with pytest.raises(error, match=message):
        list(ColumnReader(STATES).batches(data))


@pytest.mark.parametrize(
    "column",
    [
        np.array([0, 2**64 - 1], dtype=np.uint64),  # -1 as a signed number
        torch.from_numpy(np.array([0, 2**64 - 1], dtype=np.uint64)),
        torch.tensor([0, 2**32 - 1], dtype=torch.uint32),
        pd.Series([0, 2**64 - 1, None], dtype="UInt64"),
        [0, 2**64 - 1, None],
        np.array([0, 1.8446744073709552e19]),
        [0, 10**30],
    ],
    ids=lambda c: f"{type(c).__name__}-{getattr(c, 'dtype', '')}",
)
def test_numbers_beyond_int64_are_no_missing_values(column):
    for narrow in (False, True):
        with pytest.raises(DataError, match="column 'x', row 1: "):
            list(ColumnReader({"x": 4}, missing=True).tables({"x": column}, rows=1, narrow=narrow))
    with pytest.raises(DataError, match="Evidence on 'x', row 1: "):
        read_evidence({"x": column}, {"x": 4})


def test_rows_are_counted_across_batches_of_one_table():
    data = {"x": [0] * 5 + [7], "y": [0] * 6}
    with pytest.raises(DataError, match="column 'x', row 5: state 7"):
        list(ColumnReader(STATES).batches(data, rows=2))
    data = {"x": [0] * 5 + [-1], "y": [0] * 6}
    with pytest.raises(DataError, match="first at row 5"):
        list(ColumnReader(STATES).batches(data, rows=4))


def test_categories_that_differ_between_batches():
    stream = [{"x": pd.Series(["a", "b"], dtype="category")}, {"x": pd.Series(["c"], dtype="category")}]
    with pytest.raises(
        DataError, match=r"mini-batch 1, column 'x': categories \['c'\] differ from the known \['a', 'b'\]"
    ):
        list(ColumnReader({"x": 3}).batches(stream))


def test_labels_in_one_batch_and_numbers_in_the_next():
    stream = [{"x": pd.Series(["a", "b"], dtype="category")}, {"x": [0, 1]}]
    with pytest.raises(
        DataError, match=r"mini-batch 1, column 'x': expected labels out of \['a', 'b'\], got plain numbers"
    ):
        list(ColumnReader({"x": 3}).batches(stream))


def test_a_data_frame_with_a_column_twice():
    frame = pd.DataFrame([[0, 1, 0]], columns=["x", "x", "y"])
    with pytest.raises(DataError, match=r"columns \['x'\] occur more than once"):
        list(ColumnReader(STATES).batches(frame))
