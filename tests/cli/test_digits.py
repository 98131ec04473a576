"""train.py with the pen digits, as people run it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hydra import compose, initialize_config_dir

from tests.processes import run_script
from torchpbp.__main__ import main
from torchpbp.datasets import FEATURES, DigitsDataModule
from torchpbp.errors import StructureError
from train import train

ROOT = Path(__file__).parents[2]
PICTURES = {"confusion.png", "hidden.png", "calibration.png", "hardest.png", "training.png"}
TABLES = {"metrics.csv", "predictions.csv", "classes.csv", "training.csv", "published.csv"}
FILES = {"metrics.json", "model.pt", "checkpoints", "logs", "report.html", "train.log", ".hydra", ".run"}
CLASS_PICTURES = {"confusion.png", "samples.png", "completed.png"}
CLASS_FILES = {
    "metrics.json",
    "metrics.csv",
    "predictions.csv",
    "classifier.pt",
    "report.html",
    "train.log",
    ".hydra",
    ".run",
}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_script(ROOT / "train.py", *arguments, folder=folder)


def train_with(*overrides: str) -> dict[str, Any]:
    settings = ["debug=default", "model.verbose=false", "output_dir=null", *overrides]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return train(compose("config", overrides=settings))


@pytest.fixture(scope="module")
def neural_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    folder = tmp_path_factory.mktemp("neural")
    return run(folder, "debug=default"), folder


@pytest.mark.slow
def test_plain_command_trains_the_neural_model_and_writes_the_promised_files(
    neural_run: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    result, folder = neural_run
    assert result.returncode == 0, result.stderr
    (output,) = (folder / "outputs").iterdir()
    assert {path.name for path in output.iterdir()} == FILES | PICTURES | TABLES
    assert [path.name for path in (output / "checkpoints").iterdir()] == ["last.ckpt"]
    assert (output / "logs" / "version_0" / "metrics.csv").is_file()
    metrics = json.loads((output / "metrics.json").read_text())
    assert metrics["test/accuracy"] > 0.3  # after four steps
    assert (metrics["rows/train"], metrics["rows/test"], metrics["steps"]) == (200, 100, 4)
    for picture in PICTURES:
        assert (output / picture).read_bytes().startswith(b"\x89PNG")
    lines = result.stdout.splitlines()
    assert lines[0] == "model=digits learner=neural trainer=cpu seed=0"
    assert lines[-1] == f"Report: {output / 'report.html'}"
    assert f"{'test/accuracy':<26} {metrics['test/accuracy']:.4f}" in lines
    assert len(lines) < 20
    assert "training:" in result.stderr
    report = (output / "report.html").read_text()
    assert all(f'"{picture}"' in report or picture in report for picture in PICTURES)


@pytest.mark.slow
def test_the_neural_model_is_loaded_and_predicts_the_same(
    neural_run: tuple[subprocess.CompletedProcess[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, folder = neural_run
    (output,) = (folder / "outputs").iterdir()
    model, rows, answers = str(output / "model.pt"), str(folder / "rows.csv"), str(folder / "answers.csv")
    data = DigitsDataModule()
    data.setup()
    entries = [f"p{t}[{i}]" for t in range(1, 9) for i in range(2)]
    pd.DataFrame(data.test_x[:100], columns=entries).to_csv(rows, index=False)
    assert main(["predict", model, rows, "--output", answers]) == 0
    assert capsys.readouterr().out == f"100 predictions in {answers}\n"
    found, written = pd.read_csv(answers), pd.read_csv(output / "predictions.csv")
    assert found["predicted"].tolist() == written["predicted"].tolist()
    assert found["probability"].tolist() == pytest.approx(written["probability"].tolist(), rel=1e-4)  # another process


@pytest.fixture(scope="module")
def debug_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    folder = tmp_path_factory.mktemp("debug")
    return run(folder, "debug=default", "learner=pen_average"), folder


@pytest.mark.slow
def test_models_per_class_write_the_promised_files(
    debug_run: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    result, folder = debug_run
    assert result.returncode == 0, result.stderr
    (output,) = (folder / "outputs").iterdir()
    assert {path.name for path in output.iterdir()} == CLASS_FILES | CLASS_PICTURES
    metrics = json.loads((output / "metrics.json").read_text())
    assert metrics["test/accuracy"] > 0.7
    assert metrics["test/accuracy_half_hidden"] > 0.6
    assert metrics["learner"] == "ScoreAverage"
    assert (metrics["rows/train"], metrics["rows/test"]) == (200, 100)
    assert len(pd.read_csv(output / "metrics.csv")) == 10
    for picture in CLASS_PICTURES:
        assert (output / picture).read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_it_prints_choices_progress_table_and_report(
    debug_run: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    result, folder = debug_run
    (output,) = (folder / "outputs").iterdir()
    metrics = json.loads((output / "metrics.json").read_text())
    heading = result.stdout.index("precision")
    lines = result.stdout.splitlines()
    assert lines[0] == "model=digits learner=pen_average seed=0"
    assert lines[-1] == f"Report: {output / 'report.html'}"
    for name in ("test/accuracy", "test/accuracy_half_hidden", "test/log_loss", "test/calibration_error"):
        assert f"{name:<26} {metrics[name]:.4f}" in result.stdout[heading:]
    assert "classes: 100%" in result.stderr


@pytest.mark.slow
def test_the_classifier_is_loaded_and_predicts_the_same(
    debug_run: tuple[subprocess.CompletedProcess[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """From the run's own file, by the shell: classes and probabilities of predictions.csv."""
    _, folder = debug_run
    (output,) = (folder / "outputs").iterdir()
    model, rows, answers = str(output / "classifier.pt"), str(folder / "rows.csv"), str(folder / "answers.csv")
    data = DigitsDataModule(train_size=20)
    data.setup()
    pd.DataFrame(data.test_x[:100], columns=list(FEATURES)).to_csv(rows, index=False)
    assert main(["predict", model, rows, "--output", answers]) == 0
    assert capsys.readouterr().out == f"100 predictions in {answers}\n"
    found, written = pd.read_csv(answers), pd.read_csv(output / "predictions.csv")
    assert found["row"].tolist() == written["row"].tolist()
    assert found["predicted"].tolist() == written["predicted"].tolist()
    assert found["probability"].tolist() == pytest.approx(written["probability"].tolist(), rel=1e-4)  # another process
    assert main(["show", model]) == 0
    shown = capsys.readouterr().out
    assert "GenerativeClassifier of 16 observed" in shown
    assert "classes: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9" in shown
    assert "member 1, weight 0.333: KernelPBP; learned from 60 rows" in shown  # with two slanted copies of each
    report = (output / "report.html").read_text()
    assert "classifier.pt: GenerativeClassifier with a ScoreAverage for each of 10 classes" in report


@pytest.mark.slow
def test_same_seed_same_metrics(debug_run: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    _, folder = debug_run
    (output,) = (folder / "outputs").iterdir()
    written = json.loads((output / "metrics.json").read_text())
    again = train_with("learner=pen_average")
    for key, value in again.items():
        if "seconds" not in key and key != "threads":
            assert written[key] == (pytest.approx(value, rel=1e-4) if isinstance(value, float) else value), key
    assert train_with("learner=pen_average", "seed=1")["test/log_loss"] != again["test/log_loss"]


@pytest.mark.parametrize(("learner", "name"), [("gram", "KernelPBP"), ("nystroem", "PBP")])
def test_other_learners_can_be_chosen(learner: str, name: str) -> None:
    metrics = train_with(f"learner={learner}", "model.limit=60")
    assert metrics["learner"] == name
    assert metrics["test/accuracy"] > 0.7


@pytest.mark.parametrize(
    "arguments", ["model=digits_learning_curve model.sizes=[10] model.repeats=1", "model=digits_missing"]
)
def test_experiments_run(arguments: str) -> None:
    metrics = train_with(*arguments.split(), "model.limit=40")
    assert all(v > 0.5 for k, v in metrics.items() if k.startswith("test/accuracy/"))


def test_a_learner_that_does_not_fit_the_model_raises() -> None:
    with pytest.raises(StructureError, match=r"KernelPBP with a graph of its own.* Choose learner=pbp"):
        train_with("model=synthetic", "learner=gram")
    with pytest.raises(StructureError, match="Choose learner=pen_average, learner=gram or learner=nystroem"):
        train_with("model=digits", "learner=pbp")
