"""Batches of strokes: balanced, distorted, and the same after an interruption."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from torchpbp.datasets import DigitsDataModule
from torchpbp.errors import ArgumentError, DataError
from torchpbp.experiments.digits.distortions import NONE, Distortions
from torchpbp.experiments.digits.stroke_batches import (
    POINT_NAMES,
    DistortedCopies,
    StrokeBatches,
    point_columns,
)
from torchpbp.experiments.running.drawn_batches import BalancedDraws


def data(**options: object) -> DigitsDataModule:
    module = DigitsDataModule(train_size=12, **options)  # type: ignore[arg-type]
    module.setup()
    return module


def flat(batch: dict[str, Tensor]) -> Tensor:
    return torch.cat([batch[name] for name in POINT_NAMES], dim=1)


def same(first: Iterable[dict[str, Tensor]], second: Iterable[dict[str, Tensor]]) -> bool:
    return all(torch.equal(flat(a), flat(b)) for a, b in zip(first, second, strict=True))


def test_points_are_columns_of_two_coordinates() -> None:
    x = torch.arange(32.0).reshape(2, 16)
    columns = point_columns(x, torch.tensor([3, 4]))
    assert list(columns) == [*POINT_NAMES, "digit"]
    assert columns["p2"].tolist() == [[2.0, 3.0], [18.0, 19.0]]
    assert torch.equal(flat(columns), x)


def test_a_batch_has_balanced_support_rows_first() -> None:
    rows = data()
    batches = StrokeBatches(rows, steps=3, support=5, query=30, distortions=NONE)
    (first, second, _) = list(batches.train_dataloader())
    assert first["digit"][:50].tolist() == [d for d in range(10) for _ in range(5)]
    assert len(first["digit"]) == 80
    assert batches.support_share == pytest.approx(50 / 80)
    assert round(batches.support_share * 80) == 50
    assert first["digit"][50:].unique().numel() > 5  # any digit
    assert not torch.equal(flat(first), flat(second))
    distance = torch.cdist(flat(first), rows.train_x)
    assert distance.amin(dim=1).max() < 0.1  # without distortions they are training rows,
    assert torch.equal(rows.train_y[distance.argmin(dim=1)], first["digit"])  # each with its own digit


def test_batches_follow_from_seed_and_epoch() -> None:
    rows = data()

    def epoch(number: int, seed: int = 0) -> list[dict[str, Tensor]]:
        loader = StrokeBatches(rows, steps=3, support=2, query=5, seed=seed).train_dataloader()
        loader.sampler.set_epoch(number)  # as Lightning does
        return list(loader)

    assert same(epoch(1), epoch(1))
    assert not same(epoch(0), epoch(1))
    assert not same(epoch(0), epoch(0, seed=1))


def test_validation_rows_are_complete_and_half_hidden() -> None:
    rows = data()
    (batch,) = list(StrokeBatches(rows, limit=40).val_dataloader())
    hidden = torch.stack([batch[name].isnan().all(dim=1) for name in POINT_NAMES], dim=1)
    assert hidden.sum(dim=1).tolist() == [0] * 40 + [4] * 40
    assert torch.equal(flat(batch)[:40], rows.val_x[:40])
    assert torch.equal(batch["digit"], rows.val_y[:40].repeat(2))


def test_operators_are_solved_on_all_rows_and_distorted_copies() -> None:
    rows = data()
    batches = StrokeBatches(rows, copies=2, distortions=Distortions())
    parts = list(batches.solve_dataloader())
    assert len(parts) == 3
    assert torch.equal(flat(parts[0]), rows.train_x)
    for part in parts:
        assert torch.equal(part["digit"], rows.train_y)
    moved = [(flat(part) - rows.train_x).abs().mean() for part in parts]
    assert moved[0] == 0
    assert min(moved[1:]) > 1
    assert not torch.equal(flat(parts[1]), flat(parts[2]))
    assert same(parts, batches.solve_dataloader())


def test_blocks_of_copies_cover_all_rows() -> None:
    rows = data()
    copies = DistortedCopies(rows.train_x, rows.train_y, 1, NONE, 0, rows=50)
    every = torch.cat([flat(copies[i]) for i in range(len(copies))])
    assert torch.allclose(every, rows.train_x.repeat(2, 1), atol=1e-3)
    with pytest.raises(IndexError):
        copies[len(copies)]


def test_bad_batches_raise() -> None:
    rows = data()
    zeros = rows.train_y == 0
    with pytest.raises(DataError, match=r"expected some of every class, got none of \[1, 2"):
        BalancedDraws(rows.train_x[zeros], rows.train_y[zeros], 10, 2, 2, 0, lambda x, y, _: point_columns(x, y))
    with pytest.raises(ArgumentError, match="steps: expected a whole number of at least 1, got 0"):
        StrokeBatches(rows, steps=0)
    with pytest.raises(ArgumentError, match="query: expected"):
        StrokeBatches(rows, query=0)
