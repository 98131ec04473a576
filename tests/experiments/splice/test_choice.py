"""The choice of structure and ridge, by counts made once, against classifiers fitted anew."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from torchpbp import PBP, LatentGraph, templates
from torchpbp.classifier import GenerativeClassifier
from torchpbp.datasets import load_splice
from torchpbp.datasets.splice import grouped_folds
from torchpbp.experiments.splice.choice import Choice
from torchpbp.experiments.splice.task import drawn
from torchpbp.learning.kernel_ridge import KernelRidge

pytestmark = pytest.mark.filterwarnings("ignore:Columns .* hold one state only")


def some_rows(size: int) -> tuple[Tensor, Tensor, Tensor]:
    data = load_splice()
    chosen = drawn(data.y, torch.arange(len(data.y)), size, 3)
    return data.filled()[chosen], data.y[chosen], data.group[chosen]


@pytest.mark.slow
def test_choice_counts_the_held_out_rows_that_classifiers_get_right() -> None:
    x, y, group = some_rows(240)
    ridges = ((1.0, 10.0), (1.0, 1000.0))
    choice = Choice(PBP, ((1, 1), (1, 2)), ridges, inner_folds=2, seed=5)
    found = choice.right(x, y, group)
    expected = dict.fromkeys(found, 0)
    for learn, check in grouped_folds(y, group, 2, 5):
        for (order, states), ridge in expected:
            graph = templates.hmm(60, states, 4, order)
            classifier = GenerativeClassifier(graph, PBP, {"ridge": ridge}).fit(x[learn], y[learn])
            right = classifier.predict(x[check]) == y[check].numpy()
            expected[(order, states), ridge] += int(right.sum())
    assert found == pytest.approx(expected, abs=1)  # a row on the edge of two classes may go either way
    assert len(set(found.values())) > 1  # candidates differ, so a mix-up would show
    best, settings = choice.fit(x, y, group)
    (order, states), ridge = max(found, key=lambda c: found[c])
    assert settings == f"order {order}, {states} hidden states, ridge {ridge}"
    assert len(best.graph_.latent) == 60
    assert best.models_[0].settings.ridge == ridge


def test_a_model_that_needs_rows_is_fitted_to_them() -> None:
    x, y, group = some_rows(90)
    made: list[PBP] = []

    class Rowwise(PBP):  # its first stage learns from rows
        def __init__(self, graph: LatentGraph, **settings: Any) -> None:
            super().__init__(graph, regressor=KernelRidge(), **settings)

        def fit(self, *args: Any, **kwargs: Any) -> PBP:
            made.append(self)
            return super().fit(*args, **kwargs)

    settings = (((1, 1),), ((1.0, 10.0),), 2, 5)
    found = Choice(Rowwise, *settings).right(x, y, group)
    assert found == pytest.approx(Choice(PBP, *settings).right(x, y, group), abs=1)
    assert len(made) == 6  # three classes, two folds
