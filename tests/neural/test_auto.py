"""Ridge or nets, by a test on held-out rows."""

from __future__ import annotations

import logging

import pytest
import torch

import torchpbp
from torchpbp import PBP, AutoRegressor, Continuous, DiscreteNetwork, LatentGraph, Nystroem, Ridge, templates
from torchpbp.errors import ArgumentError
from torchpbp.exact import noisy_parity

QUICK = {"hidden": [16], "epochs": 2, "trainer": {"enable_progress_bar": False}}
PARITY = noisy_parity(templates.parity(), 1, concentration=0.5)


def operators(model: PBP) -> list[torch.Tensor]:
    return [model.root.weight.detach(), *(op.weight.detach() for op in model.separator_operators)]


@pytest.mark.parametrize("graph", [templates.latent_tree(2), templates.hmm(4), templates.diamond()], ids=str)
def test_where_linear_regression_does_the_model_is_that_of_ridge(graph):
    data = DiscreteNetwork.random(graph, seed=5).sample(3_000, seed=1)
    chosen = PBP(graph, regressor=AutoRegressor(**QUICK)).fit(data)
    assert chosen.regressor_choice.startswith("Ridge: nets tell no more than linear regression at any of")
    assert chosen.stage1 is None
    for a, b in zip(operators(chosen), operators(PBP(graph, regressor=Ridge()).fit(data)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


def test_where_linear_regression_is_blind_nets_are_trained(caplog):
    with caplog.at_level(logging.INFO, "torchpbp.neural.auto"):
        model = PBP(PARITY.graph, regressor=AutoRegressor(**QUICK)).fit(PARITY.sample(5_000, seed=1))
    assert model.regressor_choice.startswith("MLP: nets tell more than linear regression at ")
    assert model.stage1 is not None
    assert model.regressor_choice in caplog.text


def test_noise_rarely_makes_it_train():
    """Independent columns: nothing can be told of anything."""
    graph, trained = templates.naive_bayes(4, states=2, observed_states=3), 0
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        data = {v: torch.randint(3, (400,), generator=generator) for v in graph.observed}
        trained += PBP(graph, regressor=AutoRegressor(**QUICK)).fit(data).stage1 is not None
    assert trained <= 1  # 0.04 expected


def test_continuous_variables_and_populations():
    graph = LatentGraph(
        [("h", "x"), ("h", "y"), ("h", "z")], {"h": 2, "x": Continuous(), "y": Continuous(), "z": 3}, latent=["h"]
    )
    generator = torch.Generator().manual_seed(0)
    h = torch.randint(2, (1_000,), generator=generator)
    data = {"x": h + torch.randn(1_000, generator=generator), "y": h - torch.randn(1_000, generator=generator), "z": h}
    model = PBP(graph, features=Nystroem(6), regressor=AutoRegressor(**QUICK)).fit(data)
    assert model.regressor_choice
    population = PBP(PARITY.graph, regressor=AutoRegressor(**QUICK)).fit_population(PARITY)
    assert population.regressor_choice.startswith("MLP")


def test_the_name_stands_for_the_default_and_the_choice_is_in_the_file(tmp_path):
    graph = templates.hmm(4)
    model = PBP(graph, regressor="auto")
    assert isinstance(model.regressor, AutoRegressor)
    assert model.regressor_choice == ""
    model.fit(DiscreteNetwork.random(graph, seed=5).sample(1_000, seed=1))
    model.save(tmp_path / "model.pt")
    assert torchpbp.load(tmp_path / "model.pt").regressor_choice == model.regressor_choice != ""
    with pytest.raises(ArgumentError, match="or 'auto', got 'best'"):
        PBP(graph, regressor="best")
