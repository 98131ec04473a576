"""Pen digits learned from strokes with missing values."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchpbp import KernelPBP, templates
from torchpbp.datasets import DigitsDataModule
from torchpbp.errors import ArgumentError
from torchpbp.experiments import run_digits
from torchpbp.experiments.digits.missing_training import hide_values, training_rows


@pytest.fixture(scope="module")
def digits() -> DigitsDataModule:
    module = DigitsDataModule(train_size=60)
    module.setup()
    return module


def rows(digits: DigitsDataModule, **options: Any) -> Any:
    chosen = {"share": 0.3, "kind": "coordinates", "copies": 1, "slant": 0.15, "fill": "mean", "seed": 4, **options}
    return training_rows(digits.train_x, digits.train_y, **chosen)


def test_coordinates_or_points_are_hidden(digits: DigitsDataModule) -> None:
    single = hide_values(digits.train_x, 0.3, "coordinates", 1).isnan()
    pairs = hide_values(digits.train_x, 0.3, "points", 1).isnan()
    assert torch.equal(pairs[:, ::2], pairs[:, 1::2])
    assert not torch.equal(single[:, ::2], single[:, 1::2])
    for hidden in (single, pairs):
        assert float(hidden.double().mean()) == pytest.approx(0.3, abs=0.03)
    assert not hide_values(digits.train_x, 0.0, "points", 1).isnan().any()
    assert torch.equal(single, hide_values(digits.train_x, 0.3, "coordinates", 1).isnan())


@pytest.mark.parametrize("kind", ["coordinates", "points"])
def test_strokes_are_completed_before_they_are_slanted(digits: DigitsDataModule, kind: str) -> None:
    found = rows(digits, kind=kind)
    assert len(found.x) == 2 * found.originals
    assert len(found.y) == 2 * found.originals
    assert found.missing == pytest.approx(0.3, abs=0.03)
    assert not found.x.isnan().any()
    hidden = hide_values(digits.train_x, 0.3, kind, 4)
    kept = ~hidden.isnan().all(dim=1)
    missing, truth, filled = hidden[kept].isnan(), digits.train_x[kept], found.x[: found.originals]
    assert torch.equal(filled[~missing], truth[~missing])
    means = torch.stack([hidden[digits.train_y == d].nanmean(dim=0) for d in range(10)])[digits.train_y[kept]]
    assert (filled - truth)[missing].abs().mean() < 0.8 * (means - truth)[missing].abs().mean()
    assert not torch.equal(rows(digits, kind=kind, fill="draw").x, found.x)


def test_without_copies_the_learner_gets_missing_values(digits: DigitsDataModule) -> None:
    found = rows(digits, copies=0)
    assert float(found.x.isnan().double().mean()) == pytest.approx(found.missing, abs=1e-3)
    complete = rows(digits, share=0.0)
    assert torch.equal(complete.x[: complete.originals], digits.train_x)
    assert complete.missing == 0


@pytest.mark.parametrize("copies", [0, 1])
def test_little_accuracy_is_lost(digits: DigitsDataModule, copies: int) -> None:
    learner = KernelPBP(templates.pen_clique(), bandwidth=20.0, evidence_bandwidth=7.0, fill="mean")
    shared: dict[str, Any] = {"data": digits, "learner": learner, "copies": copies, "verbose": False, "limit": 400}
    complete, incomplete = run_digits(**shared), run_digits(**shared, missing_training=0.3, missing_kind="points")
    assert incomplete["val/accuracy"] > complete["val/accuracy"] - 0.05
    assert (complete["missing/share"], complete["missing/kind"]) == (0, "none")
    assert incomplete["missing/share"] == pytest.approx(0.3, abs=0.03)
    assert incomplete["missing/kind"] == "points"
    assert incomplete["test/log_loss"] != complete["test/log_loss"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 1.0}, r"missing_training: expected a number from 0 to 0\.99, got 1\.0"),
        ({"share": -0.1}, "missing_training: expected a number"),
        ({"kind": "rows"}, "missing_kind: expected one of 'coordinates', 'points', got 'rows'"),
        ({"fill": "zero"}, "missing_fill: expected one of 'mean', 'draw', got 'zero'"),
    ],
)
def test_bad_settings(digits: DigitsDataModule, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        rows(digits, **options)
