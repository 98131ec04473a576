"""PBPModule in two processes takes the steps that it takes in one with all rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from tests.distributed.launching import run_processes
from tests.distributed.module_processes import train_all

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("module_processes.py")
ROOT = Path(__file__).parents[2]


def test_two_processes_take_the_steps_of_one(tmp_path: Path) -> None:
    run_processes(SCRIPT, tmp_path)
    first, second = (torch.load(tmp_path / f"module{rank}.pt") for rank in range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone = train_all(1)
    for name in ("classes", "leaves"):
        # The gradients of the first step, to 1e-8; then what rounding makes of them.
        for part, tolerance in (("gradients", 1e-8), ("weights", 1e-5), ("operators", 1e-4)):
            one, two = alone[name][part], first[name][part]
            assert one.keys() == two.keys()
            assert one
            for key, value in one.items():
                torch.testing.assert_close(two[key], value, rtol=0, atol=tolerance, msg=f"{name} {part} {key}")
                torch.testing.assert_close(second[name][part][key], two[key], rtol=0, atol=1e-12)
        assert alone[name]["skipped"] == first[name]["skipped"] == 0
    torch.testing.assert_close(first["loader"]["weights"], second["loader"]["weights"], rtol=0, atol=1e-12)


def test_digits_train_in_two_processes(tmp_path: Path) -> None:
    """The same rows, hidden points and distortions as in one process: after a few steps the same answers up to rounding."""
    found = {}
    for name, trainer in {"cpu": [], "ddp": ["trainer=ddp"]}.items():
        folder = tmp_path / name
        command = [sys.executable, "train.py", "model=digits", "debug=default", *trainer, f"hydra.run.dir={folder}"]
        environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
        result = subprocess.run(
            command, cwd=ROOT, env=environment | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300
        )
        assert result.returncode == 0, result.stderr[-3000:]
        assert result.stdout.count("test accuracy") == 1
        assert (folder / "checkpoints" / "last.ckpt").is_file()
        found[name] = json.loads((folder / "metrics.json").read_text())
    assert found["ddp"]["test/log_loss"] == pytest.approx(found["cpu"]["test/log_loss"], rel=0.01)
    assert found["ddp"]["test/accuracy"] == pytest.approx(found["cpu"]["test/accuracy"], abs=0.02)
