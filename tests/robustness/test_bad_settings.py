"""Settings with typos or invalid values: a message that names the setting, and no folder left behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf

from tests.robustness.runs import CONF, configuration
from torchpbp.errors import ArgumentError, RunError, TorchPBPError
from torchpbp.experiments.running import run_folder
from torchpbp.experiments.running.configuration import explain_missing_group
from torchpbp.experiments.running.empty_folders import EmptyFolders
from torchpbp.experiments.running.program import short_errors, train


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.repeats=abc"], "model.repeats: expected a whole number of at least 1, got 'abc'"),
        (["model.repeats=null"], "model.repeats: expected a whole number of at least 1, got None"),
        (["model.repeats=2.5"], "model.repeats: expected a whole number of at least 1, got 2.5"),
        (["model.repeats=true"], "model.repeats: expected a whole number of at least 1, got True"),
        (["model.concentration=-1"], "model.concentration: expected a positive number, got -1"),
        (["model.verbose=1"], "model.verbose: expected True or False, got 1"),
        (["model.sizes=5"], "model.sizes: expected one or more whole numbers of at least 1, got 5"),
        (["model.sizes=[a]"], r"model.sizes: expected one or more whole numbers of at least 1, got \['a'\]"),
        (["+model.size=5"], "model.size: run_synthetic has no such setting. There are: sizes, repeats"),
        (["seed=abc"], "seed: expected a whole number of at least 0, got 'abc'"),
        (["seed=-1"], "seed: expected a whole number of at least 0, got -1"),
        (["threads=0"], "threads: expected None or a whole number of at least 1, got 0"),
        (["resume=maybe"], "resume: expected True or False, got 'maybe'"),
    ],
)
def test_invalid_values(overrides: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=message):
        train(configuration(tmp_path / "run", "model=synthetic", *overrides))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model=synthetic", "model.graph.states=x"], "expected a number of states .*, got 'x'"),
        (["model=synthetic", "learner.ridge=abc"], "ridge: expected .*, got 'abc'"),
        (["model=synthetic", "learner.rank=foo"], "rank: expected .*, got 'foo'"),
        (["model=synthetic", "+learner.rnk=2"], "^learner: PBP got an unexpected keyword argument 'rnk'. Leave it out"),
        (
            ["model=maxima", "learner=pbp"],
            "^learner: PBP got an unexpected keyword argument 'prior'. .* another learner",
        ),
        (["model=synthetic", "regressor=mlp", "regressor.hidden=3"], "hidden: expected .*, got 3"),
        (["model=synthetic", "regressor=mlp", "regressor.missing=2"], "missing: expected .*, got 2"),
        (["model=digits", "learner.steps=0"], "steps: expected a whole number of at least 1, got 0"),
        (["model=digits", "learner.encoder=odd"], "encoder: expected one of .*, got 'odd'"),
        (["model=digits", "learner.hide=2"], "hide: expected a number from 0 to 1, got 2"),
        (["model=digits", "learner.distortions.shear=-1"], "shear: expected a non-negative number, got -1"),
        (["model=digits", "callbacks.weight_average.decay=2"], "decay: expected a number from 0 to 1, got 2"),
        (["model=digits", "model.data.train_size=abc"], "train_size: expected .*, got 'abc'"),
        (["model=sequence_labelling", "model.data.noise=abc"], "noise: expected a positive number, got 'abc'"),
    ],
)
def test_invalid_values_of_what_is_built(overrides: list[str], message: str, tmp_path: Path) -> None:
    """Raised by the constructors themselves, but before the folder is made."""
    with pytest.raises(TorchPBPError, match=message):
        train(configuration(tmp_path / "run", *overrides))
    assert not (tmp_path / "run").exists()


def test_an_error_ends_the_program_with_its_message_unless_a_sweep_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    with pytest.raises(SystemExit) as caught, short_errors(alone=True):
        raise ArgumentError("seed: expected another.")
    assert str(caught.value.code).startswith(
        "ArgumentError: seed: expected another.\n"
    )  # printed by Python, exit code 1
    with pytest.raises(ArgumentError), short_errors(alone=False):
        raise ArgumentError("seed: expected another.")
    with pytest.raises(ZeroDivisionError), short_errors(alone=True):
        1 / 0  # noqa: B018  not a mistake of the user's
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(ArgumentError), short_errors(alone=True):
        raise ArgumentError("seed: expected another.")


def test_a_gpu_that_is_not_there_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(
        ArgumentError, match=r"trainer.accelerator=gpu: expected a GPU, found none\. Choose trainer=cpu"
    ):
        train(configuration(tmp_path / "run", "model=synthetic", "regressor=mlp", "trainer=gpu"))
    assert not (tmp_path / "run").exists()


def test_a_setting_of_a_group_that_is_not_there_is_explained() -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"), pytest.raises(ConfigCompositionException) as caught:
        compose("config", overrides=["model=digits", "regressor.landmarks=7"])
    explained = explain_missing_group(str(caught.value))
    assert explained.startswith("The chosen model and learner use no regressor. It is used by learner=pbp,")
    assert "learner=nystroem" in explained
    assert explain_missing_group("Could not override 'sead'.") == ""


# -- output folders that cannot be made ---------------------------------------------------------------------------

BAD_FOLDERS = {
    "empty": ("", "output_dir: expected the path of a folder, got ''"),
    "a null character": ("a\0b", r"output_dir: expected a folder that can be written to, got 'a\\x00b' \(.*null"),
    "too long": (
        "x" * 5000,
        r"output_dir: expected a folder that can be written to, got 'x+\.\.\.' \(File name too long",
    ),
    "below a file": ("FILE/run", r"output_dir: expected a folder that can be written to, got .*\(Not a directory"),
    "a file": ("FILE", r"output_dir: expected a folder that can be written to, got .*\((Not a directory|File exists)"),
    "a folder of the system": ("/proc/run", r"output_dir: expected .* got '/proc/run' \("),
}


@pytest.mark.parametrize("kind", BAD_FOLDERS)
def test_an_output_folder_that_cannot_be_made_raises(kind: str, tmp_path: Path) -> None:
    path, message = BAD_FOLDERS[kind]
    (tmp_path / "file").write_text("a file")
    path = path.replace("FILE", str(tmp_path / "file"))
    cfg = OmegaConf.merge(configuration(tmp_path / "run", "model=synthetic"), {"output_dir": path})
    with pytest.raises(RunError, match=message) as caught:
        train(cfg)
    assert "hydra.run.dir=<folder>" in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_folder_without_permission_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(run_folder.Path, "mkdir", denied)
    with pytest.raises(
        RunError, match=r"output_dir: expected a folder that can be written to, got .* \(Permission denied"
    ):
        train(configuration(tmp_path / "run", "model=synthetic"))


@pytest.mark.parametrize("kind", [kind for kind in BAD_FOLDERS if kind != "a null character"])
def test_hydra_is_stopped_before_it_makes_such_a_folder(kind: str, tmp_path: Path) -> None:
    """Hydra makes the folder before the program is called, and would end in a traceback."""
    path, message = BAD_FOLDERS[kind]
    (tmp_path / "file").write_text("a file")
    folder = {"dir": path.replace("FILE", str(tmp_path / "file"))}
    for start, config in (
        (EmptyFolders().on_run_start, OmegaConf.create({"hydra": {"run": folder}})),
        (EmptyFolders().on_multirun_start, OmegaConf.create({"hydra": {"sweep": folder}})),
    ):
        with pytest.raises(SystemExit) as caught:
            start(config)
        with pytest.raises(RunError, match=message):
            raise RunError(str(caught.value.code).removeprefix("RunError: "))
    assert os.listdir(tmp_path) == ["file"]


# -- names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("override", ["model.size=[1]", "leaner=em", "learner.rigde=[1,1]", "sead=1"])
def test_a_typo_in_a_name_raises(override: str) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"), pytest.raises(ConfigCompositionException) as caught:
        compose("config", overrides=["model=synthetic", override])
    assert override.split("=")[0] in str(caught.value)
