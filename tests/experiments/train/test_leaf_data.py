"""Batches of leaves: balanced, distorted, and the same after an interruption."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, SequentialSampler

from torchpbp.datasets import load_digits
from torchpbp.errors import ArgumentError, DataError
from torchpbp.experiments.train.distortions import NONE
from torchpbp.experiments.train.leaf_data import BalancedDraws, ChangedCopies, Table, hidden_leaves
from torchpbp.experiments.train.patches import NAMES, SIDE, PatchData, cut, neighbours_first, patch_graph, put_together
from torchpbp.experiments.train.strokes import DIGIT, POINT_NAMES, StrokeData, coordinates, point_columns


def strokes(**options: Any) -> StrokeData:
    return StrokeData(**{"train_size": 12, "steps_per_epoch": 3, "support": 5, "query": 30, **options})


def same(first: Iterable[Table], second: Iterable[Table]) -> bool:
    return all(torch.equal(coordinates(a), coordinates(b)) for a, b in zip(first, second, strict=True))


def test_points_are_columns_of_two_coordinates() -> None:
    x = torch.arange(32.0).reshape(2, 16)
    columns = point_columns(x, torch.tensor([3, 4]))
    assert list(columns) == [*POINT_NAMES, DIGIT]
    assert columns["p2"].tolist() == [[2.0, 3.0], [18.0, 19.0]]
    assert torch.equal(coordinates(columns), x)


def test_a_batch_has_balanced_support_rows_first() -> None:
    data = strokes(distortions=NONE)
    first, second, _ = list(data.train_dataloader())
    assert first[DIGIT][:50].tolist() == [d for d in range(10) for _ in range(5)]
    assert len(first[DIGIT]) == 80
    assert round(data.support_share * 80) == 50
    assert first[DIGIT][50:].unique().numel() > 5  # any digit
    assert not torch.equal(coordinates(first), coordinates(second))
    train = data.tables["train"]
    distance = torch.cdist(coordinates(first), coordinates(train))
    assert distance.amin(dim=1).max() < 0.1  # without distortions they are training rows,
    assert torch.equal(train[DIGIT][distance.argmin(dim=1)], first[DIGIT])  # each with its own digit


def test_batches_follow_from_seed_and_epoch() -> None:
    def epoch(number: int, seed: int = 0) -> list[Table]:
        loader = strokes(seed=seed, support=2, query=5).train_dataloader()
        loader.sampler.set_epoch(number)  # type: ignore[attr-defined]  # as Lightning does
        return list(loader)

    assert same(epoch(1), epoch(1))
    assert not same(epoch(0), epoch(1))
    assert not same(epoch(0), epoch(0, seed=1))


def test_validation_rows_are_complete_and_half_hidden() -> None:
    data = strokes(limit=40)
    (batch,) = list(data.val_dataloader())
    hidden = torch.stack([batch[name].isnan().all(dim=1) for name in POINT_NAMES], dim=1)
    assert hidden.sum(dim=1).tolist() == [0] * 40 + [4] * 40
    assert torch.equal(coordinates(batch)[:40], coordinates(data.tables["val"]))
    assert torch.equal(batch[DIGIT], data.tables["val"][DIGIT].repeat(2))


def test_operators_are_solved_on_all_rows_and_distorted_copies() -> None:
    data = strokes(copies=2)
    parts, rows = list(data.solve_dataloader()), data.tables["train"]
    assert len(parts) == 3
    moved = [float((coordinates(part) - coordinates(rows)).abs().mean()) for part in parts]
    assert moved[0] == 0
    assert min(moved[1:]) > 1
    assert not torch.equal(coordinates(parts[1]), coordinates(parts[2]))
    assert all(torch.equal(part[DIGIT], rows[DIGIT]) for part in parts)
    assert same(parts, data.solve_dataloader())
    with pytest.raises(IndexError):
        ChangedCopies(rows)[1]


def test_cells_leave_test_rows_alone() -> None:
    assert set(strokes(split="cells").tables) == {"train", "val"}
    assert len(strokes().tables["test"][DIGIT]) == len(load_digits().test_y)


def test_so_many_leaves_of_each_row_are_hidden() -> None:
    table = {"a": torch.ones(50), "b": torch.ones(50, 2), "c": torch.ones(50, 2, 2), "y": torch.zeros(50)}
    hidden = hidden_leaves(table, ["a", "b", "c"], 2, seed=0)
    marks = torch.stack([hidden[v].reshape(50, -1).isnan().all(dim=1) for v in "abc"], dim=1)
    assert marks.sum(dim=1).tolist() == [2] * 50
    assert len(marks.unique(dim=0)) == 3
    assert torch.equal(hidden["y"], table["y"])
    more = hidden_leaves(table, ["a", "b", "c"], 3, seed=0)
    assert all(bool(more[v].isnan().all()) for v in "abc")


def test_images_are_cut_into_neighbouring_patches() -> None:
    images = torch.arange(2 * SIDE * SIDE, dtype=torch.float32).reshape(2, SIDE, SIDE)
    patches = cut(images)
    assert patches[0, 1, 0].tolist() == images[0, :2, 2:4].tolist()
    assert torch.equal(put_together(dict(zip(NAMES, patches.unbind(1), strict=True))), images)
    assert neighbours_first(2) == [0, 1, 2, 3]
    assert neighbours_first(4)[:8] == [0, 1, 4, 5, 2, 3, 6, 7]
    assert set(NAMES) < set(patch_graph().observed)


def test_image_splits_are_disjoint() -> None:
    tables = PatchData(train=300, validation=50, seed=1).tables
    assert [len(tables[part][DIGIT]) for part in ("train", "val", "test")] == [250, 50, 1497]
    assert not torch.equal(tables["train"][DIGIT], PatchData(train=300, validation=50, seed=2).tables["train"][DIGIT])


def test_one_batch_may_be_overfitted() -> None:
    data = strokes()
    loader = DataLoader(data.train_dataloader().dataset, batch_size=None, sampler=SequentialSampler(data.draws))
    batches = list(loader)  # what Lightning makes of the loader with overfit_batches
    assert len(batches) == data.steps_per_epoch
    assert torch.equal(next(iter(loader))[DIGIT], batches[0][DIGIT])


def test_bad_numbers_raise() -> None:
    zeros = {"x": torch.ones(5), "y": torch.full((5,), 2)}
    with pytest.raises(DataError, match=r"expected some of every class, got none of \[0, 1\]"):
        BalancedDraws(zeros, "y", 2, 2, 0, None)
    with pytest.raises(ArgumentError, match="steps_per_epoch: expected a whole number of at least 1, got 0"):
        strokes(steps_per_epoch=0)
    with pytest.raises(ArgumentError, match="query: expected"):
        strokes(query=0)
