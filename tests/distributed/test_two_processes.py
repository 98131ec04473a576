"""Two processes with half of the rows each learn what one process learns from all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.closeness import assert_same_up_to_rounding
from tests.distributed.launching import run_processes
from tests.distributed.two_processes import fit_all

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("two_processes.py")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[torch.Tensor]]]:
    folder = tmp_path_factory.mktemp("shared")
    run_processes(SCRIPT, folder)
    return [torch.load(folder / f"operators{rank}.pt") for rank in range(2)]


def test_two_processes_learn_the_same_operators_as_one(shared):
    alone = fit_all(1)
    first, second = shared
    assert first.keys() == second.keys() == alone.keys()
    for name, expected in alone.items():
        for a, b, c in zip(first[name], second[name], expected, strict=True):
            assert_same_up_to_rounding(a, b, name)  # both processes hold the same model
            torch.testing.assert_close(a, c, rtol=1e-6, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")


def test_the_program_shares_rows_among_processes(tmp_path):
    """``trainer=ddp`` starts a second process, prints and writes once, and finds what one process finds."""
    root = Path(__file__).parents[2]
    settings = ["model=synthetic", "debug=default", "model.sizes=[301]", "model.repeats=1"]
    found = {}
    for name, trainer in {"cpu": [], "ddp": ["trainer=ddp"]}.items():
        folder = tmp_path / name
        command = [sys.executable, "train.py", *settings, *trainer, f"hydra.run.dir={folder}"]
        environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
        result = subprocess.run(
            command, cwd=root, env=environment | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300
        )
        assert result.returncode == 0, result.stderr[-3000:]
        assert result.stdout.count("KL mean") == 1
        found[name] = json.loads((folder / "metrics.json").read_text())
    assert found["ddp"]["kl/301"] == pytest.approx(found["cpu"]["kl/301"], rel=1e-6)
