"""The splice experiment: what it chooses, measures and writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from torchpbp import PBP, templates
from torchpbp.classifier import GenerativeClassifier
from torchpbp.datasets import load_splice
from torchpbp.datasets.splice import grouped_folds
from torchpbp.errors import ArgumentError, StructureError
from torchpbp.experiments.splice.choice import Choice
from torchpbp.experiments.splice.run import SpliceRows, _drawn, _naive_bayes, run_splice
from torchpbp.models.two_stage_model import TwoStageModel

SMALL: dict[str, Any] = {
    "learner": PBP,
    "structures": ((1, 2),),
    "ridges": ((1.0, 10.0), (1.0, 1000.0)),
    "folds_used": 1,
    "inner_folds": 2,
    "sizes": (60,),
    "verbose": False,
}


class CountsLetters:
    """A model that knows the letters' frequencies at each site."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph

    def fit(self, data: dict[str, torch.Tensor]) -> CountsLetters:
        counts = torch.stack([(torch.bincount(data[v], minlength=4) + 1.0) for v in self.graph.observed])
        self.logs = (counts / counts.sum(dim=1, keepdim=True)).log()
        return self

    def log_evidence(self, evidence: dict[str, torch.Tensor]) -> torch.Tensor:
        x = torch.stack([evidence[v] for v in self.graph.observed], dim=1)
        return torch.where(x >= 0, self.logs[torch.arange(60), x.clamp(min=0)], 0.0).sum(dim=1)


def test_run_measures_all_classifiers_and_writes_files(tmp_path: Path) -> None:
    graph = templates.hmm(60, 2, 4)
    others = {"letters": {"learner": CountsLetters, "graph": graph}}
    metrics = run_splice(others=others, output_dir=tmp_path, **SMALL)
    assert json.loads((tmp_path / "metrics.json").read_text()) == metrics
    table = pd.read_csv(tmp_path / "metrics.csv")
    assert len(table) == 4
    assert {p.name for p in tmp_path.iterdir()} == {"metrics.json", "metrics.csv", "splice.png", "confusion.png"}
    chosen = table[table["learner"] == "PBP, chosen"]["settings"]
    assert chosen.str.fullmatch(r"order 1, 2 hidden states, ridge \(1\.0, (10|1000)\.0\)").all()
    # Letters by site, smoothed by one, are what scikit-learn's naive Bayes is; a row on the edge may go either way.
    checked = table.loc[table["learner"] == "letters", "checked"].sum()
    assert metrics["accuracy/letters/60"] == pytest.approx(metrics["accuracy/naive Bayes/60"], abs=1.5 / checked)
    assert metrics["accuracy/SVM/60"] > 0.55
    rows = table[table["learner"] == "letters"]
    assert metrics["accuracy/letters/60"] == pytest.approx(rows["right"].sum() / rows["checked"].sum())


@pytest.mark.slow
def test_same_seed_same_choice_other_seed_other_folds() -> None:
    quick = {**SMALL, "ridges": ((1.0, 100.0),)}
    first, again, other = run_splice(**quick), run_splice(**quick), run_splice(seed=1, **quick)
    assert first["accuracy/PBP, chosen/60"] == again["accuracy/PBP, chosen/60"]
    assert first["accuracy/naive Bayes/60"] != other["accuracy/naive Bayes/60"]


def test_drawn_rows_keep_the_shares_of_the_classes() -> None:
    data = load_splice()
    learn, check = data.folds(10)[0]
    drawn = _drawn(data.y, learn, 400, 0)
    assert len(set(drawn.tolist())) == len(drawn)
    assert not set(drawn.tolist()) & set(check.tolist())
    assert np.allclose(data.y[drawn].bincount() / len(drawn), [0.24, 0.24, 0.52], atol=0.01)
    assert torch.equal(_drawn(data.y, learn, None, 0), learn)


def test_unknown_letters_say_nothing_to_naive_bayes() -> None:
    data = load_splice()
    predict, _ = _naive_bayes(SpliceRows(data, data.filled(), torch.arange(len(data.y))))
    assert predict(torch.full((1, 60), -1)).tolist() == [2]  # the most frequent class


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"folds_used": 11}, ArgumentError, "folds_used: expected a number from 1 to folds=10, got 11"),
        ({"sizes": (10,)}, ArgumentError, "sizes: expected one or more numbers of rows of at least 30"),
        ({"sizes": (5000,)}, ArgumentError, "sizes: expected at most the .* rows of a fold, got 5000"),
        ({"structures": ()}, ArgumentError, "structures: expected one or more pairs"),
        (
            {"structures": ((1, 2), (1, 0))},
            ArgumentError,
            r"expected one or more pairs \(order, hidden states\) .* from 1 on, got \(\(1, 2\), \(1, 0\)\)",
        ),
        ({"others": {"EM": {"learner": PBP}}}, StructureError, "others.EM: expected the entries learner and graph"),
        (
            {"others": {"EM": {"learner": PBP, "graph": templates.hmm(6)}}},
            StructureError,
            "others.EM.graph: expected 60 observables, got 6",
        ),
    ],
)
def test_bad_settings(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        run_splice(**{**SMALL, **options})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Columns .* hold one state only")
def test_choice_counts_the_held_out_rows_that_classifiers_get_right() -> None:
    """The quick way, models planned and rows counted once, against a classifier fitted anew for each candidate."""
    data = load_splice()
    rows = SpliceRows(data, data.filled(), _drawn(data.y, torch.arange(len(data.y)), 240, 3))
    ridges = ((1.0, 10.0), (1.0, 1000.0))
    choice = Choice(PBP, ((1, 1), (1, 2)), ridges, inner_folds=2, seed=5)
    found = choice.right(rows.x, rows.y, rows.group)
    expected = dict.fromkeys(found, 0)
    for learn, check in grouped_folds(rows.y, rows.group, 2, 5):
        for (order, states), ridge in expected:
            graph = templates.hmm(60, states, 4, order)
            classifier = GenerativeClassifier(graph, PBP, {"ridge": ridge}).fit(rows.x[learn], rows.y[learn])
            right = classifier.predict(rows.x[check]) == rows.y[check].numpy()
            expected[(order, states), ridge] += int(right.sum())
    assert found == pytest.approx(expected, abs=1)  # a row on the edge of two classes may go either way
    assert len(set(found.values())) > 1  # candidates differ, so a mix-up would show
    best, settings = choice.fit(rows.x, rows.y, rows.group)
    (order, states), ridge = max(found, key=lambda c: found[c])
    assert settings == f"order {order}, {states} hidden states, ridge {ridge}"
    assert len(best.graph_.latent) == 60
    assert best.models_[0].settings.ridge == ridge


@pytest.mark.filterwarnings("ignore:Columns .* hold one state only")
def test_a_learner_that_needs_rows_is_fitted_to_them() -> None:
    data = load_splice()
    rows = SpliceRows(data, data.filled(), _drawn(data.y, torch.arange(len(data.y)), 90, 3))
    made: list[TwoStageModel] = []

    class Rowwise(TwoStageModel):  # without the ability to learn from counts
        def fit(self, *args: Any, **kwargs: Any) -> TwoStageModel:
            made.append(self)
            return super().fit(*args, **kwargs)

    settings = (((1, 1),), ((1.0, 10.0),), 2, 5)
    found = Choice(Rowwise, *settings).right(rows.x, rows.y, rows.group)
    assert found == pytest.approx(Choice(PBP, *settings).right(rows.x, rows.y, rows.group), abs=1)
    assert len(made) == 6  # three classes, two folds
