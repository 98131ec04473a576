"""The whole run: what it measures and writes, and what it refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from tests.experiments.digits_embedding.small_networks import KERNEL_DENSITY, QUIET, SMALL, learner
from torchpbp import KernelPBP, templates
from torchpbp.datasets import DigitsDataModule
from torchpbp.errors import DataError, ShapeError, StructureError
from torchpbp.experiments import run_digits_embedding
from torchpbp.experiments.embedding.network import PerceptronHead, StrokeEncoder


def run(output_dir: Path | None = None, **changes: Any) -> dict[str, Any]:
    data = DigitsDataModule(train_size=20)
    options = {
        **SMALL,
        "epochs": 2,
        "batch_size": 64,
        "hidden": (0, 4),
        "limit": 50,
        "trainer": QUIET,
        "verbose": False,
    }
    return run_digits_embedding(data, learner=learner, output_dir=output_dir, **{**options, **changes})


def without_timings(metrics: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in metrics.items() if not k.startswith("seconds")}


def test_a_run_measures_both_heads_and_writes_its_files(tmp_path: Path) -> None:
    metrics = run(tmp_path)
    names = ("accuracy", "accuracy_half_hidden", "log_loss", "calibration_error", "calibration_error_before")
    assert {f"{who}/{what}" for who in ("test", "twin") for what in names} <= set(metrics)
    assert not any("companion" in name for name in metrics)
    written = json.loads((tmp_path / "metrics.json").read_text())
    assert written == metrics
    table = pd.read_csv(tmp_path / "metrics.csv")
    assert list(table["hidden"]) == [0, 4]
    assert table["twin_accuracy"].tolist() == pytest.approx([metrics["hidden/0/twin"], metrics["hidden/4/twin"]])
    assert metrics["hidden/4/pbp"] == metrics["test/accuracy_half_hidden"]
    assert 0.9 < metrics["parameters/twin_heads"] / metrics["parameters/pbp_heads"] <= 1
    assert len(pd.read_csv(tmp_path / "training.csv")) == 4
    assert {p.name for p in (tmp_path / "checkpoints").iterdir()} == {
        "last.ckpt",
        "best.ckpt",
        "twin_last.ckpt",
        "twin_best.ckpt",
    }
    for name in ("hidden.png", "training.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    # A finished run has nothing left to train, and what it reads back gives the same answers.
    again = run(ckpt_path=str(tmp_path / "checkpoints" / "last.ckpt"))
    assert without_timings(again) == without_timings(metrics)


def test_a_companion_has_a_say_in_both_networks_answers(tmp_path: Path) -> None:
    options = {"companion": KERNEL_DENSITY, "copies": 1}
    metrics = run(tmp_path, companion_weight=1.0, companion_gain=0.5, **options)
    alone = run()
    for name in ("test", "twin"):
        assert metrics[f"{name}/accuracy"] == alone[f"{name}/accuracy"]  # a network by itself stays what it was
        # Two epochs on twenty strokes per digit teach a network little, a kernel density a lot.
        assert metrics[f"{name}_with_companion/accuracy"] > metrics[f"{name}/accuracy"] + 0.2
    assert metrics["hidden/4/pbp_companion"] == metrics["test_with_companion/accuracy_half_hidden"]
    assert list(pd.read_csv(tmp_path / "metrics.csv")["companion_accuracy"]) == pytest.approx(
        [metrics["companion/accuracy"], metrics["companion/accuracy_half_hidden"]]
    )
    silent = run(companion_weight=0.0, companion_gain=0.0, **options)
    assert silent["test_with_companion/log_loss"] == pytest.approx(silent["test/log_loss"])


def test_same_seed_same_figures_and_another_seed_others() -> None:
    first = without_timings(run(seed=3))
    assert first == without_timings(run(seed=3))
    assert first["test/log_loss"] != run(seed=4)["test/log_loss"]


def test_bad_input_raises_with_a_remedy() -> None:
    with pytest.raises(StructureError, match="learner=pbp"):
        run_digits_embedding(DigitsDataModule(train_size=5), learner=KernelPBP(templates.pen_strokes()))
    with pytest.raises(StructureError, match="Choose learner=pen_average"):
        run(companion=learner)
    with pytest.raises(DataError, match="companion_weight: expected a number of at least 0"):
        run(companion=KERNEL_DENSITY, companion_weight=-1.0)
    with pytest.raises(DataError, match="companion_gain: expected a number of at least 0"):
        run(companion=KERNEL_DENSITY, companion_gain=math.nan)
    with pytest.raises(DataError, match="no file"):
        run(ckpt_path="nowhere.ckpt")
    with pytest.raises(DataError, match="at least one network"):
        run(two_stage=0, random=0)
    with pytest.raises(DataError, match="one or more numbers of points"):
        run(hidden=())
    with pytest.raises(DataError, match="at least 1 epoch"):
        run(epochs=0)
    with pytest.raises(DataError, match="learning_rate: expected a positive"):
        run(learning_rate=0.0)
    with pytest.raises(DataError, match="hide: expected a number from 0 to 1"):
        run(hide=1.5)
    with pytest.raises(StructureError, match="softness: expected a positive"):
        run(softness=0.0)
    with pytest.raises(StructureError, match="at least 4 to hold the quantiser"):
        run(width=3)
    with pytest.raises(StructureError, match="at least 2 states"):
        StrokeEncoder(1, 8, 1)
    with pytest.raises(ShapeError, match=r"expected shape \(batch, 16\)"):
        StrokeEncoder(4, 8, 1)(torch.zeros(3, 14))
    with pytest.raises(StructureError, match="too few"):
        PerceptronHead(6, 20)
