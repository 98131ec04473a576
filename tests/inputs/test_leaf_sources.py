"""Vectors and images in sources of all kinds: mini-batches, DataLoaders, structured arrays, and where there is no room for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tests.inputs.test_leaves import ARRAYS, DOMAINS, HIDDEN, PEN, PICTURE, TABLE, read
from torchpbp import Continuous
from torchpbp.errors import DataError, ShapeError
from torchpbp.inputs import ColumnReader
from torchpbp.inputs.sources import open_data


def test_a_structured_array_with_a_field_of_arrays() -> None:
    records = np.zeros(3, dtype=[("pen", "f8", 2), ("picture", "u1", (1, 2, 3)), ("x", "i8")])
    records["pen"] = PEN
    records["picture"] = PICTURE.numpy()
    assert torch.equal(read(records)["picture"], PICTURE.float())


class Marked(Dataset[Any]):
    """Rows as a user's own data set has them: a dict with a pair in it."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"pen": (torch.tensor(HIDDEN[i]), i != 1), "picture": PICTURE[i], "x": i % 2}


def test_mini_batches() -> None:
    tuples: Any = DataLoader(TensorDataset(TABLE["x"], TABLE["pen"], PICTURE), batch_size=2)
    loaders = {
        "tuples": open_data(tuples, DOMAINS, columns=["x", "pen", "picture"]),
        "dicts": open_data(DataLoader(Marked(), batch_size=2), DOMAINS),
        "frames": open_data([pd.DataFrame({"pen": ARRAYS, "picture": list(PICTURE.numpy()), "x": [0, 1, 0]})], DOMAINS),
    }
    for name, source in loaders.items():
        reader = ColumnReader(DOMAINS, missing=True)
        pen = torch.cat([table["pen"] for table in reader.tables(source)])
        assert pen.nan_to_num(-1.0).tolist() == [[1.0, 2.0], [-1.0, -1.0], [3.0, 4.0]], name
        assert reader.missing_values.counts == {"pen": 1, "picture": 0, "x": 0}, name


def test_numbers_and_vectors_side_by_side() -> None:
    """A tensor (rows, 2) stands for two numbers, or for one vector, by the next name."""
    domains = {"a": Continuous(), "b": Continuous(), "pen": Continuous(shape=(2,))}
    numbers, pen = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]])
    (table,) = ColumnReader(domains).tables([(numbers, pen)])
    assert {v: x.tolist() for v, x in table.items()} == {"a": [1.0], "b": [2.0], "pen": [[3.0, 4.0]]}


def test_whole_tables_without_room_for_shapes_raise() -> None:
    with pytest.raises(
        DataError, match=r"expected a dict of columns, got an array.*'pen' needs a tensor of shape \(rows, 2\)"
    ):
        read(torch.zeros(3, 3))
    with pytest.raises(DataError, match="mini-batch 0, expected a dict of columns, got an array"):
        read([np.zeros((3, 3))])
    with pytest.raises(ShapeError, match=r"mini-batch 0, expected a tensor of shape \(rows, 2\) for 'pen', got \(3,\)"):
        read([(TABLE["x"], TABLE["pen"], PICTURE)])


def test_parquet_and_arrow_have_no_shapes() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"pen": [[1.0, 2.0]], "picture": [[0.0] * 6], "x": [0]})
    for data in (table, [table]):
        with pytest.raises(DataError, match=r"expected a dict of columns, got an? .*Arrow table"):
            read(data)
