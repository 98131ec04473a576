"""Runs that are rejected: the folder stays as it was, and a new one does not stay at all."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from tests.processes import run_script
from tests.robustness.runs import SYNTHETIC, ended, forked, wait_for
from torchpbp.errors import RunError
from torchpbp.experiments.running.empty_folders import EmptyFolders
from torchpbp.experiments.running.program import main
from torchpbp.experiments.running.run_folder import run_folder
from torchpbp.experiments.running.run_log import HeldLog, written_logs

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

ROOT = Path(__file__).parents[2]
State = dict[str, tuple[int, int, int, bytes]]


def state(folder: Path) -> State:
    """Everything in a folder: how it may be read, which file it is, when it was written, and its bytes."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        facts = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[path.relative_to(folder).as_posix()] = (facts.st_mode, facts.st_ino, facts.st_mtime_ns, content)
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def program(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """train.py as people run it, in a folder."""
    return run_script(ROOT / "train.py", *arguments, folder=folder)


def started(log: Path, *arguments: str) -> int:
    """The same in a fork of this process, where nothing is imported again; its number."""

    def action() -> None:
        sys.argv = ["train.py", *arguments]
        try:
            main()
        except SystemExit as stop:
            if isinstance(stop.code, str):
                print(stop.code, file=sys.stderr)
                raise SystemExit(1) from None
            raise

    return forked(action, log)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that came to its end."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert ended(started(folder.parent / "log", *SYNTHETIC, f"hydra.run.dir={folder}")) == 0, (
        folder.parent / "log"
    ).read_text()
    return folder


@pytest.mark.slow
def test_an_accepted_run_is_recorded_as_by_hydra(finished: Path) -> None:
    records = {path.name: yaml.safe_load(path.read_text()) for path in (finished / ".hydra").iterdir()}
    assert set(records) == {"config.yaml", "resolved.yaml", "hydra.yaml", "overrides.yaml"}
    assert records["overrides.yaml"] == SYNTHETIC
    assert records["config.yaml"]["model"]["repeats"] == 4
    assert records["config.yaml"]["output_dir"] == "${hydra:runtime.output_dir}"
    assert records["hydra.yaml"]["hydra"]["overrides"]["task"] == SYNTHETIC
    assert records["hydra.yaml"]["hydra"]["runtime"]["output_dir"] == str(finished)
    assert records["resolved.yaml"]["output_dir"] == str(finished)
    assert (finished / "train.log").is_file()


REJECTED = {
    "other settings": (["resume=true", "model.repeats=3"], "model.repeats was 4 and is 3"),
    "another seed": (["resume=true", "seed=7"], "seed was 0 and is 7"),
    "another regressor": (["resume=true", "regressor=kernel_ridge"], "regressor._target_ was"),
    "an invalid value": (["model.repeats=abc"], "model.repeats: expected a whole number"),
    "a regressor that is not used": (
        ["learner=em", "regressor=mlp"],
        "regressor: run_synthetic with the learner torchpbp.EM uses no regressor",
    ),
    "a size that does not exist": (["size=paper"], "size=paper: model=synthetic has no such size"),
    "no GPU": (["regressor=mlp", "trainer=gpu"], "expected a GPU, found none"),
    "no objective": (["objective=''"], "A search needs the metric"),
    "several processes": (["resume=true", "trainer=ddp"], "resume: expected a run in one process"),
    "a finished run": ([], "a finished run would be replaced"),
    "a finished run, other settings": (["seed=7"], "a finished run would be replaced"),
    "a graph that cannot be made": (["resume=true", "model.graph.states=-1"], "expected at least 1 state, got -1"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", REJECTED)
def test_a_rejected_run_leaves_the_folder_as_it_was(kind: str, finished: Path, tmp_path: Path) -> None:
    overrides, message = REJECTED[kind]
    before = state(finished)
    code = ended(started(tmp_path / "log", *SYNTHETIC, f"hydra.run.dir={finished}", *overrides))
    printed = (tmp_path / "log").read_text()
    assert code != 0, printed
    assert message in printed
    assert state(finished) == before


@pytest.mark.slow
def test_going_on_with_a_finished_run_leaves_the_folder_as_it_was(finished: Path, tmp_path: Path) -> None:
    before = state(finished)
    code = ended(started(tmp_path / "log", *SYNTHETIC, f"hydra.run.dir={finished}", "resume=true"))
    assert code == 0
    assert "this run is finished" in (tmp_path / "log").read_text()
    assert state(finished) == before


@pytest.mark.slow
@pytest.mark.parametrize("resume", ["resume=true", "resume=false"])
def test_a_second_run_leaves_the_folder_to_the_first(resume: str, tmp_path: Path) -> None:
    folder, log = tmp_path / "run", tmp_path / "log"
    first = started(log, *SYNTHETIC, "model.repeats=2000", f"hydra.run.dir={folder}")
    try:
        assert wait_for(lambda: list(folder.glob(".run/parts/*.pt")), first), log.read_text()
        os.kill(first, signal.SIGSTOP)  # it holds the folder and writes nothing
        before = state(folder)
        second = started(tmp_path / "log2", *SYNTHETIC, "model.repeats=2000", f"hydra.run.dir={folder}", resume)
        assert ended(second) == 1
        assert f"another run (process {first}) is writing to it" in (tmp_path / "log2").read_text()
        assert state(folder) == before
    finally:
        os.kill(first, signal.SIGKILL)
        ended(first)


def test_a_damaged_note_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    (tmp_path / ".run").mkdir()
    (tmp_path / ".run" / "settings.json").write_text("{")  # and no lock
    before = state(tmp_path)
    with pytest.raises(RunError, match=r"settings.json cannot be read.*without resume"), run_folder(tmp_path, {}, True):
        pytest.fail("not to be gone on with")
    assert state(tmp_path) == before


def test_other_settings_leave_a_folder_without_a_lock_as_it_was(tmp_path: Path) -> None:
    with run_folder(tmp_path, {"n": 1}, False):
        pass
    (tmp_path / ".run" / "lock").unlink()
    before = state(tmp_path)
    with pytest.raises(RunError, match="n was 1 and is 2"), run_folder(tmp_path, {"n": 2}, True):
        pytest.fail("not to be gone on with")
    assert state(tmp_path) == before


@pytest.mark.parametrize("finished", [0, 1, 7])
def test_a_sweep_that_would_replace_finished_runs_is_rejected(finished: int, tmp_path: Path) -> None:
    for job in range(finished):
        with run_folder(tmp_path / str(job), {}, False):
            pass
    with pytest.raises(ZeroDivisionError), run_folder(tmp_path / str(finished), {}, False):
        raise ZeroDivisionError  # this one is not finished
    before = state(tmp_path)
    config = {"hydra": {"sweep": {"dir": str(tmp_path)}}}
    EmptyFolders().on_multirun_start(OmegaConf.create({**config, "resume": True}))
    if finished:
        with pytest.raises(
            SystemExit, match=rf"^RunError: .*: {finished} finished runs \(0.* would be replaced\. Give"
        ):
            EmptyFolders().on_multirun_start(OmegaConf.create({**config, "resume": False}))
    else:
        EmptyFolders().on_multirun_start(OmegaConf.create({**config, "resume": False}))
    assert state(tmp_path) == before


def test_a_damaged_note_is_no_finished_run(tmp_path: Path) -> None:
    (tmp_path / ".run").mkdir()
    (tmp_path / ".run" / "settings.json").write_text("{")
    with run_folder(tmp_path, {}, False):
        pass
    with pytest.raises(RunError, match="a finished run would be replaced"), run_folder(tmp_path, {}, False):
        pytest.fail("not to be replaced")


def test_records_are_written_once_the_folder_is_claimed(tmp_path: Path) -> None:
    records = {".hydra/config.yaml": "a: 1\n"}
    with run_folder(tmp_path, {"n": 1}, False, records):
        assert (tmp_path / ".hydra" / "config.yaml").read_text() == "a: 1\n"
        with pytest.raises(RunError, match="another run"), run_folder(tmp_path, {"n": 1}, False, {"b": "2"}):
            pytest.fail("not to be claimed twice")
        assert not (tmp_path / "b").exists()


def test_records_that_cannot_be_written_raise(tmp_path: Path) -> None:
    (tmp_path / ".hydra").write_text("a file")
    with (
        pytest.raises(RunError, match="expected a folder that can be written to"),
        run_folder(tmp_path, {}, False, {".hydra/config.yaml": "a: 1"}),
    ):
        pytest.fail("not to be run")


# -- new folders -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_new_folder_does_not_stay(tmp_path: Path) -> None:
    result = program(tmp_path, *SYNTHETIC, "model.repeats=abc")
    assert result.returncode == 1
    assert "model.repeats: expected a whole number" in result.stderr
    assert not list(tmp_path.iterdir())
    (tmp_path / "mine").mkdir()  # an empty folder that was there before is none of ours
    result = program(tmp_path, *SYNTHETIC, "model.repeats=abc", "hydra.run.dir=mine")
    assert result.returncode == 1
    assert [path.name for path in tmp_path.rglob("*")] == ["mine"]


@pytest.mark.slow
def test_a_rejected_multirun_leaves_its_folder_as_it_was(tmp_path: Path) -> None:
    arguments = ["-m", *SYNTHETIC, "hydra.sweep.dir=sweep"]
    assert program(tmp_path, *arguments, "seed=1,2").returncode == 0
    sweep = tmp_path / "sweep"
    before, jobs = contents(sweep), [state(sweep / job) for job in "01"]
    assert "multirun.yaml" in before
    result = program(tmp_path, *arguments, "seed=1,2", "resume=true", "model.repeats=3")
    assert result.returncode != 0
    assert "model.repeats was 4 and is 3" in result.stderr
    assert contents(sweep) == before
    assert [state(sweep / job) for job in "01"] == jobs
    result = program(tmp_path, *arguments, "seed=1,2,3")
    assert result.returncode == 1
    assert "Folder 'sweep': 2 finished runs (0, 1) would be replaced. Give resume=true" in result.stderr
    assert (contents(sweep), [state(sweep / job) for job in "01"]) == (before, jobs)
    result = program(tmp_path, *arguments, "seed=1,2,x", "resume=true")  # finished, finished, rejected
    assert "seed: expected a whole number of at least 0, got 'x'" in result.stderr
    assert contents(sweep) == before
    assert not (sweep / "2").exists()
    assert [state(sweep / job) for job in "01"] == jobs


@pytest.mark.slow
def test_a_rejected_job_of_a_new_multirun_leaves_no_folder(tmp_path: Path) -> None:
    result = program(tmp_path, "-m", *SYNTHETIC, "model.repeats=abc,x")
    assert result.returncode != 0
    assert not list(tmp_path.iterdir())
    result = program(tmp_path, "-m", *SYNTHETIC, "seed=1,x", "hydra.sweep.dir=sweep")
    assert result.returncode != 0
    assert (tmp_path / "sweep" / "0" / "metrics.json").is_file()
    assert not (tmp_path / "sweep" / "1").exists()
    assert "job 1: not started" in result.stdout


# -- logs --------------------------------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path) -> Iterator[HeldLog]:
    handler = HeldLog(tmp_path / "run" / "train.log")
    root = logging.getLogger()
    root.addHandler(handler)
    yield handler
    root.removeHandler(handler)
    handler.close()


def test_nothing_is_logged_before_the_folder_is_claimed(log: HeldLog, tmp_path: Path) -> None:
    folder, logger = tmp_path / "run", logging.getLogger("test")
    logger.warning("early")
    assert not folder.exists()
    folder.mkdir()
    (folder / "train.log").write_text("old\n")
    logger.warning("later")
    assert (folder / "train.log").read_text() == "old\n"
    with written_logs(folder):
        logger.warning("at once")
        assert (folder / "train.log").read_text() == "old\nearly\nlater\nat once\n"
    logger.warning("afterwards")
    assert (folder / "train.log").read_text() == "old\nearly\nlater\nat once\n"


def test_logs_go_to_the_folder_of_the_run(log: HeldLog, tmp_path: Path) -> None:
    """Which need not be that of Hydra."""
    (tmp_path / "elsewhere").mkdir()
    with written_logs(tmp_path / "elsewhere"):
        logging.getLogger("test").warning("text")
    assert (tmp_path / "elsewhere" / "train.log").read_text() == "text\n"
    assert not (tmp_path / "run").exists()
