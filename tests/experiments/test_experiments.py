"""What holds for every experiment: a debug run ends with finite metrics, again the same ones, and resumes from its parts."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.composed import composed
from torchpbp.experiments.overrides import CONF
from torchpbp.experiments.run import train

pytestmark = pytest.mark.slow

EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))


def metrics_of(experiment: str, folder: Path, *overrides: str) -> dict[str, Any]:
    """Metrics of a debug run as its file has them, without timings."""
    train(composed(f"experiment={experiment}", "debug=default", *overrides, output_dir=folder))
    metrics = json.loads((folder / "metrics.json").read_text())
    return {k: v for k, v in metrics.items() if "second" not in k and "speed" not in k}


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_runs_repeats_and_resumes(experiment: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    metrics = metrics_of(experiment, first, "seed=3")
    numbers = {k: v for k, v in metrics.items() if isinstance(v, int | float)}
    assert len(numbers) > 3  # seed and threads are two
    assert all(math.isfinite(v) for v in numbers.values())
    shutil.copytree(first, second)
    (second / "metrics.json").unlink()
    parts = sorted((second / "parts").glob("*.json"))
    assert parts
    parts[0].unlink()  # as if the run had ended before it
    resumed = metrics_of(experiment, second, "seed=3", "resume=true")
    assert {k: v for k, v in resumed.items() if k in numbers} == pytest.approx(numbers, rel=1e-4, abs=1e-6)
    assert {k for k, v in resumed.items() if isinstance(v, str)} == {k for k in metrics if isinstance(metrics[k], str)}
    page = (first / "report.html").read_text(encoding="utf-8")
    assert "data:image/png;base64," in page
    assert "<b>" in page  # main figures
