"""Pen strokes as cells of a grid."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch

from torchpbp import EM, PBP, GenerativeClassifier, LatentGraph, SpectralJunctionTree, templates
from torchpbp.datasets import FEATURES, DigitsDataModule
from torchpbp.experiments.kernel_digits.binned_strokes import BinnedStrokes

STROKES = templates.pen_strokes()


class Recorder:
    """Keeps its input."""

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
    model = BinnedStrokes(STROKES, Recorder, states=3, cells=4)
    row = [0.0, 0.0, 24.9, 25.0, 50.0, 99.0, 100.0, 100.00001, 75.0, -1e-5, 0.0, 75.0, 30.0, 60.0, 60.0, 30.0]
    model.fit(columns(row))
    assert [int(model.model.data[f"x{t}"]) for t in range(1, 9)] == [0, 1, 11, 15, 12, 3, 6, 9]
    assert (model.model.graph.num_states("x1"), model.model.graph.num_states("h1")) == (16, 3)
    assert model.graph is STROKES


def test_half_a_point_is_no_point() -> None:
    model = BinnedStrokes(STROKES, Recorder, cells=4)
    assert model.log_evidence(columns([math.nan, 10.0, 10.0, math.nan, math.nan, math.nan, *[10.0] * 10])).tolist() == [
        0
    ]
    assert [int(model.model.data[f"x{t}"]) for t in range(1, 9)] == [-1, -1, -1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("learner", [partial(EM, restarts=1, max_steps=20, progress=False), SpectralJunctionTree, PBP])
def test_discrete_models_read_digits(learner: Any) -> None:
    data = DigitsDataModule(train_size=60)
    data.setup()
    chosen, asked = data.train_y < 3, data.val_y < 3
    classifier = GenerativeClassifier(learner=BinnedStrokes(STROKES, learner, states=3, cells=4))
    classifier.fit(data.train_x[chosen].double(), data.train_y[chosen])
    assert classifier.score(data.val_x[asked].double(), data.val_y[asked].numpy()) > 0.8
