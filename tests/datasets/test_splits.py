"""Folds, draws per class, and hidden points."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torchpbp.datasets import cell_folds, hide_points, load_digits, rows_per_class
from torchpbp.errors import ArgumentError, DataError, ShapeError


def test_cell_folds_hold_out_whole_cells_of_every_class() -> None:
    generator = np.random.default_rng(0)
    centres = 100 * generator.random((2, 6, 3))  # two classes of six far-away cells each
    cell, y = torch.arange(600) % 6, torch.arange(600) // 300
    x = torch.from_numpy(centres)[y, cell] + 0.1 * torch.from_numpy(generator.random((600, 3)))
    folds = cell_folds(x, y, cells=6, k=3, seed=1)
    assert torch.equal(torch.cat([val for _, val in folds]).sort().values, torch.arange(600))
    for train, val in folds:
        assert torch.equal(torch.cat([train, val]).sort().values, torch.arange(600))
        for value in (0, 1):
            held, kept = (set(cell[rows][y[rows] == value].tolist()) for rows in (val, train))
            assert (len(held), len(kept), held & kept) == (2, 4, set())
    again = cell_folds(x, y, cells=6, k=3, seed=1)
    assert all(torch.equal(a[1], b[1]) for a, b in zip(folds, again, strict=True))
    other = cell_folds(x, y, cells=6, k=3, seed=2)
    assert not torch.equal(folds[0][1], other[0][1])


def test_cell_folds_raises() -> None:
    x, y = torch.rand(10, 2), torch.zeros(10, dtype=torch.int64)
    with pytest.raises(ArgumentError, match="cells: expected a multiple of the 3 folds, got 4"):
        cell_folds(x, y, cells=4, k=3, seed=0)
    with pytest.raises(DataError, match="Class 0: expected at least 12 rows for as many cells, got 10"):
        cell_folds(x, y, cells=12, k=2, seed=0)
    with pytest.raises(ShapeError, match="cell_folds: expected"):
        cell_folds(x, y[:5], cells=4, k=2, seed=0)


def test_rows_per_class() -> None:
    y = load_digits().train_y
    rows = rows_per_class(y, 100, 3)
    assert y[rows].bincount().tolist() == [100] * 10
    assert torch.equal(rows, rows.unique())
    assert torch.equal(rows, rows_per_class(y, 100, 3))
    assert not torch.equal(rows, rows_per_class(y, 100, 4))
    assert set(rows_per_class(y, 10, 3).tolist()) < set(rows.tolist())
    assert rows_per_class(y[:0], 5, 0).tolist() == []


def test_rows_per_class_raises() -> None:
    y = torch.tensor([0, 0, 1])
    with pytest.raises(DataError, match="Class 1: expected at least 2 rows to draw from, got 1"):
        rows_per_class(y, 2, 0)
    with pytest.raises(ArgumentError, match="count: expected a whole number of at least 1, got 0"):
        rows_per_class(y, 0, 0)
    with pytest.raises(ArgumentError, match="seed: expected"):
        rows_per_class(y, 1, -1)
    with pytest.raises(ShapeError, match="one class per row"):
        rows_per_class(y[None], 1, 0)


@pytest.mark.parametrize("count", range(9))
def test_hides_exactly_count_points(count: int) -> None:
    x = torch.rand(500, 16, dtype=torch.float64)
    before = x.clone()
    hidden = hide_points(x, count, 0).isnan()
    assert torch.equal(x, before)
    assert torch.equal(hidden[:, 0::2], hidden[:, 1::2])
    assert (hidden[:, 0::2].sum(1) == count).all()
    assert torch.equal(hide_points(x, count, 0)[~hidden], x[~hidden])
    assert hide_points(x, count, 0).dtype == x.dtype


def test_hidden_points_are_uniform_and_by_seed() -> None:
    x = torch.zeros(70_000, 16)
    hidden = hide_points(x, 4, 7).isnan()[:, ::2]
    assert torch.equal(hidden, hide_points(x, 4, 7).isnan()[:, ::2])
    assert not torch.equal(hidden, hide_points(x, 4, 8).isnan()[:, ::2])
    subsets = (hidden * 2 ** torch.arange(8)).sum(1).bincount()
    subsets = subsets[subsets > 0].double()
    assert len(subsets) == 70  # all subsets of 4 out of 8 points
    chi2 = float(((subsets - 1000) ** 2 / 1000).sum())
    assert chi2 < 120  # 69 degrees of freedom: 99.99 % lie below 120


def test_hiding_is_the_same_everywhere() -> None:
    hidden = hide_points(torch.zeros(3, 16), 4, 0).isnan()[:, ::2].int()
    assert hidden.tolist() == [[1, 1, 1, 0, 1, 0, 0, 0], [1, 0, 0, 1, 0, 1, 0, 1], [0, 0, 1, 1, 1, 0, 0, 1]]


def test_hide_points_raises() -> None:
    x = torch.zeros(2, 16)
    with pytest.raises(ArgumentError, match="at most 8 points to hide, got count=9"):
        hide_points(x, 9, 0)
    with pytest.raises(ArgumentError, match="count: expected a whole number of at least 0, got -1"):
        hide_points(x, -1, 0)
    with pytest.raises(ArgumentError, match=r"count: expected a whole number of at least 0, got 0\.5"):
        hide_points(x, 0.5, 0)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="seed"):
        hide_points(x, 1, None)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="floating-point"):
        hide_points(x.long(), 1, 0)
    for shape in ((16,), (2, 15), (2, 0), (2, 8, 2)):
        with pytest.raises(ShapeError, match="expected shape"):
            hide_points(torch.zeros(shape), 1, 0)


def test_no_rows_have_no_points_to_hide() -> None:
    assert hide_points(torch.zeros(0, 16), 4, 0).shape == (0, 16)
