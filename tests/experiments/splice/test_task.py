"""The splice experiment: what it chooses and measures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from torchpbp import PBP, LatentGraph, templates
from torchpbp.datasets import load_splice
from torchpbp.errors import ArgumentError
from torchpbp.experiments.grid import Run
from torchpbp.experiments.results import Result
from torchpbp.experiments.splice.task import drawn, splice


class CountsLetters:
    """A model of the letters' frequencies at each site."""

    def __init__(self, graph: LatentGraph) -> None:
        self.graph = graph

    def fit(self, data: dict[str, torch.Tensor]) -> CountsLetters:
        counts = torch.stack([(torch.bincount(data[v], minlength=4) + 1.0) for v in self.graph.observed])
        self.logs = (counts / counts.sum(dim=1, keepdim=True)).log()
        return self

    def log_evidence(self, evidence: dict[str, torch.Tensor]) -> torch.Tensor:
        x = torch.stack([evidence[v] for v in self.graph.observed], dim=1)
        return torch.where(x >= 0, self.logs[torch.arange(60), x.clamp(min=0)], 0.0).sum(dim=1)


def small(**options: Any) -> Result:
    given: dict[str, Any] = {
        "models": {"pbp": PBP, "letters": CountsLetters},
        "graph": templates.hmm(60, 2, 4),
        "run": Run(0),
        "structures": ((1, 2),),
        "ridges": ((1.0, 10.0), (1.0, 1000.0)),
        "folds_used": 1,
        "inner_folds": 2,
        "sizes": (60,),
    }
    return splice(**{**given, **options})


def test_all_classifiers_are_measured() -> None:
    result = small()
    table, metrics = result.table, result.metrics
    assert table is not None
    assert list(table["model"]) == ["pbp, chosen", "letters", "naive Bayes", "SVM"]
    chosen = table[table["model"] == "pbp, chosen"]["settings"]
    assert chosen.str.fullmatch(r"order 1, 2 hidden states, ridge \(1\.0, (10|1000)\.0\)").all()
    # Letters by site, smoothed by one, are scikit-learn's naive Bayes; a row on the edge may go either way.
    rows = table[table["model"] == "letters"]
    assert metrics["accuracy/letters/60"] == pytest.approx(
        metrics["accuracy/naive Bayes/60"], abs=1.5 / rows["checked"].sum()
    )
    assert metrics["accuracy/letters/60"] == pytest.approx(rows["right"].sum() / rows["checked"].sum())
    assert metrics["accuracy/SVM/60"] > 0.55
    assert set(result.main) <= set(metrics)


def test_drawn_rows_keep_the_shares_of_the_classes() -> None:
    data = load_splice()
    learn, check = data.folds(10)[0]
    found = drawn(data.y, learn, 400, 0)
    assert len(set(found.tolist())) == len(found)
    assert not set(found.tolist()) & set(check.tolist())
    assert np.allclose(data.y[found].bincount() / len(found), [0.24, 0.24, 0.52], atol=0.01)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"folds_used": 11}, "^task.folds_used: expected a whole number from 1 to 10, got 11"),
        ({"sizes": (10,)}, "^task.sizes: expected a sequence, each None or a whole number of at least 30"),
        ({"sizes": (5000,)}, "^task.sizes: expected at most the .* rows of a fold, got 5000"),
        ({"structures": ((1, 2), (1, 0))}, r"^task.structures: .* got \(\(1, 2\), \(1, 0\)\)"),
        ({"graph": templates.hmm(6)}, "^task.graph: expected 60 observables, got 6. Set graph.length=60"),
    ],
)
def test_bad_settings(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        small(**options)
