"""The experiments with pen digits: what they measure, and what they write."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import torchpbp
from torchpbp import PBP, RBF, KernelPBP, Nystroem, templates
from torchpbp.classifier import GenerativeClassifier
from torchpbp.datasets import FEATURES, DigitsDataModule, hide_points
from torchpbp.errors import ArgumentError, DataError, DataWarning, StructureError
from torchpbp.experiments import run_digits, run_digits_curve, run_digits_missing
from torchpbp.experiments.digits.baselines import PartialDistanceNeighbour, baselines
from torchpbp.experiments.digits.classification import complete
from torchpbp.experiments.digits.run import draw_samples, first_rows
from torchpbp.experiments.running.scores import calibration_error, class_table, confusion, log_loss


def chain() -> KernelPBP:
    return KernelPBP(templates.pen_strokes(), bandwidth=20.0, evidence_bandwidth=7.0, core_leaves=2, root=["h1"])


def data(**options: Any) -> DigitsDataModule:
    return DigitsDataModule(**{"train_size": 20, **options})


def run(**options: Any) -> dict[str, Any]:
    return run_digits(**{"data": data(), "learner": chain(), "limit": 150, "copies": 0, "verbose": False, **options})


@pytest.fixture(scope="module")
def fitted() -> tuple[GenerativeClassifier, DigitsDataModule]:
    module = data()
    module.setup()
    return GenerativeClassifier(learner=chain()).fit(module.train_x.double(), module.train_y), module


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("digits")
    return run(output_dir=folder), folder


def test_accuracy_is_well_above_chance(finished: tuple[dict[str, Any], Path]) -> None:
    metrics, _ = finished
    assert metrics["test/accuracy"] > 0.75
    assert metrics["val/accuracy"] > 0.75
    assert 0.6 < metrics["test/accuracy_half_hidden"] <= metrics["test/accuracy"]


def test_files_agree_with_each_other_and_with_the_metrics_returned(finished: tuple[dict[str, Any], Path]) -> None:
    metrics, folder = finished
    assert json.loads((folder / "metrics.json").read_text()) == metrics
    names = {path.name for path in folder.iterdir()}
    assert {"metrics.csv", "predictions.csv", "confusion.png", "samples.png", "completed.png"} <= names
    predictions = pd.read_csv(folder / "predictions.csv")
    assert list(predictions) == ["row", "true", "predicted", "probability"]
    assert predictions["row"].tolist() == list(range(150))
    right = predictions["true"] == predictions["predicted"]
    assert right.mean() == pytest.approx(metrics["test/accuracy"])
    assert predictions["probability"].between(0.1, 1).all()
    table = pd.read_csv(folder / "metrics.csv").set_index("class")
    assert table["count"].sum() == 150
    for digit in range(10):
        rows = predictions["true"] == digit
        assert table.loc[digit, "recall"] == pytest.approx(right[rows].mean()) == metrics[f"test/recall/{digit}"]


def test_half_hidden_means_four_points_of_each_row(fitted: tuple[GenerativeClassifier, DigitsDataModule]) -> None:
    classifier, module = fitted
    rows = hide_points(module.test_x, 4, seed=3)[:150]
    assert rows.isnan().sum(1).unique().tolist() == [8]
    expected = (classifier.predict(rows.double()) == module.test_y[:150].numpy()).mean()
    assert run(seed=3)["test/accuracy_half_hidden"] == pytest.approx(expected)


def test_slanted_copies_are_learned_from_as_well() -> None:
    plain, more = run(limit=50), run(limit=50, copies=2, slant=0.15)
    assert (plain["rows/slanted"], more["rows/slanted"]) == (0, 2 * more["rows/train"])
    assert plain["test/log_loss"] != more["test/log_loss"]


def test_same_seed_same_metrics(finished: tuple[dict[str, Any], Path]) -> None:
    kept = {k: v for k, v in finished[0].items() if "seconds" not in k}
    assert {k: v for k, v in run().items() if "seconds" not in k} == kept


def test_the_classifier_is_saved_and_predicts_what_the_run_predicted(
    finished: tuple[dict[str, Any], Path], fitted: tuple[GenerativeClassifier, DigitsDataModule], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"rank": 5, "features": Nystroem(5, bandwidth=20.0), "singles": 1, "root": ["h1"]}
    metrics = run(learner=PBP(templates.pen_strokes(), **options), output_dir=tmp_path, limit=40)
    assert metrics["learner"] == "PBP"
    for folder, kind in ((finished[1], KernelPBP), (tmp_path, PBP)):
        classifier = torchpbp.load(folder / "classifier.pt")
        assert [type(m) for m in classifier.models_] == [kind] * 10
        written = pd.read_csv(folder / "predictions.csv")
        log_proba = classifier.predict_log_proba(fitted[1].test_x[: len(written)])
        assert classifier.classes_[log_proba.argmax(axis=1)].tolist() == written["predicted"].tolist()
        probability = np.exp(log_proba.max(axis=1))
        assert probability == pytest.approx(written["probability"].to_numpy(), rel=1e-4)  # in single precision


def test_a_learner_without_a_file_format_costs_the_file_not_the_run(tmp_path: Path) -> None:
    class Own(RBF):
        pass

    with pytest.warns(DataWarning, match=r"classifier\.pt is not written\. Kernel Own cannot be saved"):
        run(learner=KernelPBP(templates.pen_clique(), bandwidth=20.0, kernel=Own()), output_dir=tmp_path, limit=20)
    assert (tmp_path / "metrics.json").exists()
    assert not (tmp_path / "classifier.pt").exists()


def test_quiet_run_prints_nothing_and_loud_run_the_figures(capfd: pytest.CaptureFixture[str]) -> None:
    run(limit=20)
    assert capfd.readouterr() == ("", "")
    metrics = run(limit=20, verbose=True)
    assert f"{metrics['test/accuracy']:.4f}" in capfd.readouterr().out


def test_completion_keeps_what_was_seen_and_beats_the_mean(
    fitted: tuple[GenerativeClassifier, DigitsDataModule],
) -> None:
    classifier, module = fitted
    true = module.test_x[:60].double()
    seen = hide_points(true, 4, seed=0)
    completed = complete(classifier, seen)
    assert completed.isfinite().all()
    shown = ~seen.isnan()
    assert torch.equal(completed[shown], true[shown])
    mean = module.train_x.double().mean(0).expand_as(true)
    error, plain = ((guess - true)[~shown].square().mean() for guess in (completed, mean))
    assert error < 0.6 * plain


def test_completion_of_complete_rows_changes_nothing(fitted: tuple[GenerativeClassifier, DigitsDataModule]) -> None:
    rows = fitted[1].test_x[:5].double()
    assert torch.equal(complete(fitted[0], rows), rows)


def test_samples_look_like_their_class(fitted: tuple[GenerativeClassifier, DigitsDataModule]) -> None:
    classifier, _ = fitted
    drawn = draw_samples(classifier, 5, seed=0)
    assert drawn.shape == (50, len(FEATURES))
    assert (classifier.predict(drawn) == np.tile(classifier.classes_, 5)).mean() > 0.8


def test_first_rows_are_by_class_and_in_order() -> None:
    assert first_rows(np.array([2, 0, 2, 2, 0]), 2) == [1, 4, 0, 2]


def test_calibration_error_is_the_definition() -> None:
    confidence, right = np.array([0.9, 0.9, 0.6, 1.0]), np.array([True, False, True, True])
    assert calibration_error(confidence, right, bins=10) == pytest.approx((2 * 0.4 + 0.4 + 0.0) / 4)
    assert calibration_error(np.ones(3), np.ones(3, dtype=bool)) == 0.0


def test_log_loss_is_the_definition() -> None:
    log_proba = np.log(np.array([[0.5, 0.5], [0.25, 0.75]]))
    expected = -(math.log(0.5) + math.log(0.75)) / 2
    assert log_loss(log_proba, np.array([3, 7]), np.array([3, 7])) == pytest.approx(expected)
    assert log_loss(log_proba, np.array([3, 7]), np.array([3, 8])) == math.inf


def test_class_table_counts_rows() -> None:
    matrix = confusion(np.array([0, 1, 1, 1]), np.array([0, 0, 1, 1]), [0, 1, 2])
    assert matrix.tolist() == [[1, 1, 0], [0, 2, 0], [0, 0, 0]]
    table = class_table(matrix, [0, 1, 2])
    assert table["recall"].tolist()[:2] == [0.5, 1.0]
    assert table["precision"].tolist()[:2] == [1.0, pytest.approx(2 / 3)]
    assert table.loc[2, ["precision", "recall"]].isna().all()
    assert table["count"].tolist() == [2, 2, 0]


def test_learning_curve_rises_and_writes_its_files(tmp_path: Path) -> None:
    others: dict[str, nn.Module] = {"density": KernelPBP(templates.pen_clique(), bandwidth=8.0)}
    options: dict[str, Any] = {"sizes": [40, 3], "repeats": 2, "limit": 200, "verbose": False}
    metrics = run_digits_curve(DigitsDataModule(), chain(), others, output_dir=tmp_path, **options)
    for name in ("KernelPBP", "density"):
        assert metrics[f"test/accuracy/{name}/40"] > metrics[f"test/accuracy/{name}/3"] > 0.3
        assert metrics[f"test/accuracy_standard_error/{name}/3"] >= 0
        assert metrics[f"fit_seconds/{name}/3"] > 0
    assert json.loads((tmp_path / "metrics.json").read_text()) == metrics
    table = pd.read_csv(tmp_path / "metrics.csv")
    assert len(table) == 8
    mean = table[(table["learner"] == "density") & (table["rows_per_class"] == 3)]["accuracy"].mean()
    assert metrics["test/accuracy/density/3"] == pytest.approx(mean)
    assert (tmp_path / "learning_curve.png").read_bytes().startswith(b"\x89PNG")


def test_one_repeat_has_no_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = run_digits_curve(DigitsDataModule(), chain(), sizes=[3], repeats=1, limit=20)
    assert metrics["test/accuracy_standard_error/KernelPBP/3"] is None
    assert capsys.readouterr().out.splitlines()[-1].split()[:2] == ["3", "KernelPBP"]


def test_hidden_points_table_has_all_classifiers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = run_digits_missing(data(), chain(), hidden=[0, 4], limit=100, output_dir=tmp_path)
    printed = capsys.readouterr().out
    table = pd.read_csv(tmp_path / "metrics.csv").set_index("classifier")
    assert list(table.index) == ["KernelPBP", *baselines(0)]
    for name, line in table.iterrows():
        assert line["hidden_0"] > line["hidden_4"] > 0.4
        assert metrics[f"test/accuracy/{name}/4"] == pytest.approx(line["hidden_4"])
        assert str(name) in printed
    same_rows = run(limit=100)
    assert same_rows["test/accuracy"] == pytest.approx(metrics["test/accuracy/KernelPBP/0"])
    assert same_rows["test/accuracy_half_hidden"] == pytest.approx(metrics["test/accuracy/KernelPBP/4"])


def test_partial_distance_neighbour_is_the_definition() -> None:
    module = data(train_size=5)
    module.setup()
    rows = hide_points(module.test_x[:40], 5, seed=1)
    expected = []
    for row in rows:
        seen = ~row.isnan()
        distance = (module.train_x[:, seen] - row[seen]).square().sum(1)
        expected.append(int(module.train_y[distance.argmin()]))
    assert PartialDistanceNeighbour(module.train_x, module.train_y)(rows).tolist() == expected


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"learner": KernelPBP}, StructureError, "Choose learner=pen_average, learner=gram or learner=nystroem"),
        ({"learner": KernelPBP(templates.pen_strokes(points=4))}, StructureError, "observes x1, y1, x2.* got x1, y1"),
        ({"limit": 0}, ArgumentError, "limit: expected None or a whole number of at least 1, got 0"),
        ({"samples": 0}, ArgumentError, "samples: expected a whole number of at least 1, got 0"),
        ({"data": DigitsDataModule(hide=0.5)}, ArgumentError, "the experiment hides points itself"),
    ],
)
def test_bad_settings_raise(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        run(**options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sizes": []}, "sizes: expected one or more whole numbers"),
        ({"sizes": [1]}, "sizes: .* at least 2"),
        ({"repeats": 0}, "repeats: expected a whole number of at least 1, got 0"),
        ({"sizes": [5000]}, "expected at least 5000 rows to draw from"),
    ],
)
def test_bad_curves_raise(options: dict[str, Any], text: str) -> None:
    with pytest.raises((ArgumentError, DataError), match=text):
        run_digits_curve(DigitsDataModule(), chain(), verbose=False, **options)


def test_nothing_to_hide_raises() -> None:
    with pytest.raises(ArgumentError, match="hidden: expected one or more"):
        run_digits_missing(data(), chain(), hidden=[], verbose=False)
