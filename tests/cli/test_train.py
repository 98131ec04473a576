"""train.py as people run it, with the synthetic experiment."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from hydra import compose, initialize_config_dir

from tests.processes import run_script
from torchpbp import PBP
from train import train

ROOT = Path(__file__).parents[2]
QUICK = ["debug=default", "model.verbose=false", "output_dir=null"]
FILES = {"metrics.json", "metrics.csv", "kl.png", "model.pt", "report.html", "train.log", ".hydra", ".run"}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_script(ROOT / "train.py", *arguments, folder=folder)


def train_with(*overrides: str) -> dict[str, Any]:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose("config", overrides=["model=synthetic", *QUICK, *overrides])
    return train(cfg)


def without_timings(metrics: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in metrics.items() if not k.startswith("fit_seconds")}


@pytest.fixture(scope="module")
def debug_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    folder = tmp_path_factory.mktemp("debug")
    return run(folder, "model=synthetic", "debug=default", "seed=3"), folder


@pytest.mark.slow
def test_debug_run_writes_the_promised_files(debug_run: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    result, folder = debug_run
    assert result.returncode == 0, result.stderr
    (output,) = (folder / "outputs").iterdir()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", output.name)
    assert {path.name for path in output.iterdir()} == FILES  # and no temporary file is left
    assert (output / ".hydra" / "config.yaml").is_file()
    metrics = json.loads((output / "metrics.json").read_text())
    assert {"kl/200", "kl/2000", "kl_standard_error/2000", "fit_seconds/2000", "threads"} <= set(metrics)
    table = pd.read_csv(output / "metrics.csv")
    assert len(table) == 4  # two sizes, two repeats
    model = PBP.load(output / "model.pt")
    assert int(model.rows) == 2000


@pytest.mark.slow
def test_debug_run_prints_choices_progress_table_and_report(
    debug_run: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    result, folder = debug_run
    (output,) = (folder / "outputs").iterdir()
    metrics = json.loads((output / "metrics.json").read_text())
    lines = result.stdout.splitlines()
    assert lines[0] == "model=synthetic learner=pbp regressor=ridge seed=3"
    assert lines[-1] == f"Report: {output / 'report.html'}"
    assert len(lines) < 12
    heading = result.stdout.index("KL mean")
    settings = (output / ".hydra" / "resolved.yaml").read_text()
    assert "seed: 3" in settings
    assert "${" not in settings
    assert f"{metrics['kl/2000']:.6f}" in result.stdout[heading:]
    assert "4/4" in result.stderr  # the progress bar came to its end


@pytest.mark.slow
def test_same_seed_same_metrics(debug_run: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    _, folder = debug_run
    (output,) = (folder / "outputs").iterdir()
    written = without_timings(json.loads((output / "metrics.json").read_text()))
    again, other = train_with("seed=3"), train_with("seed=4")
    for key, value in without_timings(again).items():
        if key != "threads":
            assert written[key] == (pytest.approx(value, rel=1e-6) if isinstance(value, float) else value), key
    assert without_timings(again) == without_timings(train_with("seed=3"))
    assert again["kl/2000"] != other["kl/2000"]
    assert again["question/1"] != other["question/1"]


@pytest.mark.slow
def test_a_wrong_choice_lists_the_options(tmp_path: Path) -> None:
    result = run(tmp_path, "model=synthetic", "model/graph=triangle")
    assert result.returncode != 0
    assert "Could not find 'model/graph/triangle'" in result.stderr
    for option in ("diamond", "hmm_order3", "loopy_network"):
        assert option in result.stderr
    assert not (tmp_path / "outputs").exists()


@pytest.mark.slow
def test_help_tells_choices_and_examples(tmp_path: Path) -> None:
    result = run(tmp_path, "--help")
    assert result.returncode == 0
    assert "python train.py model=digits" in result.stdout
    assert "python train.py model=synthetic" in result.stdout
    assert re.search(r"learner: .*gram.*nystroem.*pbp.*pen_average", result.stdout)
    assert re.search(r"model/graph: .*diamond.*loopy_network", result.stdout)


@pytest.mark.parametrize("graph", ["hmm_order2", "hmm_order3", "factorial_hmm", "latent_tree", "loopy_network", "grid"])
def test_other_graphs_learn_too(graph: str) -> None:
    metrics = train_with(f"model/graph={graph}", "model.sizes=[300,30000]")
    assert metrics["kl/30000"] < 0.5 * metrics["kl/300"]


def test_learner_options_reach_the_model() -> None:
    plain = train_with()
    heavy = train_with("learner.ridge=[1000.0,1000.0]")
    assert heavy["kl/2000"] > plain["kl/2000"]


def test_threads_are_set_and_reported() -> None:
    before = torch.get_num_threads()
    try:
        assert train_with("threads=1", "model.repeats=1")["threads"] == 1
    finally:
        torch.set_num_threads(before)
