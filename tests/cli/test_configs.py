"""Every file in conf/ composes, and what it describes can be built."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf

from torchpbp import LatentGraph

CONF = Path(__file__).parents[2] / "conf"


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


@pytest.fixture(autouse=True)
def conf() -> Iterator[None]:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield


def all_choices() -> list[str]:
    groups = {path.parent.relative_to(CONF).as_posix() for path in CONF.rglob("*.yaml")} - {"."}
    return [f"{group}={o}" for group in sorted(groups) if not group.startswith("hydra") for o in options(group)]


def test_the_promised_choices_exist() -> None:
    expected = "diamond factorial_hmm grid hmm hmm_order2 hmm_order3 latent_tree loopy_network naive_bayes nested_loops"
    assert set(expected.split()) <= set(options("model/graph"))
    choices = all_choices()
    for choice in ("model=synthetic", "learner=pbp", "debug=default", "experiment=synthetic_consistency"):
        assert choice in choices


@pytest.mark.parametrize("choice", all_choices())
def test_every_choice_composes_and_resolves(choice: str) -> None:
    cfg = compose("config", overrides=[choice, "output_dir=null"])
    resolved = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    assert isinstance(resolved, dict)
    assert {"model", "learner", "seed", "threads", "output_dir"} == set(resolved)


@pytest.mark.parametrize("choice", all_choices())
def test_every_choice_builds_its_graph_task_and_model(choice: str) -> None:
    cfg = compose("config", overrides=[choice, "output_dir=null"])
    task = instantiate(cfg.model, _convert_="all")
    graph = task.keywords["graph"]
    assert isinstance(graph, LatentGraph)
    assert type(task.keywords["sizes"]) is list  # no DictConfig or ListConfig reaches the library
    inspect.signature(task.func).bind(learner=None, **task.keywords)
    model = instantiate(cfg.learner, _convert_="all")(graph)
    assert model.graph is graph


@pytest.mark.parametrize("graph", options("model/graph"))
def test_a_graph_file_shows_every_option_of_its_template(graph: str) -> None:
    cfg = compose("config", overrides=[f"model/graph={graph}"])
    shown = set(cfg.model.graph) - {"_target_"}
    template = getattr(__import__("torchpbp").templates, cfg.model.graph._target_.rpartition(".")[2])
    assert shown == set(inspect.signature(template).parameters)


def test_the_learner_file_shows_every_option_of_the_constructor_with_its_default() -> None:
    learner = instantiate(compose("config").learner, _convert_="all")
    defaults = {p.name: p.default for p in inspect.signature(learner.func).parameters.values() if p.name != "graph"}
    assert {**learner.keywords, "ridge": tuple(learner.keywords["ridge"])} == defaults


def test_the_model_file_shows_every_option_of_the_task_with_its_default() -> None:
    task = instantiate(compose("config").model, _convert_="all")
    given_elsewhere = {"learner", "seed", "output_dir", "graph"}
    defaults = {p.name: p.default for p in inspect.signature(task.func).parameters.values()}
    shown = {**task.keywords, "sizes": tuple(task.keywords["sizes"])}
    del shown["graph"]
    assert shown == {k: v for k, v in defaults.items() if k not in given_elsewhere}


@pytest.mark.parametrize(("graph", "order"), [("hmm", 1), ("hmm_order2", 2), ("hmm_order3", 3)])
def test_hmm_files_differ_in_order(graph: str, order: int) -> None:
    cfg = compose("config", overrides=[f"model/graph={graph}", "model.graph.length=8"])
    built = instantiate(cfg.model.graph)
    assert len(built.observed) == 8
    assert len(built.parents("h8")) == order


def test_overrides_on_top_of_an_experiment_win() -> None:
    cfg = compose("config", overrides=["experiment=synthetic_consistency", "model.sizes=[10]", "debug=default"])
    assert cfg.model.sizes == [10]
    assert cfg.model.repeats == 2  # from debug, which is read after the experiment
    assert cfg.model.questions == 2


def test_seed_reaches_the_learner() -> None:
    assert compose("config", overrides=["seed=17"]).learner.seed == 17
