"""Pen strokes as cells of a grid."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch

from torchpbp import EM, PBP, LatentGraph
from torchpbp.baselines.spectral import SpectralJunctionTree
from torchpbp.datasets import FEATURES, DigitsDataModule
from torchpbp.errors import DataError, StructureError
from torchpbp.experiments.digits.binned_strokes import BinnedStrokes
from torchpbp.experiments.digits.classification import fit_classifier, predict
from torchpbp.experiments.digits.distortions import slanted_copies
from torchpbp.experiments.running.scores import accuracy


class Recorder:
    """Keeps what it is given."""

    def __init__(self, graph: LatentGraph) -> None:
        self.graph = graph

    def fit(self, data: dict[str, torch.Tensor]) -> None:
        self.data = data

    def log_evidence(self, evidence: dict[str, torch.Tensor]) -> torch.Tensor:
        self.data = evidence
        return torch.zeros(len(evidence["x1"]))


def columns(*rows: list[float]) -> dict[str, torch.Tensor]:
    return dict(zip(FEATURES, torch.tensor(rows, dtype=torch.float64).T, strict=True))


def test_cells_are_numbered_by_column_and_row() -> None:
    model = BinnedStrokes(Recorder, states=3, cells=4)
    first = [0.0, 0.0, 24.9, 25.0, 50.0, 99.0, 100.0, 100.0, 75.0, 0.0, 0.0, 75.0, 30.0, 60.0, 60.0, 30.0]
    model.fit(columns(first))
    assert {v: int(c) for v, c in model.model.data.items()} == {
        "x1": 0,
        "x2": 1,
        "x3": 2 * 4 + 3,
        "x4": 15,
        "x5": 12,
        "x6": 3,
        "x7": 1 * 4 + 2,
        "x8": 2 * 4 + 1,
    }
    assert model.model.graph.num_states("x1") == 16
    assert model.model.graph.num_states("h1") == 3


def test_half_a_point_is_no_point() -> None:
    model = BinnedStrokes(Recorder, cells=4)
    row = [math.nan, 10.0, 10.0, math.nan, math.nan, math.nan, *[10.0] * 10]
    model.log_evidence(columns(row))
    assert [int(model.model.data[f"x{t}"]) for t in range(1, 9)] == [-1, -1, -1, 0, 0, 0, 0, 0]
    with pytest.raises(DataError, match="expected complete rows to learn from"):
        model.fit(columns(row))


@pytest.mark.parametrize(
    "learner",
    [partial(EM, restarts=1, max_steps=20, progress=False), SpectralJunctionTree, PBP],
    ids=["em", "sp", "pbp"],
)
def test_discrete_learners_read_digits(learner: Any) -> None:
    data = DigitsDataModule(train_size=60)
    data.setup()
    chosen = data.train_y < 3
    classifier, _ = fit_classifier(
        BinnedStrokes(learner, states=3, cells=4), data.train_x[chosen], data.train_y[chosen], False
    )
    known = data.val_y < 3
    assert accuracy(predict(classifier, data.val_x[known])[0], data.val_y[known].numpy()) > 0.8


@pytest.mark.parametrize("value", [-1.0, 100.1, 640.0, -math.inf, math.inf])
def test_points_outside_the_square_raise(value: float) -> None:
    model = BinnedStrokes(Recorder, cells=4)
    row = [*[10.0] * 5, value, *[10.0] * 10]
    for action in (model.fit, model.log_evidence):
        with pytest.raises(DataError, match=rf"expected coordinates from 0 to 100, got {value:g} in column y3\. Scale"):
            action(columns([10.0] * 16, row))


def test_a_rounded_edge_belongs_to_the_last_cell() -> None:
    """Strokes scaled to the square in single precision end at 100.00001 here and there."""
    model = BinnedStrokes(Recorder, cells=4)
    model.fit(columns([-1e-5, 100.00001, *[10.0] * 14]))
    assert int(model.model.data["x1"]) == 3
    points = slanted_copies(10 * torch.rand(500, 16, generator=torch.Generator().manual_seed(0)), 3, 0.15)
    model.fit(dict(zip(FEATURES, points.T, strict=True)))
    assert all(0 <= int(c.min()) <= int(c.max()) < 16 for c in model.model.data.values())


def test_bad_input() -> None:
    with pytest.raises(StructureError, match="cells: expected at least 2 along a side, got 1"):
        BinnedStrokes(Recorder, cells=1)
    with pytest.raises(DataError, match="missing: y8"):
        BinnedStrokes(Recorder).fit({v: torch.zeros(1) for v in FEATURES[:-1]})
