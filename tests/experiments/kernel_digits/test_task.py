"""The experiment with a model per digit: rows, hidden points, metrics and the saved classifier."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import torchpbp
from torchpbp import EM, KernelPBP, templates
from torchpbp.__main__ import main
from torchpbp.datasets import FEATURES, DigitsDataModule, hide_points
from torchpbp.errors import ArgumentError
from torchpbp.experiments.grid import Run
from torchpbp.experiments.kernel_digits.binned_strokes import BinnedStrokes
from torchpbp.experiments.kernel_digits.task import ModelPerDigit, kernel_digits, training_table
from torchpbp.experiments.results import Result
from torchpbp.experiments.train.strokes import DIGIT, coordinates

KERNEL = partial(KernelPBP, bandwidth=20.0, evidence_bandwidth=7.0, core_leaves=2, root=["h1"], fill="mean")
CELLS = partial(BinnedStrokes, learner=partial(EM, restarts=1, max_steps=5, progress=False), states=3, cells=4)
SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def data() -> DigitsDataModule:
    module = DigitsDataModule()
    module.setup()
    return module


def run(data: DigitsDataModule, folder: Path | None = None, models: Any = None, **options: Any) -> Result:
    settings = {"sizes": [12], "hidden": [0, 4], "limit": 80, **options}
    return kernel_digits(data, templates.pen_strokes(), models or {"kernel": KERNEL}, Run(0, folder), **settings)


@pytest.fixture(scope="module")
def single(data: DigitsDataModule, tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """One model and size beside the baselines, with its files."""
    folder = tmp_path_factory.mktemp("single")
    result = run(data, folder)
    result.write(folder)
    return result, folder


@pytest.fixture(scope="module")
def several(data: DigitsDataModule) -> Result:
    """Two models, sizes and repeats."""
    models = {"kernel": KERNEL, "cells": CELLS}
    return run(data, None, models, sizes=[4, 40], repeats=2, copies=1, baselines=False)


def test_metrics_of_the_main_model_and_of_all(single: tuple[Result, Path]) -> None:
    metrics = single[0].metrics
    assert metrics["test/accuracy"] == metrics["test/accuracy/kernel/12/0"] > 0.7
    assert metrics["test/accuracy_half_hidden"] == metrics["test/accuracy/kernel/12/4"] > 0.5
    assert {"val/accuracy", "test/log_loss", "test/calibration_error", "fit_seconds/kernel/12"} <= set(metrics)
    for baseline in ("partial-distance 1-NN", "SVM after imputation", "gradient boosting"):
        assert metrics[f"test/accuracy/{baseline}/12/0"] > metrics[f"test/accuracy/{baseline}/12/4"] > 0.4
        assert f"test/log_loss/{baseline}/12/0" not in metrics  # they have no probabilities
    assert (metrics["rows/train"], metrics["rows/val"], metrics["rows/test"]) == (120, 80, 80)
    assert json.loads((single[1] / "metrics.json").read_text()) == metrics


def test_all_classifiers_are_asked_about_the_same_hidden_points(
    single: tuple[Result, Path], data: DigitsDataModule
) -> None:
    classifier = torchpbp.load(single[1] / "classifier.pt")
    rows = hide_points(data.test_x[:80].double(), 4, seed=0)
    right = (classifier.predict(rows) == data.test_y[:80].numpy()).mean()
    assert single[0].metrics["test/accuracy_half_hidden"] == pytest.approx(right)


def test_a_single_fit_has_predictions_pictures_and_a_file(
    single: tuple[Result, Path], data: DigitsDataModule, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result, folder = single
    assert list(result.pictures) == ["hidden", "confusion", "completed", "samples"]
    assert all((folder / f"{name}.png").exists() for name in result.pictures)
    written = pd.read_csv(folder / "predictions.csv")
    assert (written["true"] == written["predicted"]).mean() == pytest.approx(result.metrics["test/accuracy"])
    assert pd.read_csv(folder / "classes.csv")["count"].sum() == 80
    pd.DataFrame(data.test_x[:80], columns=FEATURES).to_csv(tmp_path / "rows.csv", index=False)
    assert main(["predict", str(folder / "classifier.pt"), str(tmp_path / "rows.csv"), "--json"]) == 0
    found = pd.DataFrame(json.loads(capsys.readouterr().out))
    assert found["predicted"].tolist() == written["predicted"].tolist()
    assert np.allclose(found["probability"], written["probability"], rtol=1e-4)


def test_kept_parts_are_not_fitted_again(
    single: tuple[Result, Path], data: DigitsDataModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelPerDigit, "fitted", lambda *_: pytest.fail("fitted again"))
    again = run(data, single[1])
    assert again.metrics == single[0].metrics
    assert again.tables["predictions"]["predicted"].equals(single[0].tables["predictions"]["predicted"])


def test_a_learning_curve_rises_and_has_standard_errors(several: Result) -> None:
    metrics = several.metrics
    for name in ("kernel", "cells"):
        assert metrics[f"test/accuracy/{name}/40/0"] > metrics[f"test/accuracy/{name}/4/0"] > 0.2
        assert metrics[f"test/accuracy_standard_error/{name}/4/0"] >= 0
        assert metrics[f"fit_seconds/{name}/4"] > 0
    assert metrics["test/accuracy"] == metrics["test/accuracy/kernel/40/0"]
    assert list(several.pictures) == ["learning_curve"]
    assert several.table is not None
    assert len(several.table) == 2 * 2 * 2 * 2 * 2  # models, sizes, repeats, val and test, hidden
    assert not several.models


def test_test_rows_are_left_alone_where_settings_are_chosen() -> None:
    metrics = run(DigitsDataModule(split="cells"), baselines=False).metrics
    assert metrics["val/accuracy"] > 0.6
    assert not [name for name in metrics if "test" in name]


def test_training_rows_are_nested_and_followed_by_slanted_copies(data: DigitsDataModule) -> None:
    few, more = (training_table(data, size, SEEDS, 0, 0.15, 0.0) for size in (5, 20))
    assert more[DIGIT].bincount().tolist() == [20] * 10
    assert {tuple(row) for row in coordinates(few).tolist()} < {tuple(row) for row in coordinates(more).tolist()}
    copied = training_table(data, 5, SEEDS, 2, 0.15, 0.0)
    assert torch.equal(copied[DIGIT], few[DIGIT].repeat(3))
    assert torch.equal(coordinates(copied)[:50], coordinates(few))
    assert not torch.equal(coordinates(copied)[50:100], coordinates(few))
    assert torch.equal(coordinates(training_table(data, None, SEEDS, 0, 0.15, 0.0)), data.train_x)


def test_models_learn_from_rows_with_missing_coordinates(data: DigitsDataModule) -> None:
    rows = coordinates(training_table(data, 100, SEEDS, 0, 0.15, 0.3))
    assert float(rows.isnan().double().mean()) == pytest.approx(0.3, abs=0.02)
    assert not torch.equal(rows[:, ::2].isnan(), rows[:, 1::2].isnan())  # coordinates, not points
    options: dict[str, Any] = {"sizes": [40], "limit": None, "hidden": [0], "baselines": False}
    complete, incomplete = (run(data, **options, missing=share).metrics["val/accuracy"] for share in (0.0, 0.3))
    assert complete > incomplete > complete - 0.05


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"hidden": [9]}, r"^task\.hidden: expected numbers of points from 0 to 8, got \[9\]"),
        ({"missing": 1.0}, r"^task\.missing: expected a number from 0 to 0\.99, got 1\.0"),
        ({"missing": 0.3, "copies": 1}, r"^task\.copies: expected 0, since only complete strokes"),
    ],
)
def test_bad_settings_raise(options: dict[str, Any], text: str, data: DigitsDataModule) -> None:
    with pytest.raises(ArgumentError, match=text):
        run(data, **options)
