"""Arrays, memory maps, structured arrays and streams of tensors, opened as columns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from torchpbp import Continuous
from torchpbp.errors import DataError, ShapeError
from torchpbp.inputs import ColumnReader
from torchpbp.inputs.sources import open_data

STATES = {"x": 3, "y": 2}
X, Y = [0, 2, 1, 1], [1, 0, 0, 1]
ROWS = np.array([X, Y]).T


def read(data: object, columns: list[str] | None = None, rows: int = 3) -> list[list[float]]:
    reader = ColumnReader(STATES)
    tables = list(reader.tables(open_data(data, STATES, columns), rows))
    assert all(t.dtype == torch.int64 for table in tables for t in table.values())
    return [torch.cat([t[v] for t in tables]).tolist() for v in STATES]


@pytest.mark.parametrize(
    "dtype", [np.int8, np.uint8, np.uint16, np.int32, np.uint64, ">i4", np.float32, np.float64, object]
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_any_layout(dtype, order):
    assert read(np.array(ROWS, dtype=dtype, order=order)) == [X, Y]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64, torch.float32, torch.bfloat16])
def test_tensors(dtype):
    assert read(torch.tensor(ROWS).to(dtype)) == [X, Y]


def test_named_columns_in_any_order_among_others():
    wide = np.stack([Y, [7, 8, 9, 9], X], axis=1)
    assert read(wide, columns=["y", "other", "x"]) == [X, Y]
    assert read(torch.tensor(wide), columns=["y", "other", "x"]) == [X, Y]
    assert read([wide[:1], wide[1:]], columns=["y", "other", "x"]) == [X, Y]


def test_a_read_only_memory_map(tmp_path):
    ROWS.astype(np.uint8).tofile(tmp_path / "rows.bin")
    assert read(np.memmap(tmp_path / "rows.bin", dtype=np.uint8, mode="r", shape=(4, 2))) == [X, Y]


def test_structured_arrays_by_field(tmp_path):
    fields = np.array(list(zip(Y, ["a"] * 4, X, strict=True)), dtype=[("y", "i1"), ("z", "U1"), ("x", "<u2")])
    assert read(fields) == [X, Y]
    np.save(tmp_path / "rows.npy", fields)
    assert read(np.load(tmp_path / "rows.npy", mmap_mode="r")) == [X, Y]


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_data_loaders_of_tensors(workers):
    x, y, both = torch.tensor(X), torch.tensor(Y), torch.tensor(ROWS)
    options = {"batch_size": 3, "num_workers": workers}
    assert read(DataLoader(TensorDataset(both), **options)) == [X, Y]  # a list with one tensor
    assert read(DataLoader(TensorDataset(x, y), **options)) == [X, Y]
    assert read(DataLoader(both, **options)) == [X, Y]


def test_tuples_of_tensors_stand_side_by_side():
    assert read([(torch.tensor(X), torch.tensor(Y).unsqueeze(1))]) == [X, Y]
    assert read([[np.array(Y), np.array(X)]], columns=["y", "x"]) == [X, Y]


def test_an_array_of_floats_holds_states_beside_values():
    states = {"x": 3, "t": Continuous()}
    array = np.array([[0, 0.5], [2, -1.5]])
    table = next(ColumnReader(states).tables(array))
    assert table["x"].tolist() == [0, 2]
    assert table["x"].dtype == torch.int64
    assert table["t"].tolist() == [0.5, -1.5]


def test_narrow_states():
    states = {"x": 256, "z": 257}
    table = next(ColumnReader(states).tables({"x": [255, 0], "z": [256, 0]}, narrow=True))
    assert table["x"].dtype == torch.uint8
    assert table["x"].tolist() == [255, 0]
    assert table["z"].dtype == torch.int32
    assert table["z"].tolist() == [256, 0]


def test_lengths_are_known_where_they_can_be():
    assert open_data(ROWS, STATES).length == 4
    assert open_data([ROWS], STATES).length is None
    assert open_data(ROWS, STATES).reopenable
    assert open_data([ROWS], STATES).reopenable
    assert not open_data(iter([ROWS]), STATES).reopenable


@pytest.mark.parametrize(
    ("data", "columns", "error", "message"),
    [
        (np.zeros((4, 3), int), None, ShapeError, r"expected 2 columns, .* \(x, y\), got 3. Pass columns="),
        (torch.zeros(4, 1, dtype=torch.int64), None, ShapeError, "expected 2 columns.* got 1"),
        ([ROWS, ROWS[:, :1]], None, ShapeError, "mini-batch 1, expected 2 columns"),
        (np.zeros(4, int), None, ShapeError, r"expected an array of shape \(rows, 2\), got \(4,\)"),
        (torch.tensor(3), None, ShapeError, r"expected an array of shape \(rows, 2\), got \(\)"),
        ([torch.tensor(X)], None, ShapeError, r"mini-batch 0, expected an array of shape \(rows, 2\), got \(4,\)"),
        ([(torch.zeros(1, 1, 1),)], None, ShapeError, r"mini-batch 0, expected tensors of shape \(rows,\)"),
        ([(torch.tensor(X),)], None, ShapeError, "mini-batch 0, expected 2 columns.* got 1"),
        ([(torch.tensor(X), torch.tensor(Y[:2]))], None, ShapeError, "mini-batch 0, columns have different lengths"),
        (ROWS, ["x"], ShapeError, "columns= names 1 columns, but the array has 2"),
        (ROWS, ["x", "x"], DataError, r"columns= names \['x'\] more than once"),
        (ROWS, ["x", "z"], DataError, r"missing columns \['y'\]. The data has: x, z"),
        ({"x": X, "y": Y}, ["x", "y"], DataError, "A table names its own columns: leave out columns="),
        (np.zeros(1, [("x", int)]), ["x"], DataError, "A structured array names its own columns"),
        (np.zeros(1, [("x", int)]), None, DataError, r"missing columns \['y'\]. The data has: x"),
        (np.full(1, 0.5, [("x", float), ("y", int)]), None, DataError, "column 'x', row 0: expected a whole number"),
        (ROWS + 0.5, None, DataError, "column 'x', row 0: expected a whole number from 0 to 2, got 0.5"),
        (ROWS * np.array([1, np.nan]), None, DataError, r"column 'y': 3 of 3 values are missing"),
        (ROWS + 1, None, DataError, "column 'x', row 1: state 3 is out of range"),
        (ROWS - 1, None, DataError, "column 'x': 1 of 3 values are missing"),
        (np.zeros((0, 2), int), None, DataError, "training data is empty"),
        (
            np.zeros((2, 2), complex),
            None,
            DataError,
            "column 'x': expected states from 0 to 2, got complex128 values",
        ),
    ],
)
def test_mistakes_raise(data, columns, error, message):
    with pytest.raises(error, match=message):
        read(data, columns)


def test_row_numbers_go_on_over_the_batches_of_an_array():
    array = np.array([[0, 0]] * 5 + [[0, 7]])
    with pytest.raises(DataError, match="column 'y', row 5: state 7"):
        read(array, rows=2)


def test_an_exhausted_stream_raises():
    class Once(IterableDataset):
        def __init__(self) -> None:
            self.left = [torch.tensor(ROWS)]

        def __iter__(self):
            while self.left:
                yield self.left.pop()

    loader = DataLoader(Once(), batch_size=None)
    reader = ColumnReader(STATES)
    assert len(list(reader.tables(loader))) == 1
    with pytest.raises(DataError, match="could be read only once: a further pass over it found no rows"):
        list(reader.tables(loader))
