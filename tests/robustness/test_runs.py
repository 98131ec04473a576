"""Runs that are killed, interrupted, started twice, or resumed with other settings."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.robustness.runs import (
    NETS,
    QUICK,
    SYNTHETIC,
    check_files,
    configuration,
    ended,
    forked,
    kill_and_resume,
    results,
    run_in_child,
    wait_for,
)
from torchpbp.errors import CheckpointError, RunError
from torchpbp.experiments.running.program import train
from torchpbp.experiments.running.run_folder import Parts, run_folder
from torchpbp.files.replacing import replacing

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.mark.slow
def test_a_run_killed_at_random_moments_goes_on_to_the_same_results(tmp_path: Path) -> None:
    """``python -m tests.robustness --kills 20`` does this more often."""
    kill_and_resume(tmp_path, SYNTHETIC, kills=2, seed=0)


@pytest.mark.slow
def test_training_of_nets_goes_on_after_a_kill(tmp_path: Path) -> None:
    log = tmp_path / "log"
    plain, killed = tmp_path / "plain", tmp_path / "killed"
    train(configuration(plain, *NETS))
    cfg = configuration(killed, *NETS, "resume=true")
    child = run_in_child(cfg, log)
    assert wait_for(lambda: list(killed.glob(".run/training/*/last.ckpt")), child), log.read_text()
    os.kill(child, signal.SIGKILL)
    assert ended(child) == -signal.SIGKILL
    check_files(killed)
    train(cfg)
    assert results(killed) == results(plain)
    assert not (killed / ".run" / "training").exists()  # not needed any more


@pytest.mark.slow
def test_ctrl_c_leaves_a_run_that_can_go_on(tmp_path: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "run"
    cfg = configuration(folder, *SYNTHETIC, "model.repeats=60", "resume=true")
    child = run_in_child(cfg, log)
    assert wait_for(lambda: len(list(folder.glob(".run/parts/*.pt"))) >= 2, child), log.read_text()
    os.kill(child, signal.SIGINT)
    assert ended(child) == 130, log.read_text()
    last = log.read_text().strip().splitlines()[-1]
    assert last == f"Interrupted. To resume: the same command with resume=true hydra.run.dir={folder}"
    check_files(folder)
    kept = sorted(folder.glob(".run/parts/*.pt"))
    stamps = {path: path.stat().st_mtime_ns for path in kept}
    child = run_in_child(cfg, log)
    assert wait_for(lambda: len(list(folder.glob(".run/parts/*.pt"))) > len(kept), child), log.read_text()
    os.kill(child, signal.SIGKILL)
    ended(child)
    assert {path: path.stat().st_mtime_ns for path in kept} == stamps  # what was done was not done again


NEURAL = ["model=digits", *QUICK, "learner.epoch=3", "learner.steps=30", "model.limit=20", "learner.hidden=[0]"]
NEURAL += ["trainer.enable_progress_bar=false"]


@pytest.mark.slow
def test_training_through_the_stages_goes_on_after_a_kill(tmp_path: Path) -> None:
    log = tmp_path / "log"
    plain, killed = tmp_path / "plain", tmp_path / "killed"
    train(configuration(plain, *NEURAL, "learner.twin=true"))
    cfg = configuration(killed, *NEURAL, "learner.twin=true", "resume=true")
    for name in ("last", "twin_last"):  # once in the training of the model, once in that of its twin
        child = run_in_child(cfg, log)
        assert wait_for((killed / "checkpoints" / f"{name}.ckpt").exists, child), log.read_text()
        os.kill(child, signal.SIGKILL)
        assert ended(child) == -signal.SIGKILL
        check_files(killed)
    train(cfg)
    assert results(killed) == results(plain)
    assert (killed / "training.csv").read_text() == (plain / "training.csv").read_text()
    assert not (killed / ".run" / "parts").exists()


@pytest.mark.slow
def test_ctrl_c_in_lightning_leaves_a_checkpoint_that_training_goes_on_from(tmp_path: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "run"
    cfg = configuration(folder, *NEURAL, "resume=true")
    child = run_in_child(cfg, log)
    last = folder / "checkpoints" / "last.ckpt"
    assert wait_for(last.exists, child), log.read_text()
    os.kill(child, signal.SIGINT)
    assert ended(child) == 130, log.read_text()
    assert "Interrupted. To resume" in log.read_text()
    assert torch.load(last, weights_only=True)["epoch"] < 9
    train(cfg)
    history = (folder / "training.csv").read_text().splitlines()
    assert len(history) == 1 + 10  # each epoch once
    check_files(folder)


def test_an_unreadable_training_state_is_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.ckpt").write_text("nothing")
    with pytest.raises(CheckpointError, match=r"last.ckpt: expected a training state.*Delete it"):
        train(configuration(tmp_path, *NEURAL, "resume=true"))


def test_a_finished_run_is_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cfg = configuration(tmp_path, *SYNTHETIC, "resume=true")
    first = train(cfg)
    stamp = (tmp_path / "metrics.json").stat().st_mtime_ns
    capsys.readouterr()
    assert train(cfg) == first
    assert "this run is finished" in capsys.readouterr().out
    with pytest.raises(
        RunError, match=r"a finished run would be replaced\. Give resume=true .*, or delete .*hydra\.run\.dir"
    ):
        train(configuration(tmp_path, *SYNTHETIC))
    assert (tmp_path / "metrics.json").stat().st_mtime_ns == stamp


def test_a_run_with_other_settings_is_not_gone_on_with(tmp_path: Path) -> None:
    train(configuration(tmp_path, *SYNTHETIC))
    with pytest.raises(RunError, match=r"had other settings: model.repeats was 4 and is 3; seed was 0 and is 1\. Give"):
        train(configuration(tmp_path, *SYNTHETIC, "seed=1", "model.repeats=3", "resume=true"))


@pytest.mark.slow
def test_a_second_process_is_rejected_and_a_dead_one_is_forgotten(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def hold() -> None:
        with run_folder(tmp_path / "run", {}, False):
            (tmp_path / "held").touch()
            time.sleep(600)

    child = forked(hold, log)
    assert wait_for((tmp_path / "held").exists, child), log.read_text()
    with pytest.raises(RunError, match=rf"another run \(process {child}\) is writing to it.*choose another"):
        train(configuration(tmp_path / "run", *SYNTHETIC))
    os.kill(child, signal.SIGKILL)
    ended(child)
    with run_folder(tmp_path / "run", {}, False):  # the lock died with its holder
        pass


@pytest.mark.slow
def test_of_many_processes_in_one_folder_one_runs(tmp_path: Path) -> None:
    cfg = configuration(tmp_path / "run", *SYNTHETIC)
    children = [run_in_child(cfg, tmp_path / f"log{i}") for i in range(4)]
    codes = [ended(child) for child in children]
    texts = [(tmp_path / f"log{i}").read_text() for i in range(4)]
    assert codes.count(0) >= 1
    for code, text in zip(codes, texts, strict=True):
        assert code == 0 or "RunError" in text, text
    check_files(tmp_path / "run")


def test_parts_are_kept_only_in_a_claimed_folder(tmp_path: Path) -> None:
    calls: list[int] = []

    def compute() -> dict[str, Any]:
        calls.append(1)
        return {"value": 1 / 3, "table": torch.arange(3), "lines": [{"a": "x"}]}

    assert Parts(tmp_path).get("a", compute)["value"] == 1 / 3
    assert not list(tmp_path.iterdir())
    with pytest.raises(ZeroDivisionError), run_folder(tmp_path, {"n": 1}, True):  # noqa: PT012
        Parts(tmp_path).get("a/b", compute)
        raise ZeroDivisionError
    with run_folder(tmp_path, {"n": 1}, True):
        again = Parts(tmp_path).get("a/b", compute)
        assert len(calls) == 2
        assert again["value"] == 1 / 3
        assert torch.equal(again["table"], torch.arange(3))
        (kept,) = (tmp_path / ".run" / "parts").iterdir()
        kept.write_bytes(kept.read_bytes()[:50])  # damaged: computed again
        assert Parts(tmp_path).get("a/b", compute)["lines"] == [{"a": "x"}]
        assert len(calls) == 3
    assert not (tmp_path / ".run" / "parts").exists()


def test_a_run_without_resume_forgets_parts(tmp_path: Path) -> None:
    for number in (1, 2):
        with pytest.raises(ZeroDivisionError), run_folder(tmp_path, {}, False):  # noqa: PT012
            assert Parts(tmp_path).get("a", lambda number=number: number) == number
            raise ZeroDivisionError


def test_what_a_killed_run_left_half_written_is_removed_and_nothing_else(tmp_path: Path) -> None:
    places = [tmp_path, tmp_path / "checkpoints", tmp_path / ".hydra", tmp_path / ".run" / "parts" / "fold 1"]
    left = [place / f".metrics.json.{4_000_000 + i}.0123abcd.tmp" for i, place in enumerate(places)]
    foreign = [place / name for place in places for name in (".cache.tmp", ".foo.tmp", ".foo.1.abc.tmp", "a.tmp")]
    for path in (*left, *foreign):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{")
    with replacing(tmp_path / "other") as being_written:
        being_written.write_text("x")
        with pytest.raises(ZeroDivisionError), run_folder(tmp_path, {"n": 1}, False):
            raise ZeroDivisionError  # parts are deleted without resume, whatever is in them
        assert being_written.exists()
    assert not [path for path in left if path.exists()]
    assert [path for path in foreign if not path.exists()] == foreign[-4:]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(OSError, match="No space"), replacing(path) as temporary:  # noqa: PT012
        temporary.write_text("ne")
        raise OSError("No space left on device")
    assert path.read_text() == "old"
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
