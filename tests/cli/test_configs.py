"""Every file in conf/ composes, shows all settings with their defaults, and a mistaken command line is an error."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hydra.utils import get_class, instantiate
from omegaconf import OmegaConf

import torchpbp
from tests.composed import accept, composed
from torchpbp import LatentGraph, Ridge
from torchpbp.errors import ArgumentError, StructureError
from torchpbp.experiments.overrides import CONF, GROUPS, check_overrides, explained
from torchpbp.experiments.run import instantiated

EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
OF_GRAPHS = ("em", "maximum_likelihood", "normal_graph", "online_em", "pbp", "spectral")


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def all_choices() -> Iterator[str]:
    """A command line for each file, with an experiment that reads it."""
    yield from (f"experiment={name}" for name in EXPERIMENTS)
    yield from (f"experiment=compare graph={name}" for name in options("graph") if not name.startswith("pen"))
    yield from (f"experiment=compare model={name}" for name in OF_GRAPHS)
    yield from (f"experiment=compare regressor={name}" for name in options("regressor"))
    yield from (f"model={name}" for name in options("model") if name.startswith(("digits", "patches")))
    for group in ("trainer", "callbacks", "logger", "debug"):
        yield from (f"{group}={name}" for name in options(group))


@pytest.mark.parametrize("command", list(all_choices()))
def test_every_choice_composes(command: str) -> None:
    accept(command.split())
    resolved = OmegaConf.to_container(composed(*command.split()), resolve=True, throw_on_missing=True)
    assert isinstance(resolved, dict)
    assert resolved["task"]["_target_"].startswith("torchpbp.experiments.")


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_can_be_made_and_has_tiny_numbers(experiment: str) -> None:
    task = instantiated(composed(f"experiment={experiment}"))
    inspect.signature(task.func).bind(run=None, **task.keywords)
    full, tiny = composed(f"experiment={experiment}"), composed(f"experiment={experiment}", "debug=default")
    assert full.tiny
    assert {k: v for k, v in full.items() if k != "debug"} != {k: v for k, v in tiny.items() if k != "debug"}


def test_the_default_command_trains_a_network_on_pen_digits() -> None:
    assert composed() == composed("model=digits", "experiment=train", "data=digits", "trainer=default")


def test_help_names_every_experiment_and_the_models_it_takes() -> None:
    page = (CONF / "hydra" / "help" / "torchpbp.yaml").read_text(encoding="utf-8")
    section = page.partition("== Experiments")[2].partition("== Choices")[0]
    listed = {
        name: models.split(", ") for name, models in re.findall(r"^  (\w+) +(\w.*)$", section, flags=re.MULTILINE)
    }
    assert listed == {name: composed(f"experiment={name}").accepts for name in EXPERIMENTS}


def test_the_command_line_wins_over_tiny_numbers() -> None:
    assert composed("debug=default").trainer.max_epochs == 2
    assert composed("debug=default", "trainer.max_epochs=5").trainer.max_epochs == 5


# -- files show all settings ---------------------------------------------------------------------------------------------


@functools.cache
def shown(*overrides: str, group: str) -> dict[str, Any]:
    content: Any = OmegaConf.to_container(composed(*overrides)[group], resolve=True)
    return {k: tuple(v) if isinstance(v, list) else v for k, v in content.items() if k not in ("_target_", "_partial_")}


def defaults(kind: type, *left_out: str) -> dict[str, Any]:
    return {p.name: p.default for p in inspect.signature(kind).parameters.values() if p.name not in left_out}


@pytest.mark.parametrize("name", OF_GRAPHS)
def test_a_model_file_shows_every_setting_with_its_default(name: str) -> None:
    command = ["experiment=compare", f"model={name}"]
    target = get_class(composed(*command).model._target_)
    expected, found = defaults(target, "graph"), shown(*command, group="model")
    if "progress" in expected:  # the grid of an experiment has a bar of its own
        assert (found.pop("progress"), expected.pop("progress")) == (False, True)
    if name == "pbp":
        assert (found.pop("dtype")["path"], str(expected.pop("dtype"))) == ("torch.float64", "torch.float64")
        assert (found.pop("regressor"), expected.pop("regressor")) == ({"_target_": "torchpbp.Ridge"}, None)
    assert found == expected


@pytest.mark.parametrize("name", options("regressor"))
def test_a_regressor_file_shows_every_setting_with_its_default(name: str) -> None:
    command = ["experiment=compare", f"regressor={name}"]
    expected = defaults(get_class(composed(*command).regressor._target_))
    found = shown(*command, group="regressor")
    if name == "mlp":
        assert (found.pop("dtype")["path"], str(expected.pop("dtype"))) == ("torch.float32", "torch.float32")
        assert found.pop("trainer")["accelerator"] == "cpu"
        assert expected.pop("trainer") is None
    assert found == expected


@pytest.mark.parametrize("name", [n for n in options("graph") if not n.startswith("pen")])
def test_a_graph_file_shows_every_setting_of_its_template(name: str) -> None:
    cfg = composed("experiment=compare", f"graph={name}").graph
    template = getattr(torchpbp.templates, cfg._target_.rpartition(".")[2])
    assert set(cfg) - {"_target_"} == set(inspect.signature(template).parameters)
    assert isinstance(instantiate(cfg), LatentGraph)


@pytest.mark.parametrize("name", [n for n in options("model") if n.startswith(("digits", "patches"))])
def test_a_network_file_shows_the_settings_of_the_module(name: str) -> None:
    rest = {"support", "validation_rows", "clip"}  # from the data and the trainer, and one that nobody changes
    assert set(shown(f"model={name}", group="model")) == set(defaults(torchpbp.PBPModule)) - rest


def test_a_trainer_file_holds_arguments_of_lightning() -> None:
    from lightning.pytorch import Trainer

    assert set(shown(group="trainer")) <= set(inspect.signature(Trainer).parameters)


def test_the_seed_reaches_model_and_data() -> None:
    cfg = composed("seed=17")
    assert (cfg.model.seed, cfg.model.model.seed, cfg.data.seed) == (17, 17, 17)
    assert composed("experiment=compare", "seed=17").model.seed == 17


# -- mistakes on the command line ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("graph=hmm", r"^graph: nothing reads it in experiment=train, model=digits"),
        ("regressor=mlp", r"^regressor: nothing reads it"),
        ("regressor=ridge", r"^regressor: nothing reads it"),  # the default, but asked for
        ("experiment=compare +trainer.max_epochs=3", r"^trainer\.max_epochs: nothing reads it in experiment=compare"),
        ("experiment=compare logger=csv", r"^logger: nothing reads it"),
        ("experiment=compare ckpt_path=a.ckpt", r"^ckpt_path: nothing reads it"),
        ("experiment=compare +lerner=em", r"^lerner: nothing reads it.* Did you mean model=em\?"),
        ("+modle.hide=0.5", r"Did you mean model\.hide\?"),
        ("experiment=splice model.ridge=[1.0,1.0]", r"^model\.ridge: experiment=splice sets it itself.*task\.…"),
        ("experiment=compare model=digits", r"^model=digits: experiment=compare takes model=.*pbp.*: patches|train"),
        ("model=em", r"^model=em: experiment=train takes model=digits.*Experiments for model=em: .*compare"),
    ],
)
def test_an_override_that_changes_nothing_raises(command: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        accept(command.split())


@pytest.mark.parametrize(
    "command",
    [
        "trainer.max_epochs=3 trainer.fast_dev_run=true +trainer.profiler=simple logger=tensorboard",
        "+callbacks.mine._target_=package.Mine data.train_size=20 seed=3 threads=2 resume=true ckpt_path=a.ckpt",
        "experiment=compare model=em graph=hmm graph.length=8 model.restarts=2",
        "experiment=compare regressor=mlp regressor.hidden=[4]",
    ],
)
def test_an_override_that_is_read_is_accepted(command: str) -> None:
    accept(command.split())


def test_a_group_that_an_experiment_needs_is_asked_for() -> None:
    cfg = composed("experiment=compare")
    del cfg.graph
    with pytest.raises(ArgumentError, match=r"^graph: experiment=compare needs one\. Choose graph=diamond\|"):
        check_overrides(cfg, [], {"experiment": "compare", "model": "pbp"})
    assert "graph" in GROUPS


@pytest.mark.parametrize(
    ("command", "wrong", "hint"),
    [
        ("experiment=compare regressor=mlp", "regressor.hiden=3", "Did you mean regressor.hidden?"),
        ("experiment=compare", "trainer.max_epochs=3", "No trainer is chosen. There are: ddp, default, gpu."),
        ("", "trainer.max_epoch=3", "Did you mean trainer.max_epochs?"),
        ("", "lerner=em", "Did you mean model=em?"),
    ],
)
def test_a_key_that_hydra_does_not_know_is_explained(command: str, wrong: str, hint: str) -> None:
    message = f"Could not override '{wrong.partition('=')[0]}'.\nKey is not in struct"
    assert explained(message, [*command.split(), wrong], composed(*command.split())) == hint


def test_a_missing_plugin_is_explained() -> None:
    assert '".[sweep]"' in explained("Could not find 'hydra/launcher/joblib'", [], None)
    assert explained("Something else", ["a=b"], composed()) == ""


def test_a_plus_too_many_is_explained() -> None:
    message = "Could not append to config. An item is already at 'trainer.max_epochs'"
    hint = explained(message, ["+trainer.max_epochs=3"], composed())
    assert hint == "It exists: leave out the plus, trainer.max_epochs=3."


def test_settings_that_a_task_does_not_have_raise() -> None:
    cfg = composed("experiment=compare", "+model.rnak=3")
    with pytest.raises(ArgumentError, match=r"rnak.*Did you mean rank\?"):
        instantiated(cfg)
    with pytest.raises(ArgumentError, match=r"^task\.drws: train has no such setting\. Did you mean draws\?"):
        instantiated(composed("+task.drws=3"))
    with pytest.raises(StructureError, match="expected at least 1 state"):
        instantiated(composed("experiment=compare", "graph.states=-1"))


def test_ridge_is_the_default_regressor() -> None:
    assert isinstance(instantiate(composed("experiment=compare").regressor), Ridge)
