"""train.py with sequence labelling."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from tests.processes import run_script

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_debug_run_as_people_start_it(tmp_path: Path) -> None:
    settings = ["model=sequence_labelling", "debug=default", "model.repeats=1"]
    result = run_script(ROOT / "train.py", *settings, folder=tmp_path)
    assert result.returncode == 0, result.stderr
    (output,) = (tmp_path / "outputs").iterdir()
    expected = {
        "metrics.json",
        "metrics.csv",
        "curves.png",
        "posteriors.png",
        "report.html",
        "train.log",
        ".hydra",
        ".run",
    }
    assert expected == {path.name for path in output.iterdir()}
    metrics = json.loads((output / "metrics.json").read_text())
    assert metrics["kl_standard_error/softmax/40"] is None  # one repeat
    assert f"{metrics['kl/pbp refined +200 labels/40']:.4f}" in result.stdout
    assert "learner=pbp_pairs" in result.stdout  # the model's own learner
    assert "2/2" in result.stderr  # one bar for all sizes
    assert "GPU available" not in result.stdout + result.stderr
    assert len(pd.read_csv(output / "metrics.csv")) == 18
