"""Parquet files and Arrow tables: the same columns as from pandas, with their labels, in bounded batches."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import torch

from torchpbp import Continuous
from torchpbp.errors import DataError, LabelWarning
from torchpbp.inputs import ColumnReader, arrow
from torchpbp.inputs.sources import open_data

STATES = {"x": 3, "y": 2}
X, Y = [0, 2, 1, 1], [1, 0, 0, 1]
TABLE = pa.table({"y": Y, "other": list("abcd"), "x": X})


def read(
    data: object, states: dict[str, object] = STATES, rows: int = 3
) -> tuple[list[list[float]], dict[str, object]]:
    reader = ColumnReader(states)
    tables = list(reader.tables(data, rows))
    assert all(len(column) <= rows for table in tables for column in table.values())
    return [torch.cat([t[v] for t in tables]).tolist() for v in states], reader.labels


def test_tables_datasets_batches_and_files(tmp_path):
    pq.write_table(TABLE, tmp_path / "all.parquet", row_group_size=2)
    reader = pa.RecordBatchReader.from_batches(TABLE.schema, TABLE.to_batches(max_chunksize=2))
    kinds = [TABLE, TABLE.to_batches()[0], ds.dataset(TABLE), tmp_path / "all.parquet", str(tmp_path), reader]
    for data in [*kinds, [TABLE.slice(0, 1), TABLE.slice(1).to_batches()[0]]]:
        assert read(data) == ([X, Y], {}), type(data)


def test_a_folder_of_files_and_partitions(tmp_path):
    ds.write_dataset(TABLE, tmp_path, format="parquet", partitioning=["y"], partitioning_flavor="hive")
    assert len(list(tmp_path.rglob("*.parquet"))) == 2
    found, _ = read(tmp_path)
    assert sorted(zip(*found, strict=True)) == sorted(zip(X, Y, strict=True))


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint8(), pa.uint16(), pa.int32(), pa.uint64(), pa.int64()])
def test_integers_of_any_width(kind):
    assert read(TABLE.set_column(2, "x", pa.array(X, kind)))[0] == [X, Y]


def test_booleans():
    assert read(TABLE.set_column(0, "y", pa.array(Y, pa.int8()).cast(pa.bool_())))[0] == [X, Y]


def test_continuous_columns_of_several_types():
    states = {"a": Continuous(), "b": Continuous(), "c": Continuous(), "d": Continuous()}
    table = pa.table(
        {
            "a": pa.array([0.5, 1], pa.float32()),
            "b": [1, 2**60 + 1],
            "c": pa.array([1, 2]).cast(pa.decimal128(25, 2)),
            "d": pa.array([3.5, 3.5]).dictionary_encode(),
        }
    )
    assert read(table, states)[0] == [[0.5, 1], [1, 2.0**60], [1, 2], [3.5, 3.5]]


def test_the_length_is_known_before_reading(tmp_path):
    pq.write_table(TABLE, tmp_path / "all.parquet")
    assert open_data(tmp_path, STATES).length == 4
    assert open_data(TABLE, STATES).length == 4


# -- labels ----------------------------------------------------------------------------------------------------------


def test_categories_written_by_pandas_keep_their_order(tmp_path):
    column = pd.Categorical(["low", "high", "mid", "mid"], categories=["low", "mid", "high"])
    pd.DataFrame({"x": column, "y": Y}).to_parquet(tmp_path / "rows.parquet", row_group_size=1)
    assert read(tmp_path / "rows.parquet") == ([X, Y], {"x": ("low", "mid", "high")})


def test_dictionaries_that_differ_between_files(tmp_path):
    """Each file numbers its labels by itself; states follow the labels, not the numbers."""
    for name, column in (("1", ["b", "a"]), ("2", ["c", "b", "a"])):
        table = pa.table({"x": pa.array(column).dictionary_encode()})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    assert read(tmp_path, {"x": 3}) == ([[0, 1, 2, 0, 1]], {"x": ("b", "a", "c")})
    with pytest.warns(LabelWarning, match=r"fewer labels than the graph gives them states: 'x' \(3 of 4\)"):
        assert read(tmp_path, {"x": 4}) == ([[0, 1, 2, 0, 1]], {"x": ("b", "a", "c")})


def test_chunks_of_a_table_with_their_own_dictionaries():
    chunks = [pa.array(["b", "a"]).dictionary_encode(), pa.array(["a", "c"]).dictionary_encode()]
    table = pa.table({"x": pa.chunked_array(chunks)})
    assert read(table, {"x": 3}) == ([[0, 1, 1, 2]], {"x": ("b", "a", "c")})
    assert read([table], {"x": 3}) == ([[0, 1, 1, 2]], {"x": ("b", "a", "c")})


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_strings_are_sorted_over_the_whole_file(tmp_path, kind):
    table = pa.table({"x": pa.array(["d", "c", "d", "b"], kind)})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=1)
    assert read(tmp_path, {"x": 3}, rows=1) == ([[2, 1, 2, 0]], {"x": ("b", "c", "d")})


def test_dictionaries_with_labels_twice_or_missing():
    twice = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2]), pa.array(["a", "b", "a"]))
    assert read(pa.table({"x": twice}), {"x": 2}) == ([[0, 1, 0]], {"x": ("a", "b")})
    empty = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", None]))
    with pytest.raises(DataError, match=r"column 'x': 1 of 2 values are missing \(first at row 1\)"):
        read(pa.table({"x": empty}), {"x": 2})


@pytest.mark.parametrize(("states", "batches"), [(2, 1), (3, 4)])
def test_labels_are_read_ahead_only_until_they_are_complete(monkeypatch, states, batches):
    """A dictionary with as many labels as the variable has states needs no look at the rest of the file."""
    seen = []
    plain = arrow.ArrowRows._batches

    def noted(self, names, rows):
        for batch in plain(self, names, rows):
            seen.append(batch)
            yield batch

    monkeypatch.setattr(arrow.ArrowRows, "_batches", noted)
    chunks = [pa.array(["b", "a"]).dictionary_encode()] * 4
    table = pa.table({"x": pa.chunked_array(chunks)})
    assert open_data(table, {"x": states}).labels([]) == {"x": ["b", "a"]}
    assert len(seen) == batches
    assert open_data(table, {"x": states}).labels(["x"]) == {}
    assert len(seen) == batches


@pytest.mark.parametrize("narrow", [False, True])
def test_numbers_that_are_labels(narrow):
    """States that share Arrow's memory elsewhere are looked up where a variable is known by labels."""
    years = pa.table({"x": pa.array([2021, 2019, 2020, 2020], pa.int16()), "y": pa.array(Y, pa.uint8())})
    (table,) = ColumnReader(STATES, {"x": [2019, 2020, 2021]}).tables(years, narrow=narrow)
    assert [column.tolist() for column in table.values()] == [[2, 0, 1, 1], Y]


def test_known_labels_are_kept():
    table = pa.table({"x": pa.array(["b", "a"]).dictionary_encode()})
    reader = ColumnReader({"x": 3}, labels={"x": ["a", "b", "c"]})
    assert next(reader.tables(table))["x"].tolist() == [1, 0]
    with pytest.raises(DataError, match=r"column 'x': categories \['z'\] differ from the known"):
        next(reader.tables(pa.table({"x": pa.array(["z"]).dictionary_encode()})))


# -- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"x": X}), r"missing columns \['y'\]. The data has: x"),
        (pa.table({"x": [0.0, 0.5], "y": [0, 1]}), "column 'x', row 1: expected a whole number from 0 to 2, got 0.5"),
        (pa.table({"x": [0, None], "y": [0, 0]}), r"column 'x': 1 of 2 values are missing \(first at row 1\)"),
        (pa.table({"x": pa.nulls(2), "y": [0, 0]}), r"column 'x': 2 of 2 values are missing \(all of them\)"),
        (pa.table({"x": ["a", None], "y": [0, 0]}), "column 'x': 1 of 2 values are missing"),
        (pa.table({"x": [[0], [1]], "y": [0, 0]}), "column 'x': expected states from 0 to 2, got "),
        (pa.table({"x": list("abcd"), "y": Y}), "column 'x' has 4 categories, but the graph gives it 3 states"),
        (pa.table({"x": [0, 1, 2, 0, 5], "y": [0] * 5}), "column 'x', row 4: state 5 is out of range"),
        (pa.table({"x": pa.array([], pa.int8()), "y": pa.array([], pa.int8())}), "training data is empty"),
        (
            pa.table({"x": [0], "y": pa.array([10**9], pa.timestamp("s"))}),
            "column 'y': expected states from 0 to 1, got datetime64.* Convert dates to numbers",
        ),
    ],
)
@pytest.mark.parametrize("stored", [False, True])
def test_mistakes_raise(tmp_path, table, message, stored):
    data: object = table
    if stored:
        pq.write_table(table, tmp_path / "rows.parquet")
        data = tmp_path / "rows.parquet"
    with pytest.raises(DataError, match=message):
        read(data)


def test_a_column_twice():
    with pytest.raises(DataError, match=r"columns \['x'\] occur more than once"):
        read(pa.table([X, X, Y], names=["x", "x", "y"]))


def test_text_in_a_continuous_column():
    with pytest.raises(DataError, match="column 't': expected numbers, got 'a'"):
        read(pa.table({"t": ["a"]}), {"t": Continuous()})


def test_paths_that_hold_nothing_to_read(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "rows.csv").write_text("x,y\n")
    (tmp_path / "broken.parquet").write_text("no parquet")
    for name, message in {
        "nowhere.parquet": "No Parquet file or folder at '.*nowhere.parquet'",
        "empty": "The folder '.*empty' holds no Parquet files",
        "rows.csv": "'.*rows.csv' is not a Parquet file by its name .* Read other formats with pandas",
        "broken.parquet": "'.*broken.parquet' cannot be read as Parquet",
    }.items():
        with pytest.raises(DataError, match=message):
            read(tmp_path / name)


def test_without_pyarrow_the_message_says_how_to_get_it(tmp_path, monkeypatch):
    pq.write_table(TABLE, tmp_path / "rows.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow.dataset", None)
    monkeypatch.delattr(pa, "dataset")
    with pytest.raises(DataError, match=r"pip install 'torchpbp\[arrow\]'"):
        read(tmp_path / "rows.parquet")


def test_a_stream_of_batches_is_read_one_at_a_time():
    seen = []

    def batches():
        for i in range(3):
            seen.append(i)
            yield TABLE.to_batches()[0]

    next(ColumnReader(STATES).tables(batches()))
    assert seen == [0]


def test_a_missing_column_in_a_later_batch():
    with pytest.raises(DataError, match=r"mini-batch 1, missing columns \['x'\]"):
        read([TABLE, TABLE.drop_columns(["x"])])


def test_a_path_as_a_path_object(tmp_path):
    pq.write_table(TABLE, Path(tmp_path) / "rows.pq")
    assert np.array(read(tmp_path / "rows.pq")[0]).shape == (2, 4)
