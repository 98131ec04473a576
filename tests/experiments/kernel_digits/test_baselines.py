"""Classifiers of incomplete strokes without a graph."""

from __future__ import annotations

import pytest
import torch

from torchpbp.datasets import DigitsDataModule, hide_points
from torchpbp.experiments.kernel_digits.baselines import BASELINES, PartialDistanceNeighbour
from torchpbp.experiments.train.leaf_data import Table
from torchpbp.experiments.train.strokes import DIGIT, coordinates, point_columns


@pytest.fixture(scope="module")
def tables() -> tuple[Table, Table]:
    """Training rows, and validation rows with four points hidden."""
    data = DigitsDataModule(train_size=20)
    data.setup()
    return point_columns(data.train_x, data.train_y), point_columns(hide_points(data.val_x, 4, seed=1), data.val_y)


@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_the_neighbour_is_nearest_by_the_coordinates_that_both_rows_have(
    missing: float, tables: tuple[Table, Table]
) -> None:
    train, asked = ({name: x[:100] for name, x in table.items()} for table in tables)
    x = coordinates(train)
    x = x.masked_fill(torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) < missing, torch.nan)
    differences = (coordinates(asked).unsqueeze(1) - x).double().square().nanmean(dim=2)
    expected = train[DIGIT][differences.nan_to_num(torch.inf).argmin(dim=1)]
    assert torch.equal(PartialDistanceNeighbour(point_columns(x, train[DIGIT]))(asked), expected)


@pytest.mark.parametrize("name", BASELINES)
def test_baselines_read_incomplete_strokes_and_learn_from_them(name: str, tables: tuple[Table, Table]) -> None:
    train, asked = tables
    hidden = point_columns(hide_points(coordinates(train), 2, seed=0), train[DIGIT])
    for rows in (train, hidden):
        assert (BASELINES[name](rows)(asked) == asked[DIGIT]).double().mean() > 0.6
