"""Runs of train.py in processes of their own, which can be killed; forked, so that nothing is imported again."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot  # noqa: F401  once, not in each child
import pandas as pd
import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from torchpbp.experiments.running.program import interruptible, train

CONF = Path(__file__).parents[2] / "conf"
QUICK = ["debug=default", "model.verbose=false"]
SYNTHETIC = ["model=synthetic", *QUICK, "model.sizes=[100,300]", "model.repeats=4", "model.max_values=5"]
NETS = [
    *SYNTHETIC,
    "model.repeats=2",
    "regressor=mlp",
    "regressor.epochs=3",
    "regressor.folds=2",
    "regressor.hidden=[4]",
    "trainer.enable_progress_bar=false",
]


def configuration(folder: Path, *overrides: str) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=[*overrides, f"output_dir='{folder}'"])


def forked(action: Callable[[], Any], log: Path) -> int:
    """Start a process that does something and ends; returns its number. What it prints goes to a file."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.stdout = sys.stderr = os.fdopen(handle, "w", buffering=1)
        action()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def run_in_child(cfg: DictConfig, log: Path) -> int:
    """Start a run as the program does."""

    def action() -> None:
        with interruptible(cfg.output_dir):
            train(cfg)

    return forked(action, log)


def ended(child: int) -> int:
    """Wait for a process; its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def wait_for(found: Callable[[], Any], child: int, seconds: float = 120) -> bool:
    """Wait until something is there; false if the process ended first."""
    last = time.monotonic() + seconds
    while not found():
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return False
        if time.monotonic() > last:
            raise TimeoutError("the run does not get on")
        time.sleep(0.005)
    return True


def check_files(folder: Path) -> int:
    """Every file of a run can be read, whatever happened to the run; returns how many there are."""
    count = 0
    for path in folder.rglob("*"):
        if path.is_dir() or path.name.endswith(".tmp") or path.name == "lock":
            continue
        count += 1
        if path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"))
        elif path.suffix == ".csv":
            assert len(pd.read_csv(path)) > 0, path
        elif path.suffix in (".pt", ".ckpt"):
            torch.load(path, map_location="cpu", weights_only=True)
        elif path.suffix == ".png":
            assert path.read_bytes()[-8:-4] == b"IEND", path
        else:
            assert path.suffix == ".html", path
            assert path.read_text(encoding="utf-8").rstrip().endswith("</html>"), path
    return count


def results(folder: Path) -> dict[str, Any]:
    """The metrics of a run without what differs from run to run: the time it took."""
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    return {k: v for k, v in metrics.items() if "second" not in k}


def kill_and_resume(folder: Path, overrides: list[str], kills: int, seed: int) -> None:
    """Kill a run again and again at random moments, resume it each time, and compare the end with that of an undisturbed run.

    Args:
        folder: empty.
        overrides: of the configuration.
        kills: how many.
        seed: of the moments.
    """
    draw = random.Random(seed)
    plain, killed, log = folder / "plain", folder / "killed", folder / "log"
    start = time.monotonic()
    assert ended(run_in_child(configuration(plain, *overrides), log)) == 0, log.read_text()
    duration = time.monotonic() - start
    for number in range(kills):
        child = run_in_child(configuration(killed, *overrides, "resume=true"), log)
        time.sleep(draw.random() * duration)
        os.kill(child, signal.SIGKILL)
        code = ended(child)
        assert code in (0, -signal.SIGKILL), f"kill {number}: {log.read_text()}"
        check_files(killed)
        if code == 0:  # it had come to its end before
            assert results(killed) == results(plain)
            killed = folder / f"killed {number}"
    assert ended(run_in_child(configuration(killed, *overrides, "resume=true"), log)) == 0, log.read_text()
    assert check_files(killed) > 0
    assert not list(killed.rglob("*.tmp"))
    assert results(killed) == results(plain)
