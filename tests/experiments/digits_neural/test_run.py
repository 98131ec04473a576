"""The whole run of the neural model: what it measures and writes, and that it can be interrupted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

import torchpbp
from torchpbp.__main__ import main
from torchpbp.datasets import DigitsDataModule, hide_points
from torchpbp.errors import ArgumentError, DataError
from torchpbp.experiments import run_digits
from torchpbp.experiments.digits.neural import NeuralDigits
from torchpbp.experiments.digits.stroke_batches import point_columns
from torchpbp.experiments.running.answers import Masks, ask, judged
from torchpbp.neural.averaging import WeightAverage

SMALL: dict[str, Any] = {
    "features": 3,
    "states": 4,
    "width": 16,
    "head": 8,
    "nets": (8,),
    "steps": 6,
    "epoch": 3,
    "support": 6,
    "query": 24,
    "copies": 1,
    "hidden": (0, 4),
    "draws": 2,
    "baselines": False,
}


def callbacks() -> dict[str, Callback]:
    keep = ModelCheckpoint(filename="last", save_on_train_epoch_end=True, enable_version_counter=False)
    return {"checkpoint": keep, "average": WeightAverage(0.9)}


def run(output_dir: Path | None = None, seed: int = 0, data: DigitsDataModule | None = None, **changes: Any) -> Any:
    learner = NeuralDigits(**{**SMALL, "callbacks": callbacks(), **changes})
    rows = DigitsDataModule(train_size=15) if data is None else data
    return run_digits(rows, learner, seed, output_dir, verbose=False, limit=40)


def without_timings(metrics: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in metrics.items() if "seconds" not in k}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("neural")
    return run(folder, twin=True, baselines=True), folder


def test_figures_of_all_classifiers_are_in_metrics_and_tables(finished: tuple[dict[str, Any], Path]) -> None:
    metrics, folder = finished
    assert json.loads((folder / "metrics.json").read_text()) == metrics
    table = pd.read_csv(folder / "metrics.csv")
    assert set(table["classifier"]) == {"neural PBP", "twin: perceptron", "SVM after imputation"}
    own = table[(table["classifier"] == "neural PBP") & (table["rows"] == "test")].set_index("hidden")
    assert metrics["test/accuracy"] == metrics["test/accuracy/neural/0"] == pytest.approx(own.loc[0, "accuracy"])
    assert metrics["test/log_loss_half_hidden"] == pytest.approx(own.loc[4, "log_loss"])
    assert metrics["twin/fill"] in ("zero", "mean")
    assert metrics["test/accuracy/svm/0"] > 0.7
    predictions = pd.read_csv(folder / "predictions.csv")
    assert (predictions["true"] == predictions["predicted"]).mean() == pytest.approx(metrics["test/accuracy"])
    history = pd.read_csv(folder / "training.csv")
    assert history["step"].tolist() == [3, 6] * 2
    assert {"train/loss", "val/loss", "val/accuracy"} <= set(history)
    assert pd.read_csv(folder / "published.csv")["test accuracy"].is_monotonic_decreasing
    assert {p.name for p in (folder / "checkpoints").iterdir()} == {"last.ckpt", "twin_last.ckpt"}
    for name in ("hidden", "training", "calibration", "hardest", "confusion"):
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_model_file_answers_as_the_run_did(
    finished: tuple[dict[str, Any], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, folder = finished
    data = DigitsDataModule(train_size=15)
    data.setup()
    x = data.test_x[:40]
    model = torchpbp.load(folder / "model.pt")
    with torch.no_grad():
        answers = model.posterior("digit", point_columns(x))
    written = pd.read_csv(folder / "predictions.csv")
    assert answers.argmax(dim=1).tolist() == written["predicted"].tolist()
    assert answers.amax(dim=1).numpy() == pytest.approx(written["probability"].to_numpy(), rel=1e-5)
    entries = [f"p{t}[{i}]" for t in range(1, 9) for i in range(2)]
    rows = pd.DataFrame(hide_points(x, 3, 0).numpy(), columns=entries)
    rows.to_csv(tmp_path / "rows.csv", index=False)
    assert main(["predict", str(folder / "model.pt"), str(tmp_path / "rows.csv"), "--json"]) == 0
    found = [line["predicted"] for line in json.loads(capsys.readouterr().out)]
    with torch.no_grad():
        assert found == model.posterior("digit", point_columns(hide_points(x, 3, 0))).argmax(dim=1).tolist()
    rows.drop(columns="p8[1]").to_csv(tmp_path / "rows.csv", index=False)
    assert main(["predict", str(folder / "model.pt"), str(tmp_path / "rows.csv")]) == 1
    assert "missing columns ['p8[1]']" in capsys.readouterr().err


@pytest.mark.parametrize("encoder", ["context", "points"])
def test_hidden_points_have_no_influence(encoder: str, tmp_path: Path) -> None:
    run(tmp_path, encoder=encoder)
    model = torchpbp.load(tmp_path / "model.pt")
    columns = point_columns(100 * torch.rand(20, 16, generator=torch.Generator().manual_seed(0)))
    seen = {name: torch.rand(20, generator=torch.Generator().manual_seed(i)) < 0.6 for i, name in enumerate(columns)}
    noise = {name: torch.where(seen[name].unsqueeze(1), v, 100 * torch.rand_like(v)) for name, v in columns.items()}
    with torch.no_grad():
        first, second = (
            model.posterior("digit", {name: (v[name], seen[name]) for name in columns}) for v in (columns, noise)
        )
    assert torch.equal(first, second)


def test_same_seed_same_figures_and_another_seed_others() -> None:
    first = without_timings(run())
    assert first == without_timings(run())
    assert first["test/log_loss"] != run(seed=1)["test/log_loss"]


class Killed(Exception):
    pass


class KillAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self.step:
            raise Killed


@pytest.mark.parametrize("step", [4, 6])
def test_training_goes_on_from_its_last_state_to_the_same_figures(
    step: int, finished: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    with pytest.raises(Killed):
        run(tmp_path, twin=True, callbacks={**callbacks(), "kill": KillAt(step)})
    last = tmp_path / "checkpoints" / "last.ckpt"
    assert torch.load(last, weights_only=True)["global_step"] == 3  # the last whole epoch
    again = run(tmp_path / "rest", twin=True, baselines=True, ckpt_path=str(last))
    assert without_timings(again) == without_timings(finished[0])
    histories = [pd.read_csv(folder / "training.csv") for folder in (finished[1], tmp_path / "rest")]
    pd.testing.assert_frame_equal(*histories, check_exact=True)


def test_other_splits_leave_test_rows_alone() -> None:
    metrics = run(data=DigitsDataModule(train_size=15, split="cells"))
    assert "val/accuracy_half_hidden" in metrics
    assert not [name for name in metrics if name.startswith(("test", "rows/test"))]


def test_masks_and_figures_are_the_definition() -> None:
    x = torch.rand(30, 16)
    masks = Masks((0, 3), 2, hide_points)
    hidden = {k: [rows.isnan().sum(dim=1).unique().tolist() for rows in draws] for k, draws in masks.of(x).items()}
    assert hidden == {0: [[0]], 3: [[6], [6]]}
    assert not torch.equal(*(rows.isnan() for rows in masks.of(x)[3]))
    true = torch.arange(30) % 10

    def classify(rows: torch.Tensor) -> torch.Tensor:
        """Right with probability 0.91 for complete rows; uniform and right for one digit in ten otherwise."""
        sure = torch.full((30, 10), 0.01).scatter(1, true.unsqueeze(1), 0.91)
        return torch.where(rows.isnan().any(), torch.full((30, 10), 0.1), sure).log()

    answers, seconds = ask(classify, x, masks)
    assert seconds > 0
    table = judged(answers, true).set_index("hidden")
    assert table["accuracy"].tolist() == [1.0, pytest.approx(0.1)]
    assert table["log_loss"].to_numpy() == pytest.approx(-np.log([0.91, 0.1]))
    assert table["calibration_error"].to_numpy() == pytest.approx([0.09, 0.0], abs=1e-6)


def test_bad_settings_raise() -> None:
    with pytest.raises(ArgumentError, match="the experiment hides points itself"):
        run(data=DigitsDataModule(hide=0.5))
    with pytest.raises(ArgumentError, match=r"ckpt_path: expected a state of training"):
        run(ckpt_path="nowhere.ckpt")
    with pytest.raises(ArgumentError, match="hidden: expected one or more"):
        run(hidden=())
    data = DigitsDataModule(train_size=15)
    data.setup()
    kept = data.train_y != 3
    data.train_x, data.train_y = data.train_x[kept], data.train_y[kept]
    with pytest.raises(DataError, match=r"expected some of every class, got none of \[3\]"):
        run(data=data)
