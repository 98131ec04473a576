"""Settings with typos or values of the wrong type: a message that names the setting, and no folder left behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException

from tests.cli.test_configs import all_choices, composed
from tests.robustness.runs import CONF, configuration
from torchpbp.errors import RunError, SettingError
from torchpbp.experiments.running.program import check_types, in_words, train
from torchpbp.experiments.running.setting_types import argument_types, fits, readable


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.repeats=abc"], "model.repeats: expected a whole number, got 'abc'"),
        (["model.repeats=null"], "model.repeats: expected a whole number, got None"),
        (["model.repeats=2.5"], "model.repeats: expected a whole number, got 2.5"),
        (["model.sizes=5"], "model.sizes: expected a list, each entry a whole number, got 5"),
        (["model.sizes=[a]"], r"model.sizes: expected a list, each entry a whole number, got \['a'\]"),
        (["model.graph.states=x"], "model.graph.states: expected a whole number or null, got 'x'"),
        (["learner.ridge=abc"], "learner.ridge: expected a list of 2 entries, each a number, got 'abc'"),
        (["learner.rank=foo"], "learner.rank: expected a whole number or 'auto' or null, got 'foo'"),
        (["learner.strict=7"], "learner.strict: expected true or false, got 7"),
        (["regressor=mlp", "regressor.hidden=3"], "regressor.hidden: expected a list, each entry a whole number"),
        (["regressor=mlp", "regressor.form=odd"], "regressor.form: expected 'instrumental' or 'plain', got 'odd'"),
        (["seed=abc"], "seed: expected a whole number of at least 0, got 'abc'"),
        (["seed=-1"], "seed: expected a whole number of at least 0, got -1"),
        (["threads=0"], "threads: expected a whole number of at least 1 or null, got 0"),
        (["resume=maybe"], "resume: expected true or false, got 'maybe'"),
    ],
)
def test_values_of_the_wrong_type(overrides: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=message):
        train(configuration(tmp_path / "run", "model=synthetic", *overrides))
    assert not (tmp_path / "run").exists()


def test_a_mistake_is_told_in_words_unless_a_sweep_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    with pytest.raises(SystemExit) as caught, in_words(alone=True):
        raise SettingError("seed: expected another.")
    assert str(caught.value.code).startswith(
        "SettingError: seed: expected another.\n"
    )  # printed by Python, exit code 1
    with pytest.raises(SettingError), in_words(alone=False):
        raise SettingError("seed: expected another.")
    with pytest.raises(ZeroDivisionError), in_words(alone=True):
        1 / 0  # noqa: B018  no mistake of the user's
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(SettingError), in_words(alone=True):
        raise SettingError("seed: expected another.")


def test_a_gpu_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(SettingError, match=r"trainer.accelerator=gpu: expected a GPU, found none\. Choose trainer=cpu"):
        train(configuration(tmp_path / "run", "model=synthetic", "trainer=gpu"))
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(RunError, match=r"output_dir: expected a folder that can be written to, got .*run \(Not a dir"):
        train(configuration(tmp_path / "run", "model=synthetic"))


@pytest.mark.parametrize("override", ["model.size=[1]", "leaner=em", "learner.rigde=[1,1]", "sead=1"])
def test_a_typo_in_a_name_is_refused(override: str) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"), pytest.raises(ConfigCompositionException) as caught:
        compose("config", overrides=["model=synthetic", override])
    assert override.split("=")[0] in str(caught.value)


@pytest.mark.parametrize("choice", all_choices())
def test_the_settings_that_come_with_the_library_have_the_right_types(choice: str) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        check_types(composed(choice))


@pytest.mark.parametrize(
    ("value", "expected", "right"),
    [
        (1, int, True),
        (True, int, False),
        (1.0, int, False),
        (1, float, True),
        ("1", float, False),
        (None, int | None, True),
        ([1, 1e3], Sequence[int], True),
        ([1, 0.5], Sequence[int], False),
        ("ab", Sequence[str], False),
        ([1.0, 2.0], tuple[float, float], True),
        ([1.0], tuple[float, float], False),
        ({"a": 1}, Mapping[str, int], True),
        ("x", Literal["x", "y"], True),
        ("z", Literal["x", "y"], False),
        ({"_target_": "torchpbp.Ridge"}, int, True),
        ("anything", Path, True),
        ("anything", Any, True),
    ],
)
def test_fits(value: Any, expected: Any, right: bool) -> None:
    assert fits(value, expected) is right


def test_types_of_arguments_are_found_by_name() -> None:
    found = argument_types("torchpbp.PBP")
    assert found["strict"] is bool
    assert readable(found["singles"]) == "a whole number"
    assert argument_types("torchpbp.graph.templates.hmm")["length"] is int
    assert argument_types("no.such.thing") == argument_types("torchpbp.__version__") == {}
