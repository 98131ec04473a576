"""Every experiment of several parts keeps those that are done, and a resumed run has the results of one never stopped."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from omegaconf import DictConfig, OmegaConf

from tests.robustness.runs import QUICK, check_files, configuration, ended, results, run_in_child, wait_for
from torchpbp.errors import RunError
from torchpbp.experiments.running.program import train
from torchpbp.experiments.running.run_folder import Parts

pytestmark = pytest.mark.slow

T = TypeVar("T")


def without(*others: str) -> list[str]:
    """Overrides that leave learners out."""
    return [f"~model.others.{name}" for name in others]


EXPERIMENTS: dict[str, list[str]] = {
    "digits": ["learner.twin=true", "learner.baselines=true", "model.data.train_size=5", "model.limit=20"],
    "digits_missing": ["model.hidden=[0,6]", "model.limit=30"],
    "digits_learning_curve": ["~model.others.nystroem", "model.sizes=[3,5]", "model.repeats=1", "model.limit=10"],
    "splice": [
        *without("EM", "online_EM", "spectral", "PBP"),
        "model.folds=2",
        "model.folds_used=2",
        "model.sizes=[60]",
    ],
    "learners": ["model.repeats=2", "model.test_rows=10", *without("EM", "online_EM", "normal_graph")],
    "synthetic": ["model.sizes=[100,300]", "model.repeats=2", "model.max_values=5"],
    "pbp_synthetic": ["model.sizes=[200,400]", "model.repeats=2", *without("em")],
    "jt_synthetic": [
        *("~model.graphs.hmm_order3", "~model.graphs.factorial_hmm", "~model.graphs.synthetic_junction_tree"),
        *without("EM", "online_EM"),
        *("model.sizes=[100]", "model.repeats=2", "model.test_rows=20"),
    ],
    "ng_single_block": [],
    "ng_one_embedding": [],
    "ng_deep_graph": [],
    "sequence_labelling": ["model.sizes=[10,20]", "model.repeats=2", "model.test_rows=10", "model.label_only=[0]"],
}
WITHOUT_TIMES = ("coefficients.png", "log_likelihood.png", "inner_iterations.png", "confusion.png", "kl.png")
"""Pictures of results alone, without seconds."""


class Stopped(Exception):
    """What ends a run between two parts."""


def counted(patch: pytest.MonkeyPatch, most: int | None = None) -> list[str]:
    """Names of the parts computed from now on; the run is stopped when so many are done and the next is due."""
    computed: list[str] = []
    get = Parts.get

    def counting(self: Parts, name: str, compute: Callable[[], T]) -> T:
        def noted() -> T:
            if len(computed) == most:
                raise Stopped
            computed.append(name)
            return compute()

        return get(self, name, noted)

    patch.setattr(Parts, "get", counting)
    return computed


def table(folder: Path) -> pd.DataFrame:
    """metrics.csv without what depends on the clock."""
    found = pd.read_csv(folder / "metrics.csv")
    if "question" in found:
        found = found[~found["question"].str.contains("second")]
    return found[[c for c in found if "seconds" not in c]]


@pytest.fixture(autouse=True)
def quick_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of pictures a sum of what they show: drawing would take most of the time, and hides small differences."""

    def savefig(figure: Figure, path: Path, **options: Any) -> None:
        lines = [line.get_xydata() for axes in figure.axes for line in axes.lines]
        images = [image.get_array() for axes in figure.axes for image in axes.images]
        content = hashlib.sha256(b"".join(np.asarray(x, dtype=np.float64).tobytes() for x in (*lines, *images)))
        Path(path).write_bytes(b"\x89PNG\r\n\x1a\n" + content.digest() + b"IEND\xaeB`\x82")

    monkeypatch.setattr(Figure, "savefig", savefig)


def resumed(cfg: DictConfig) -> DictConfig:
    """The same settings, resumed."""
    return OmegaConf.merge(cfg, {"resume": True})


@pytest.mark.parametrize("model", EXPERIMENTS)
def test_a_run_stopped_between_parts_goes_on_to_the_same_results(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, stopped = tmp_path / "plain", tmp_path / "stopped"
    undisturbed = configuration(plain, f"model={model}", *QUICK, *EXPERIMENTS[model])
    cfg = OmegaConf.merge(undisturbed, {"output_dir": str(stopped)})
    with monkeypatch.context() as patch:
        every = counted(patch)
        train(undisturbed)
    assert len(every) == len(set(every)) >= 2
    half = len(every) // 2
    with monkeypatch.context() as patch:
        first = counted(patch, half)
        with pytest.raises(Stopped):
            train(cfg)
        assert first == every[:half]
    assert len(list(stopped.glob(".run/parts/*.pt"))) == half
    check_files(stopped)
    with monkeypatch.context() as patch:
        rest = counted(patch)
        train(resumed(cfg))
        assert rest == every[half:]  # what was done is not done again
    assert results(stopped) == results(plain)
    pd.testing.assert_frame_equal(table(stopped), table(plain), check_exact=True)
    assert {p.name for p in stopped.iterdir()} == {p.name for p in plain.iterdir()}
    for name in WITHOUT_TIMES:
        if (plain / name).exists():
            assert (stopped / name).read_bytes() == (plain / name).read_bytes(), name
    assert not (stopped / ".run" / "parts").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model.iterations=6", r"model\.iterations was 5 and is 6"),
        ("learner.delta=0.5", r"learner\.delta was .* and is 0\.5"),
        ("seed=3", "seed was 0 and is 3"),
    ],
)
def test_parts_of_other_settings_are_not_used(
    change: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = ["model=ng_single_block", *QUICK]
    with monkeypatch.context() as patch:
        counted(patch, 1)
        with pytest.raises(Stopped):
            train(configuration(tmp_path, *overrides))
    kept = {path: path.read_bytes() for path in tmp_path.glob(".run/parts/*.pt")}
    assert len(kept) == 1
    with pytest.raises(RunError, match=f"had other settings: {message}"):
        train(configuration(tmp_path, *overrides, change, "resume=true"))
    assert {path: path.read_bytes() for path in tmp_path.glob(".run/parts/*.pt")} == kept
    with monkeypatch.context() as patch:
        again = counted(patch)
        train(configuration(tmp_path, *overrides, change))  # without resume: from the beginning
    assert len(again) == 8
    train(configuration(tmp_path / "new", *overrides, change))
    assert results(tmp_path) == results(tmp_path / "new")


def test_parts_of_another_version_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = configuration(tmp_path, "model=ng_single_block", *QUICK)
    with monkeypatch.context() as patch:
        counted(patch, 1)
        with pytest.raises(Stopped):
            train(cfg)
    noted = tmp_path / ".run" / "settings.json"
    content: dict[str, Any] = json.loads(noted.read_text())
    content["settings"]["versions"]["torchpbp"] = "0.0.1"
    noted.write_text(json.dumps(content))
    with pytest.raises(RunError, match=r"versions\.torchpbp was '0\.0\.1' and is"):
        train(resumed(cfg))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_killed_process_leaves_its_parts_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = ["model=ng_single_block", *QUICK, "model.iterations=500"]
    plain, killed, log = tmp_path / "plain", tmp_path / "killed", tmp_path / "log"
    cfg = configuration(killed, *overrides)
    train(OmegaConf.merge(cfg, {"output_dir": str(plain)}))
    child = run_in_child(cfg, log)
    assert wait_for(lambda: list(killed.glob(".run/parts/*.pt")), child), log.read_text()
    os.kill(child, signal.SIGKILL)
    assert ended(child) == -signal.SIGKILL
    check_files(killed)
    kept = list(killed.glob(".run/parts/*.pt"))
    with monkeypatch.context() as patch:
        rest = counted(patch)
        train(resumed(cfg))
    assert 1 <= len(rest) == 8 - len(kept)
    assert results(killed) == results(plain)
    pd.testing.assert_frame_equal(table(killed), table(plain), check_exact=True)
