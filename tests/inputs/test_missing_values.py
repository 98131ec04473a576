"""Missing values in training tables: every form they come in, how they are counted, and which values raise."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader

from torchpbp.errors import DataError, DataWarning
from torchpbp.graph.latent_graph import Continuous
from torchpbp.inputs import ColumnReader, observed
from torchpbp.inputs.missing_values import MissingValues, informative

NAN = math.nan
STATES = {"x": 3, "y": Continuous()}
X = [0, -1, 2, 1]
Y = [0.5, 1.0, NAN, -1.0]


def read(data: object, rows: int = 1000, **options: object) -> tuple[list[int], list[float], MissingValues]:
    reader = ColumnReader(STATES, missing=True)
    tables = list(reader.tables(data, rows, **options))
    return (
        torch.cat([t["x"] for t in tables]).tolist(),
        torch.cat([t["y"] for t in tables]).tolist(),
        reader.missing_values,
    )


def same(found: list[float], expected: list[float]) -> bool:
    return np.array_equal(found, expected, equal_nan=True)


@pytest.mark.parametrize("narrow", [False, True])
def test_missing_states_are_counted(narrow):
    for x in (X, torch.tensor([0, NAN, 2, 1]), pd.Series([0, None, 2, 1], dtype="category")):
        states, numbers, missing = read({"x": x, "y": Y}, narrow=narrow)
        assert states == [3 if narrow and s < 0 else s for s in X]
        assert same(numbers, Y)
        assert missing.counts == {"x": 1, "y": 1}
        assert (missing.rows, missing.empty) == (4, 0)


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_sources_with_missing_values(tmp_path, rows):
    frame = pd.DataFrame({"x": pd.array([0, None, 2, 1], dtype="Int64"), "y": Y})
    matrix = np.stack([[0, NAN, 2, 1], Y], axis=1)
    frame.to_parquet(tmp_path / "rows.parquet")
    matrix.tofile(tmp_path / "rows.bin")
    nulls = pa.table({"x": pa.array([0, None, 2, 1]), "y": pa.array([0.5, 1.0, None, -1.0])})
    labelled = pa.table({"x": pa.array([0, None, 2, 1]).dictionary_encode(), "y": Y})
    sources = {
        "frame": frame,
        "matrix": matrix,
        "masked matrix": np.ma.array(np.nan_to_num(matrix, nan=7), mask=np.isnan(matrix)),
        "memory map": np.memmap(tmp_path / "rows.bin", np.float64, "r").reshape(4, 2),
        "tensor": torch.from_numpy(matrix),
        "Parquet": tmp_path / "rows.parquet",
        "Arrow": nulls,
        "loader": DataLoader(torch.utils.data.TensorDataset(torch.from_numpy(matrix)), batch_size=2),
        "batches": [nulls.slice(0, 1), nulls.slice(1)],
    }
    for name, data in sources.items():
        x, y, missing = read(data, rows)
        assert (x, same(y, Y), missing.counts) == (X, True, {"x": 1, "y": 1}), name
    reader = ColumnReader(STATES, missing=True)
    found = torch.cat([t["x"] for t in reader.tables(labelled, rows)])
    assert [reader.labels["x"][s] if s >= 0 else None for s in found.tolist()] == [0, None, 2, 1]


def test_narrow_states_have_room_for_one_more():
    for states, dtype in ((255, torch.uint8), (256, torch.int32)):
        reader = ColumnReader({"x": states}, missing=True)
        (table,) = reader.tables({"x": [states - 1, -1]}, narrow=True)
        assert table["x"].dtype == dtype
        assert table["x"].tolist() == [states - 1, states]
        (table,) = ColumnReader({"x": states}).tables({"x": [states - 1, 0]}, narrow=True)
        assert table["x"].dtype == torch.uint8


def test_each_pass_counts_anew_and_over_batches():
    reader = ColumnReader(STATES, missing=True)
    data = {"x": [0, -1, -1, 1, -1], "y": [NAN, 1.0, NAN, 2.0, NAN]}
    for _ in range(2):
        list(reader.tables(data, rows=2))
        assert (reader.missing_values.rows, reader.missing_values.empty, reader.missing_values.counts) == (
            5,
            2,
            {"x": 3, "y": 3},
        )
    assert str(reader.missing_values) == "60.0% of the values in 5 rows (x 60.0%, y 60.0%)"
    list(reader.tables({"x": [0], "y": [1.0]}))
    assert not reader.missing_values.any
    assert str(reader.missing_values) == "none in 1 rows"


def test_observed():
    assert observed(torch.tensor(X)).tolist() == [True, False, True, True]
    assert observed(torch.tensor(Y)).tolist() == [True, True, False, True]


def test_rows_and_columns_without_values():
    missing = MissingValues(3, 1, {"x": 1, "y": 2})
    with pytest.warns(DataWarning, match="1 of 3 rows have no value at all"):
        missing.check()
    with pytest.raises(DataError, match=r"Column 'y': all 3 values are missing\. Make 'y' a latent"):
        MissingValues(3, 0, {"x": 1, "y": 3}).check()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MissingValues(3, 0, {"x": 1, "y": 2}).check()
    with pytest.warns(DataWarning, match="1 of 3 rows"):
        assert informative("xy", torch.tensor([[0, -1, 1], [-1, -1, 2]])).tolist() == [[0, 1], [-1, 2]]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"x": [0, -2], "y": [0, 1]}, "row 1: state -2 is out of range; expected 0 to 2, or -1 for a missing value"),
        ({"x": [0.5, NAN], "y": [0, 1]}, "row 0: expected a whole number from 0 to 2, got 0.5"),
        ({"x": [0, 1], "y": [0, math.inf]}, "column 'y', row 1: expected a finite number, got inf"),
        ({"x": [0, 1], "y": [None, "a"]}, "column 'y': expected numbers, got 'a'"),
        ({"x": [0, 1], "y": [1j, 0]}, "column 'y': expected numbers, got complex128 values"),
    ],
)
def test_invalid_values_are_not_missing_values(data, message):
    with pytest.raises(DataError, match=message):
        read(data)


def test_masked_values_raise_where_rows_must_be_complete():
    masked = np.ma.array([0, 9], mask=[0, 1])
    for data in ({"x": masked, "y": [0, 1]}, {"x": [0, 1], "y": masked}, {"x": [0, 1], "y": masked.astype(float)}):
        with pytest.raises(DataError, match="1 of 2 values are missing"):
            list(ColumnReader(STATES).tables(data))
