"""Tables in, tables out: labels, the index, densities of continuous variables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from torchpbp import (
    EM,
    PBP,
    Continuous,
    DiscreteNetwork,
    KernelPBP,
    LatentGraph,
    SpectralJunctionTree,
    load,
    templates,
)
from torchpbp.errors import LabelWarning, QueryError

COLOURS = ["red", "green", "blue"]
WHO = pd.DataFrame({"x2": [0, 1, None], "x3": [1, None, 0]}, index=pd.Index(["Ann", "Ben", "Cem"], name="who"))


@pytest.fixture(scope="module")
def truth() -> DiscreteNetwork:
    return DiscreteNetwork.random(templates.naive_bayes(4, observed_states=3), seed=3)


@pytest.fixture(scope="module")
def data(truth: DiscreteNetwork) -> pd.DataFrame:
    """x1 by colours in an order of their own, the others by number."""
    frame = truth.sample_frame(400, seed=1)
    codes = frame["x1"].to_numpy()
    return frame.assign(x1=pd.Categorical.from_codes(codes.tolist(), COLOURS))


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def test_samples_are_tables_that_can_be_learned_from(
    truth: DiscreteNetwork, data: pd.DataFrame, tmp_path: Path
) -> None:
    model = PBP(truth.graph).fit(data)
    rows = model.sample_frame(300, seed=5)
    assert rows.shape == (300, 4)
    assert rows["x1"].cat.categories.tolist() == COLOURS
    assert rows["x1"].cat.codes.tolist() == model.sample(300, seed=5)["x1"].tolist()
    again = PBP(truth.graph).fit(rows)
    assert again.labels == model.labels
    given = model.sample_frame(5, WHO, seed=5)
    assert given.index.names == ["who", "draw"]
    drawn = model.sample(5, WHO, seed=5)
    assert given["x4"].unstack("who")[WHO.index].to_numpy().tolist() == drawn["x4"].tolist()
    assert given.loc["Ann", "x2"].tolist() == [0] * 5
    model.save(tmp_path / "model.pt")
    pd.testing.assert_frame_equal(load(tmp_path / "model.pt").sample_frame(300, seed=5), rows)


def test_learners_hand_their_labels_to_the_network_they_learned(
    truth: DiscreteNetwork, data: pd.DataFrame, tmp_path: Path
) -> None:
    em = EM(truth.graph, restarts=1, max_steps=5, progress=False).fit(data)
    em.save(tmp_path / "em.pt")
    for learner in (em, EM.load(tmp_path / "em.pt")):
        hidden = learner.network.posterior("h", pd.DataFrame({"x1": ["green", "blue"]}))
        assert hidden.shape == (2, truth.graph.num_states("h"))
        assert learner.network.map_states("x1", {"x2": [0]}).iloc[0] in COLOURS


def test_indices_are_kept_only_where_they_say_something(truth: DiscreteNetwork) -> None:
    named, other = pd.Series([0, 1], index=["a", "b"]), pd.Series([0, 1], index=["c", "d"])
    assert truth.map_states("x1", {"x2": named, "x3": 0}).index.tolist() == ["a", "b"]
    assert truth.map_states("x1", {"x2": named, "x3": named}).index.tolist() == ["a", "b"]
    assert truth.map_states("x1", {"x2": named, "x3": other}).index.tolist() == [0, 1]
    assert truth.map_states("x1", {"x2": [0, 1]}).index.tolist() == [0, 1]
    assert len(truth.map_states("x1")) == 1


def test_states_without_a_label_go_by_their_number(truth: DiscreteNetwork, data: pd.DataFrame) -> None:
    few = data[data["x1"] != "blue"].assign(x1=lambda f: f["x1"].cat.remove_unused_categories())
    with pytest.warns(LabelWarning, match=r"'x1' \(2 of 3\)"):
        model = EM(truth.graph, restarts=1, max_steps=2, progress=False).fit(few)
    assert model.posterior("x1", WHO).columns.tolist() == ["red", "green", 2]
    plain = truth.sample_frame(20, seed=0)
    assert (plain.dtypes == np.int64).all()


def test_continuous_variables_are_summed_up() -> None:
    graph = LatentGraph(
        [("h", "a"), ("h", "b"), ("h", "c")], {"h": 2, "a": Continuous(), "b": Continuous(), "c": 2}, ["h"]
    )
    rng = np.random.default_rng(0)
    h = rng.integers(2, size=300)
    table = pd.DataFrame({"a": h + 0.3 * rng.normal(size=300), "b": h + 0.3 * rng.normal(size=300), "c": h})
    model = KernelPBP(graph).fit(table)
    evidence = pd.DataFrame({"b": [0.0, 1.0]}, index=["low", "high"])
    frame = model.posterior("a", evidence)
    density = model.posterior("a", {"b": [0.0, 1.0]})
    assert frame.columns.tolist() == ["mean", "std", "5%", "50%", "95%"]
    assert np.allclose(frame["mean"], density.mean)
    assert np.allclose(frame["50%"], density.quantile(0.5))
    assert frame.loc["low", "mean"] < frame.loc["high", "mean"]
    at = model.posterior("a", evidence, at=[0.0, 1.0])
    assert at.columns.tolist() == [0.0, 1.0]
    assert np.allclose(at, model.posterior("a", {"b": [0.0, 1.0]}, at=[0.0, 1.0]))
    assert set(model.posteriors(evidence).columns.get_level_values(0)) == {"a", "c"}
    with pytest.raises(QueryError, match="'a': it is continuous and has no states"):
        model.map_states("a", evidence)


def test_numbers_that_are_labels(truth: DiscreteNetwork, tmp_path: Path) -> None:
    """Years as categories, then read back from a file as plain numbers."""
    frame = truth.sample_frame(300, seed=1)
    years = frame.assign(x1=pd.Categorical.from_codes(frame["x1"].tolist(), [2020, 2021, 2022]))
    model = PBP(truth.graph).fit(years)
    years.to_csv(tmp_path / "years.csv", index=False)
    read = pd.read_csv(tmp_path / "years.csv")
    assert model.map_states("x1", {"x2": [0]}).cat.categories.tolist() == [2020, 2021, 2022]
    assert np.array_equal(model.posterior("x2", read[["x1"]]), model.posterior("x2", years[["x1"]]))
    gap = pd.DataFrame({"x1": read["x1"].where(read.index % 2 == 0)})
    expected = model.posterior("x2", {"x1": torch.where(torch.arange(300) % 2 == 0, torch.tensor(frame["x1"]), -1)})
    assert np.allclose(model.posterior("x2", gap), expected)
    model.partial_fit(read)
    assert int(model.rows) == 600
    shares = years["x1"].value_counts(normalize=True)[[2020, 2021, 2022]]
    assert np.allclose(model.posterior("x1")[0], shares, atol=1e-3)


@pytest.mark.parametrize("learner", [PBP, SpectralJunctionTree])
def test_labels_of_a_network_go_to_models_of_its_population(truth: DiscreteNetwork, learner: Any) -> None:
    network = DiscreteNetwork(truth.graph, truth.cpts)
    network.labels = {"x1": tuple(COLOURS), "h": ("a", "b", "c")}
    model = learner(truth.graph).fit_population(network)
    assert model.labels == {"x1": tuple(COLOURS)}
    for seen in ("red", "blue"):
        expected = network.posterior("x2", {"x1": [seen]})
        assert np.allclose(model.posterior("x2", {"x1": [seen]}), expected, atol=1e-6)
    assert model.fit_population(truth).labels == {}
