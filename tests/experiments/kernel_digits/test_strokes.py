"""Strokes completed by, and drawn from, a model per digit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torchpbp import GenerativeClassifier, KernelPBP, templates
from torchpbp.datasets import DigitsDataModule, hide_points
from torchpbp.experiments.kernel_digits.strokes import complete, drawn


@pytest.fixture(scope="module")
def data() -> DigitsDataModule:
    module = DigitsDataModule(train_size=20)
    module.setup()
    return module


@pytest.fixture(scope="module")
def classifier(data: DigitsDataModule) -> GenerativeClassifier:
    model = KernelPBP(templates.pen_strokes(), bandwidth=20.0, evidence_bandwidth=7.0, core_leaves=2, root=["h1"])
    return GenerativeClassifier(learner=model).fit(data.train_x.double(), data.train_y)


def test_completion_keeps_seen_coordinates_and_beats_the_mean(
    classifier: GenerativeClassifier, data: DigitsDataModule
) -> None:
    true = data.test_x[:60].double()
    seen = hide_points(true, 4, seed=0)
    completed = complete(classifier, seen)
    shown = ~seen.isnan()
    assert completed.isfinite().all()
    assert torch.equal(completed[shown], true[shown])
    mean = data.train_x.double().mean(dim=0).expand_as(true)
    error, plain = ((guess - true)[~shown].square().mean() for guess in (completed, mean))
    assert error < 0.6 * plain
    assert torch.equal(complete(classifier, true), true)


def test_drawn_strokes_look_like_their_class(classifier: GenerativeClassifier) -> None:
    strokes = drawn(classifier, 5, seed=0)
    assert strokes.shape == (50, 16)
    assert (classifier.predict(strokes) == np.tile(classifier.classes_, 5)).mean() > 0.8
