"""Every file in conf/ composes, and what it describes can be built."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import get_class, instantiate
from lightning.pytorch import Callback
from omegaconf import DictConfig, OmegaConf
from torch import nn

from torchpbp import LatentGraph, Ridge
from torchpbp.datasets import FEATURES, LabelSequences
from torchpbp.errors import ArgumentError
from torchpbp.experiments import settings_class
from torchpbp.experiments.digits.distortions import Distortions
from torchpbp.experiments.digits.neural import NeuralDigits
from torchpbp.experiments.normal_graph.one_embedding import embedding_graph
from torchpbp.experiments.patches.learner import PatchNets
from torchpbp.experiments.running.configuration import (
    LOGGERS,
    check_configuration,
    check_overrides,
    check_size,
    check_used,
)

CONF = Path(__file__).parents[2] / "conf"
SETTINGS = {"model", "learner", "seed", "threads", "objective", "output_dir", "ckpt_path", "resume"}
GROUPS = {"trainer", "regressor", "logger", "callbacks"}
NEURAL = "torchpbp.experiments.digits.neural.NeuralDigits"
"""Settings that are there only where they are used."""


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


@pytest.fixture(autouse=True)
def conf() -> Iterator[None]:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield


def as_tuples(value: object) -> object:
    """Lists, which configurations have, as the tuples that signatures have."""
    return tuple(as_tuples(v) for v in value) if isinstance(value, list) else value


def all_choices() -> list[str]:
    groups = {path.parent.relative_to(CONF).as_posix() for path in CONF.rglob("*.yaml")} - {
        ".",
        "debug/default",
        "debug/learner/default",
        "size/paper",
    }
    groups -= {"sweep", "sweep/optuna"}  # need a package of their own: tests/cli/test_sweeps.py
    return [f"{group}={o}" for group in sorted(groups) if not group.startswith("hydra") for o in options(group)]


@functools.cache
def composed(*overrides: str) -> DictConfig:
    """The configuration of a choice, with the model it is meant for; nobody changes it."""
    choice = overrides[0] if overrides else ""
    needed = (
        ["model=synthetic"]
        if choice.startswith("model/graph=")
        or choice.startswith(
            ("learner=pbp", "learner=em", "learner=online_em", "learner=maximum_likelihood", "learner=spectral")
        )
        else []
    )
    if choice.startswith("regressor="):
        needed = ["model=synthetic"]
    if choice.startswith("trainer="):
        needed = ["model=sequence_labelling"]
    if choice == "learner=patch_nets":
        needed = ["model=patches"]
    if choice == "learner=normal_graph":  # takes no loops, and the default graph has one
        needed = ["model=ng_one_embedding"]
    return compose("config", overrides=[*needed, *overrides, "output_dir=null"])


def test_the_promised_choices_exist() -> None:
    expected = "diamond factorial_hmm grid hmm hmm_order2 hmm_order3 latent_tree loopy_network naive_bayes nested_loops"
    assert set(expected.split()) <= set(options("model/graph"))
    assert {"synthetic_consistency", "parity", "precision", "splice", "sequence_labelling"} == set(
        options("experiment")
    )
    assert {"digits_learning_curve", "digits_missing", "splice", "learners"} <= set(options("model"))
    assert {"pbp", "pen_average", "gram", "nystroem"} <= set(options("learner"))
    assert {"model=synthetic", "model=digits", "debug=default"} <= set(all_choices())


@pytest.mark.parametrize("choice", all_choices())
def test_every_choice_composes_and_builds_its_task_and_learner(choice: str) -> None:
    cfg = composed(choice)
    resolved = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    assert isinstance(resolved, dict)
    assert SETTINGS <= set(resolved) <= SETTINGS | GROUPS
    check_used(cfg)
    package = LOGGERS.get(str((cfg.get("logger") or {}).get("_target_")).rpartition(".")[2])
    here = package is None or importlib.util.find_spec(package) is not None
    if here and (choice != "trainer=gpu" or torch.cuda.is_available()):
        check_configuration(cfg)
    task = instantiate(cfg.model, _convert_="all")
    inspect.signature(task.func).bind(learner=None, **task.keywords)
    assert type(task.keywords.get("sizes", [])) is list  # no DictConfig or ListConfig reaches the library
    learner = instantiate(cfg.learner, _convert_="all")
    if "graph" in task.keywords:
        graph = task.keywords["graph"]
        assert isinstance(graph, LatentGraph)
        assert learner(graph).graph is graph
    elif "graphs" in task.keywords:
        for graph in task.keywords["graphs"].values():
            others = [
                m for name, m in task.keywords.get("others", {}).items() if name != "normal_graph"
            ]  # takes no loops
            assert all(maker(graph).graph is graph for maker in (learner, *others))
    elif isinstance(task.keywords.get("data"), LabelSequences):
        graph = task.keywords["data"].network.graph
        assert learner(graph).graph is graph
    elif "ridges" in task.keywords:
        graph = task.keywords["others"]["PBP"]["graph"]
        assert learner(graph).graph is graph
    elif cfg.learner._target_ == "torchpbp.NormalGraphLearner":
        graph = embedding_graph(4)
        assert learner(graph).graph is graph
    elif isinstance(learner, (NeuralDigits, PatchNets)):
        assert not isinstance(learner, NeuralDigits) or learner.distortions == Distortions()
        assert all(isinstance(callback, Callback) for callback in (learner.callbacks or {}).values())
        assert callable(learner.logger)
    else:
        assert isinstance(learner, nn.Module)
        assert learner.graph.observed == FEATURES


@pytest.mark.parametrize(
    ("choice", "learner"),
    [
        ("model=synthetic", "torchpbp.PBP"),
        ("experiment=synthetic_consistency", "torchpbp.PBP"),
        ("model=digits", NEURAL),
        ("model=digits_learning_curve", "torchpbp.ScoreAverage"),
        ("model=digits_missing", "torchpbp.ScoreAverage"),
        ("model=sequence_labelling", "torchpbp.PBP"),
        ("experiment=sequence_labelling", "torchpbp.PBP"),
        ("model=ng_single_block", "torchpbp.NormalGraphLearner"),
        ("model=ng_one_embedding", "torchpbp.NormalGraphLearner"),
        ("model=ng_deep_graph", "torchpbp.NormalGraphLearner"),
        ("model=jt_synthetic", "torchpbp.PBP"),
    ],
)
def test_each_model_has_its_default_learner(choice: str, learner: str) -> None:
    assert composed(choice).learner._target_ == learner


@pytest.mark.parametrize("learner", ["maximum_likelihood", "em", "online_em"])
def test_maxima_are_looked_for_without_a_prior_by_default(learner: str) -> None:
    assert composed("model=maxima").learner == composed("model=maxima", "learner=maximum_likelihood").learner
    assert composed("model=maxima", f"learner={learner}").learner.prior == 0
    assert composed("model=maxima", f"learner={learner}", "learner.prior=2").learner.prior == 2


def test_digits_are_the_default() -> None:
    assert composed() == composed("model=digits")


def test_pen_average_is_what_it_says() -> None:
    model = instantiate(composed("learner=pen_average").learner, _convert_="all")
    assert model.settings.weights == pytest.approx([1 / 3, 1 / 3, 1 / 6, 1 / 6])
    assert [len(m.graph.latent) for m in model.members] == [8, 8, 0, 0]
    assert [m.settings.landmarks for m in model.members] == [120, 120, None, None]
    assert [m.settings.evidence_bandwidth for m in model.members] == [7.0, 8.0, 7.0, 8.0]
    assert [m.chart.moved for m in model.members] == [frozenset(), frozenset(FEATURES)] * 2
    assert model.members[0].settings.ridge == (0.1, 0.1)


@pytest.mark.parametrize("model", options("model"))
def test_debug_makes_every_model_tiny(model: str) -> None:
    full, tiny = composed(f"model={model}"), composed(f"model={model}", "debug=default")
    assert set(full.model) == set(tiny.model)
    assert full.model != tiny.model
    if model in ("digits", "patches"):  # whose learner is trained
        assert set(full.learner) == set(tiny.learner)
        assert tiny.learner.steps < 10 < full.learner.steps
    else:
        assert full.learner == tiny.learner


def test_a_learner_on_the_command_line_wins() -> None:
    other = composed("model=digits", "learner=gram")
    assert other.learner._target_ == "torchpbp.KernelPBP"
    assert composed("model=digits", "learner=gram", "debug=default").learner == other.learner


@pytest.mark.parametrize("model", options("size/paper"))
def test_the_size_of_the_paper_changes_the_numbers_of_its_model(model: str) -> None:
    quick, paper = composed(f"model={model}"), composed(f"model={model}", "size=paper")
    assert set(quick.model) == set(paper.model)
    assert quick.model != paper.model
    check_size("paper", model)


def test_a_size_without_numbers_for_the_model_raises() -> None:
    check_size("quick", "digits")
    with pytest.raises(ArgumentError, match="size=paper: model=digits has no such size"):
        check_size("paper", "digits")


@pytest.mark.parametrize("graph", options("model/graph"))
def test_a_graph_file_shows_every_option_of_its_template(graph: str) -> None:
    cfg = composed(f"model/graph={graph}")
    shown = set(cfg.model.graph) - {"_target_"}
    template = getattr(__import__("torchpbp").templates, cfg.model.graph._target_.rpartition(".")[2])
    assert shown == set(inspect.signature(template).parameters)


def test_the_learner_file_shows_every_option_of_the_constructor_with_its_default() -> None:
    learner = instantiate(composed("model=synthetic").learner, _convert_="all")
    defaults = {p.name: p.default for p in inspect.signature(learner.func).parameters.values() if p.name != "graph"}
    assert isinstance(learner.keywords["regressor"], Ridge)  # what the constructor makes of None
    assert {**learner.keywords, "ridge": tuple(learner.keywords["ridge"]), "regressor": None} == defaults


@pytest.mark.parametrize("name", ["em", "online_em", "normal_graph", "spectral"])
def test_the_file_of_a_baseline_shows_every_option_of_the_constructor_with_its_default(name: str) -> None:
    learner = instantiate(composed("model=synthetic", f"learner={name}").learner, _convert_="all")
    defaults = {p.name: p.default for p in inspect.signature(learner.func).parameters.values() if p.name != "graph"}
    shown = {k: tuple(v) if isinstance(v, list) else v for k, v in learner.keywords.items()}
    assert shown == defaults


@pytest.mark.parametrize("regressor", options("regressor"))
def test_a_regressor_file_shows_every_option_of_the_constructor_with_its_default(regressor: str) -> None:
    shown = OmegaConf.to_container(composed("model=synthetic", f"regressor={regressor}").regressor, resolve=True)
    parameters = inspect.signature(get_class(shown.pop("_target_"))).parameters.values()
    defaults = {p.name: list(p.default) if isinstance(p.default, tuple) else p.default for p in parameters}
    if regressor in ("mlp", "auto"):
        assert (shown.pop("dtype")["path"], defaults.pop("dtype")) == ("torch.float32", torch.float32)
        assert shown.pop("trainer")["accelerator"] == "cpu"
        assert defaults.pop("trainer") is None
    assert shown == defaults


@pytest.mark.parametrize(
    ("overrides", "groups"),
    [
        (["model=digits"], {"trainer", "logger", "callbacks"}),
        (["model=digits", "learner=pen_average"], set()),
        (["model=synthetic", "learner=em"], set()),
        (["model=digits", "learner=nystroem"], {"regressor"}),
        (["model=synthetic"], {"regressor"}),
        (["model=digits_comparison"], {"regressor"}),  # of PBP among the others
        (["model=synthetic", "regressor=mlp"], {"regressor", "trainer"}),
        (["model=sequence_labelling"], {"regressor", "trainer"}),
    ],
)
def test_groups_are_there_only_where_they_are_used(overrides: list[str], groups: set[str]) -> None:
    cfg = composed("seed=0", *overrides)
    assert GROUPS & set(cfg) == groups
    check_configuration(cfg)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["model=digits", "learner=pen_average", "regressor=kernel_ridge"],
            r"^regressor: run_digits .*ScoreAverage uses no regressor.*nystroem",
        ),
        (["model=digits", "regressor=mlp"], r"^regressor: .* would change nothing"),
        (["model=digits", "+regressor.landmarks=7"], r"^regressor: "),
        (["model=synthetic", "learner=em", "regressor=mlp"], r"^regressor: run_synthetic .*torchpbp\.EM uses no"),
        (["model=digits", "learner=gram", "trainer=gpu"], r"^trainer: run_digits .* uses no trainer.*regressor=mlp"),
        (["model=synthetic", "trainer=gpu"], r"^trainer: run_synthetic "),
        (["model=synthetic", "regressor=ridge", "trainer=cpu", "trainer.devices=3"], r"^trainer: "),
        (["model=digits", "learner=gram", "logger=csv"], r"^logger: run_digits .* uses no logger.*learner=neural"),
        (["model=synthetic", "callbacks=default"], r"^callbacks: run_synthetic .* uses no callbacks.*learner=neural"),
        (["model=synthetic", "ckpt_path=a.ckpt"], r"^ckpt_path: run_synthetic .* uses no ckpt_path"),
        (["model=digits", "learner=gram", "trainer=ddp"], r"^trainer: "),  # kernel models do not share rows
        (["model=learners", "trainer=ddp"], r"^trainer: "),
    ],
)
def test_a_group_that_the_run_would_ignore_raises(overrides: list[str], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        check_configuration(composed("seed=0", *overrides))


def test_a_group_on_the_command_line_that_the_run_would_ignore_raises() -> None:
    overrides = ["model=digits", "learner=gram", "regressor=ridge"]
    with pytest.raises(ArgumentError, match=r"^regressor: run_digits .*KernelPBP uses no regressor"):
        check_overrides(composed("seed=0", *overrides), overrides)
    overrides = ["model=digits_learning_curve", "~model.others.nystroem"]
    check_configuration(composed("seed=0", *overrides))  # which brought a regressor
    check_overrides(composed("seed=0", *overrides), overrides)
    overrides += ["+regressor.landmarks=7"]
    with pytest.raises(ArgumentError, match=r"^regressor\.landmarks: run_digits_curve"):
        check_overrides(composed("seed=0", *overrides), overrides)


@pytest.mark.parametrize(
    "overrides", [["model=synthetic"], ["model=digits", "learner=nystroem"], ["model=synthetic", "learner=em"]]
)
def test_processes_may_share_rows_without_networks(overrides: list[str]) -> None:
    check_configuration(composed("seed=0", *overrides, "trainer=ddp"))


@pytest.mark.parametrize(
    "change", ["model.copies=3", "model.slant=0.3", "model.samples=2", "model.missing_training=0.1"]
)
def test_a_setting_of_models_per_class_raises_with_the_neural_learner(change: str) -> None:
    message = rf"^{change.partition('=')[0]}: run_digits with the learner NeuralDigits does not use it"
    with pytest.raises(ArgumentError, match=message):
        check_configuration(composed("seed=0", "model=digits", change))
    check_configuration(composed("seed=0", "model=digits", "learner=gram", change))
    same = ["model=digits", "model.copies=2"]  # the default, but asked for
    with pytest.raises(ArgumentError, match=r"^model\.copies: run_digits"):
        check_overrides(composed("seed=0", *same), same)


@pytest.mark.parametrize("package", ["tensorboard", "mlflow", "wandb"])
def test_a_logger_without_its_package_raises(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {package}
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name in found else find(name, *a))
    cfg = composed("seed=0", "model=digits", f"logger={package}")
    with pytest.raises(ArgumentError, match=rf'^logger={package}: .*not installed.*"\.\[{package}\]".*logger=csv'):
        check_configuration(cfg)
    found.clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: object())
    check_configuration(cfg)


def test_several_devices_are_for_several_processes() -> None:
    check_configuration(composed("seed=0", "model=digits", "trainer=ddp"))
    with pytest.raises(ArgumentError, match=r"^trainer\.devices=2: expected 1 with strategy=auto.*trainer=ddp"):
        check_configuration(composed("seed=0", "model=digits", "trainer.devices=2"))


def test_the_neural_learner_file_shows_every_option_with_its_default() -> None:
    cfg = composed("model=digits")
    learner = instantiate(cfg.learner, _convert_="all")
    for f in dataclasses.fields(NeuralDigits):
        if f.name not in ("trainer", "logger", "callbacks"):
            assert getattr(learner, f.name) == f.default, f.name
    assert set(cfg.learner) - {"_target_"} == {f.name for f in dataclasses.fields(NeuralDigits)}


def test_a_learner_setting_that_the_experiment_replaces_raises() -> None:
    cfg = composed("model=ng_deep_graph", "learner.epochs=3")
    with pytest.raises(ArgumentError, match=r"^learner\.epochs: run_ng_deep_graph sets it itself"):
        check_overrides(cfg, ["model=ng_deep_graph", "learner.epochs=3"])
    check_overrides(cfg, ["model=ng_deep_graph", "learner.delta=0.1", "model.epochs=3"])
    with pytest.raises(ArgumentError, match=r"^learner\.ridge\.1: run_splice sets it itself"):
        check_overrides(composed("model=splice"), ["learner.ridge.1=3"])
    check_overrides(composed("model=synthetic"), ["learner.ridge.1=3"])


@pytest.mark.parametrize("model", options("model"))
def test_a_model_file_shows_every_option_of_the_task_with_its_default(model: str) -> None:
    task = instantiate(composed(f"model={model}").model, _convert_="all")
    own_numbers = {"sizes", "repeats"} if model == "digits_comparison" else set()  # the learning curve's task
    declared = settings_class(task.func.__name__)().to_dict()
    shown = {k: as_tuples(v) for k, v in task.keywords.items() if k in declared}
    assert {k: v for k, v in shown.items() if k not in own_numbers} == {
        k: v for k, v in declared.items() if k not in own_numbers
    }
    objects = {"graph", "graphs", "data", "others", "trainer", "network", "verbose"}
    assert set(task.keywords) - set(declared) <= objects


@pytest.mark.parametrize(("graph", "order"), [("hmm", 1), ("hmm_order2", 2), ("hmm_order3", 3)])
def test_hmm_files_differ_in_order(graph: str, order: int) -> None:
    cfg = composed(f"model/graph={graph}", "model.graph.length=8")
    built = instantiate(cfg.model.graph)
    assert len(built.observed) == 8
    assert len(built.parents("h8")) == order


def test_overrides_on_top_of_an_experiment_win() -> None:
    cfg = composed("experiment=synthetic_consistency", "model.sizes=[10]", "debug=default")
    assert cfg.model.sizes == [10]
    assert cfg.model.repeats == 2  # from debug, which is read after the experiment
    assert cfg.model.questions == 2


def test_seed_reaches_the_learner() -> None:
    assert composed("model=synthetic", "seed=17").learner.seed == 17
    assert [m.get("seed") for m in composed("learner=pen_average", "seed=17").learner.members] == [17, 17, None, None]
