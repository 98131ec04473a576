"""train.py as people run it: files, Lightning's arguments, interruptions, processes, sweeps, experiments from outside."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.processes import run_script
from torchpbp.__main__ import main
from torchpbp.datasets import load_digits

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TINY = ("debug=default", "data.train_size=20", "data.limit=100", "data.copies=0", "task.hidden=[0,4]")
"""A training on pen digits in seconds."""
FILES = {
    *("metrics.json", "metrics.csv", "predictions.csv", "classes.csv", "training.csv", "report.html", "train.log"),
    *("hidden.png", "training.png", "confusion.png", "calibration.png", "hardest.png"),
    *("model.pt", "checkpoints", "logs", "parts", ".hydra"),
}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_script(ROOT / "train.py", *arguments, folder=folder)


def succeeded(folder: Path, *arguments: str) -> str:
    """What a run printed."""
    result = run(folder, *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout + result.stderr


def metrics_of(folder: Path) -> dict[str, Any]:
    """Metrics without timings."""
    metrics = json.loads((folder / "metrics.json").read_text())
    return {k: v for k, v in metrics.items() if "second" not in k}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What the default command printed, and the folder of its run."""
    folder = tmp_path_factory.mktemp("digits")
    printed = succeeded(folder, *TINY)
    (output,) = (folder / "outputs").iterdir()
    return printed, output


def test_the_default_command_trains_a_network_and_writes_the_promised_files(digits: tuple[str, Path]) -> None:
    printed, output = digits
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", output.name)
    assert {path.name for path in output.iterdir()} == FILES
    assert (output / "checkpoints" / "last.ckpt").is_file()
    assert (output / "logs" / "version_0" / "metrics.csv").is_file()
    metrics = metrics_of(output)
    assert metrics["test/accuracy"] > 0.3  # after four steps
    assert (metrics["rows/train"], metrics["rows/test"], metrics["steps"]) == (200, 100, 4)
    assert {"test/accuracy_half_hidden", "test/log_loss"} <= set(metrics)
    assert "experiment=train model=digits" in printed
    assert "PBP: 100 % after" in printed  # output is no terminal
    assert f"{100 * metrics['test/accuracy']:.2f}" in printed
    assert f"Report: {output / 'report.html'}" in printed
    assert "Results" in (output / "train.log").read_text()


def test_a_saved_model_predicts_the_same_at_the_shell(
    digits: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, output = digits
    rows, answers = str(tmp_path / "rows.csv"), str(tmp_path / "answers.csv")
    entries = [f"p{t}[{i}]" for t in range(1, 9) for i in range(2)]
    pd.DataFrame(load_digits().test_x[:100], columns=entries).to_csv(rows, index=False)
    assert main(["predict", str(output / "model.pt"), rows, "--output", answers]) == 0
    assert capsys.readouterr().out == f"100 predictions in {answers}\n"
    found, written = pd.read_csv(answers), pd.read_csv(output / "predictions.csv")
    assert found["predicted"].tolist() == written["predicted"].tolist()
    assert found["probability"].tolist() == pytest.approx(written["probability"].tolist(), rel=1e-4)


def test_a_finished_run_is_written_again_with_resume_only(digits: tuple[str, Path]) -> None:
    _, output = digits
    before = metrics_of(output)
    overrides = (output / ".hydra" / "overrides.yaml").read_text()
    result = run(output, *TINY, "seed=7", f"hydra.run.dir={output}")
    assert result.returncode == 1
    assert (output / ".hydra" / "overrides.yaml").read_text() == overrides
    assert "holds a finished run. Give resume=true" in result.stderr
    printed = succeeded(output, *TINY, f"hydra.run.dir={output}", "resume=true")
    assert "PBP: 100 %" not in printed  # nothing is trained again
    assert metrics_of(output) == pytest.approx(before, abs=1e-6)


def test_arguments_of_lightning_do_what_its_documentation_says(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    options = ["trainer.limit_train_batches=1", "trainer.limit_val_batches=1", "+trainer.profiler=simple"]
    printed = succeeded(tmp_path, *TINY, *options, "logger=tensorboard", "hydra.run.dir=a")
    assert metrics_of(tmp_path / "a")["steps"] == 2  # one of each epoch
    assert "Profiler Report" in printed
    assert list((tmp_path / "a" / "tensorboard").rglob("events.*"))
    stop = ["callbacks=early_stopping", "callbacks.early_stopping.patience=1", "+callbacks.early_stopping.min_delta=9"]
    succeeded(tmp_path, *TINY, *stop, "trainer.max_epochs=9", "hydra.run.dir=b")
    assert metrics_of(tmp_path / "b")["steps"] == 4
    succeeded(tmp_path, *TINY, "trainer.fast_dev_run=true", "hydra.run.dir=c")
    assert metrics_of(tmp_path / "c")["steps"] == 1
    assert not (tmp_path / "c" / "checkpoints").exists()


def test_two_processes_train_the_model_of_one(digits: tuple[str, Path], tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "train.py"), *TINY, "trainer.strategy=ddp", "trainer.devices=2"]
    result = subprocess.run(
        [*command, "hydra.run.dir=run"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("Results") == 1  # one process writes and prints
    one, two = metrics_of(digits[1]), metrics_of(tmp_path / "run")
    assert set(one) == set(two)
    assert two["test/log_loss"] == pytest.approx(one["test/log_loss"], rel=0.02)


def test_a_sweep_interrupted_in_its_second_job_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    arguments = ["-m", "model=digits", *TINY, "trainer.max_epochs=4", "seed=1,2", "hydra.sweep.dir=sweep"]
    command = [sys.executable, "-u", str(ROOT / "train.py"), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    log = tmp_path / "log"
    with log.open("w") as file:
        program = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=file, stderr=file)
        second, last = tmp_path / "sweep" / "1" / "checkpoints" / "last.ckpt", time.monotonic() + 240
        while not second.exists():
            assert program.poll() is None, log.read_text()
            assert time.monotonic() < last
            time.sleep(0.02)
        program.send_signal(signal.SIGINT)
        code = program.wait(120)
    interrupted = not (tmp_path / "sweep" / "1" / "metrics.json").exists()
    if interrupted:  # unless the job had come to its end
        assert code == 130
        assert "To resume: the same command with resume=true hydra.sweep.dir=sweep" in log.read_text()
    first = (tmp_path / "sweep" / "0" / "metrics.json").read_text()
    printed = succeeded(tmp_path, *arguments, "resume=true")
    assert "2 jobs with results: mean ± standard error over seeds" in printed
    resumed = metrics_of(tmp_path / "sweep" / "1")
    assert (
        json.loads(first)["fit_seconds/PBP"]
        == json.loads((tmp_path / "sweep" / "0" / "metrics.json").read_text())["fit_seconds/PBP"]
    )  # not trained again
    table = pd.read_csv(tmp_path / "sweep" / "sweep.csv")
    assert table["jobs"].tolist() == [2]
    succeeded(tmp_path, *TINY, "trainer.max_epochs=4", "seed=2", "hydra.run.dir=plain")
    assert resumed == pytest.approx(metrics_of(tmp_path / "plain"), abs=1e-5)


def test_jobs_of_a_sweep_run_at_the_same_time(digits: tuple[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="needs the extra 'sweep'")
    arguments = ["-m", *TINY, "seed=0,1", "hydra/launcher=joblib", "hydra.sweep.dir=sweep"]
    printed = succeeded(tmp_path, *arguments, "hydra.launcher.n_jobs=2")
    assert "2 jobs with results" in printed
    assert metrics_of(tmp_path / "sweep" / "0") == pytest.approx(metrics_of(digits[1]), abs=1e-5)


def test_mistakes_end_with_one_message(tmp_path: Path) -> None:
    for arguments, message in [
        (["model=em"], "ArgumentError: model=em: experiment=train takes model=digits"),
        (["lerner=em"], "Did you mean model=em?"),
        (["task.hidden=[9]"], "ArgumentError: task.hidden: expected numbers of leaves from 0 to 8, got [9]"),
        (["data.train_size=0"], "ArgumentError: train_size: expected"),
        (["seed=x"], "ArgumentError: seed: expected a whole number"),
        (["graph=triangle"], "Could not find 'graph/triangle'"),
    ]:
        result = run(tmp_path, *arguments)
        assert result.returncode == 1
        assert message in result.stderr, arguments
        assert "Traceback" not in result.stderr
    assert not list(tmp_path.rglob("metrics.json"))


def test_help_shows_examples_and_choices(tmp_path: Path) -> None:
    printed = succeeded(tmp_path, "--help")
    assert "python train.py model=digits" in printed
    assert re.search(r"model: .*digits.*em.*pbp", printed)
    assert re.search(r"paper_digits +kernel_pbp", printed)


def test_the_experiment_of_contributing_runs_from_outside_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Adding an experiment")[2]
    blocks = dict(re.findall(r"^```(\w+)\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL))
    assert sum(blocks[kind].count("\n") for kind in ("python", "yaml")) <= 30
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "halves.py").write_text(blocks["python"])
    (tmp_path / "mine" / "experiment" / "halves.yaml").write_text(blocks["yaml"])
    monkeypatch.setattr(sys, "path", [str(tmp_path / "mine"), *sys.path])
    command = blocks["bash"].partition("train.py ")[2].split()
    printed = succeeded(tmp_path, *command, "debug=default", "hydra.run.dir=run")
    metrics = metrics_of(tmp_path / "run")
    assert metrics["score/0.5/100"] < metrics["score/1.0/100"] < 0
    assert "halves: 100 % after" in printed
    result = run(tmp_path, *command, "regressor=mlp")
    assert "regressor: nothing reads it in experiment=halves, model=em" in result.stderr
