"""train.py with the experiment on joint probabilities, and with the spectral learner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hydra import compose, initialize_config_dir

from torchpbp import SpectralJunctionTree
from train import train

CONF = Path(__file__).parents[2] / "conf"


def train_with(folder: Path, *overrides: str) -> dict[str, Any]:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("config", overrides=["debug=default", "model.verbose=false", f"output_dir={folder}", *overrides])
    return train(cfg)


def test_the_experiment_measures_all_learners_on_all_structures(tmp_path: Path) -> None:
    metrics = train_with(tmp_path, "model=jt_synthetic")
    structures = {"hmm_order2", "hmm_order3", "factorial_hmm", "synthetic_junction_tree"}
    learners = {"PBP", "spectral", "EM", "online_EM"}
    measured = {name for name in metrics if name.startswith("error/")}
    assert measured == {f"error/{s}/{k}/{n}" for s in structures for k in learners for n in (200, 500)}
    assert json.loads((tmp_path / "metrics.json").read_text()) == metrics
    assert len(pd.read_csv(tmp_path / "metrics.csv")) == len(measured)
    assert (tmp_path / "errors.png").stat().st_size > 10_000


def test_baselines_can_be_left_out_and_the_main_learner_changed(tmp_path: Path) -> None:
    left_out = ["~model.others.EM", "~model.others.online_EM", "~model.graphs.hmm_order3"]
    metrics = train_with(tmp_path, "model=jt_synthetic", "learner=spectral", "model.sizes=[200]", *left_out)
    assert metrics["learner"] == "SpectralJunctionTree"
    own = {k: v for k, v in metrics.items() if k.startswith("error/") and "/SpectralJunctionTree/" in k}
    assert len(own) == 3
    for name, value in own.items():
        assert value == pytest.approx(metrics[name.replace("SpectralJunctionTree", "spectral")])


def test_the_spectral_learner_answers_the_questions_of_the_synthetic_experiment(tmp_path: Path) -> None:
    metrics = train_with(tmp_path, "model=synthetic", "learner=spectral", "model.sizes=[200,20000]")
    assert metrics["kl/20000"] < 0.5 * metrics["kl/200"]
    assert SpectralJunctionTree.load(tmp_path / "model.pt").rows == 20000
