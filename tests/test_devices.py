"""Modules follow their parameters to any device.

Where there is no GPU, the meta device stands in: its tensors have shapes but no values, and do not mix with others.
"""

from __future__ import annotations

import copy

import pytest
import torch

from torchpbp import PBP, Continuous, DiscreteNetwork, LatentGraph, LeastSquaresLayer, Nystroem, PBPLayer, templates
from torchpbp.features.maps import OneHot
from torchpbp.learning.nets import HiddenNets, Inputs, NetsInTraining
from torchpbp.moments.rows import TrainingRows

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(scope="module")
def discrete() -> PBP:
    network = DiscreteNetwork.random(templates.diamond(), seed=0)
    return PBP(network.graph, dtype=torch.float32).fit(network.sample(2_000, seed=1))


@pytest.fixture(scope="module")
def mixed() -> PBP:
    graph = LatentGraph([("h", "x"), ("h", "y"), ("h", "z")], {"h": 2, "x": Continuous(), "y": 3, "z": 3}, ["h"])
    generator = torch.Generator().manual_seed(0)
    h = torch.randint(2, (500,), generator=generator)
    noise = torch.randn(500, generator=generator)
    return PBP(graph, features=Nystroem(5)).fit({"x": 2.0 * h + noise, "y": 2 * h, "z": h})


def nets() -> tuple[NetsInTraining, TrainingRows]:
    rows = TrainingRows.of(
        {"a": torch.tensor([0, 1, 1]), "b": torch.tensor([2, 0, 1])}, {"a": OneHot(2), "b": OneHot(3)}
    )
    hidden = HiddenNets(Inputs([("a",)], {"a": 2, "b": 3}), 2, [4], torch.float32)
    return NetsInTraining(hidden, [[0]], [3]), rows


@pytest.mark.parametrize("device", DEVICES)
def test_answers_are_the_same_on_every_device(discrete, device):
    layer = PBPLayer(discrete)
    evidence = {"a1": torch.tensor([0, 2, -1]), "b1": torch.rand(3, 6, generator=torch.Generator().manual_seed(0))}
    expected = layer(evidence)
    moved = PBPLayer(copy.deepcopy(discrete)).to(device)
    found = moved({v: x.to(device) for v, x in evidence.items()})
    for v, p in expected.items():
        assert found[v].device.type == device
        torch.testing.assert_close(found[v].cpu(), p, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_fit_leaves_the_model_on_its_device(device):
    network = DiscreteNetwork.random(templates.hmm(4), seed=0)
    model = PBP(network.graph).to(device).fit({v: x.to(device) for v, x in network.sample(500, seed=1).items()})
    assert {p.device.type for p in model.parameters()} == {device}
    assert model.posterior("x1", {"x2": torch.tensor([0], device=device)}).device.type == device


def test_the_layer_stays_on_a_device_without_values(discrete, mixed):
    for model, given in ((discrete, {"a1": (5,), "b1": (5, 6)}), (mixed, {"x": (5,), "y": (5, 3)})):
        layer = PBPLayer(copy.deepcopy(model)).to("meta")
        evidence = {
            v: torch.empty(s, device="meta")
            if len(s) == 2 or v == "x"
            else torch.empty(s, dtype=torch.int64, device="meta")
            for v, s in given.items()
        }
        answers = layer(evidence)
        logs = layer.log_evidence(evidence)
        assert logs.is_meta
        assert logs.shape == (5,)
        assert all(p.is_meta for p in answers.values())
        sum(p.sum() for p in answers.values()).backward()
        assert all(p.grad is None or p.grad.is_meta for p in layer.parameters())


def test_stage_one_nets_and_least_squares_stay_on_a_device_without_values():
    module, rows = nets()
    module = module.to("meta")
    there = rows.to("meta")
    losses = module.losses(there, [torch.empty(3, 1, 3, device="meta")], torch.empty(2, 3, device="meta"))
    eta = module.hidden.eta(module.hidden.inputs.of_rows(there, torch.float32))
    weight = LeastSquaresLayer(intercept=True)(torch.empty(9, 2, device="meta"), torch.empty(9, 3, device="meta"))
    losses.sum().backward()
    assert losses.is_meta
    assert eta.is_meta
    assert weight.is_meta
    assert weight.shape == (2, 4)


def test_a_tensor_left_behind_would_be_noticed(discrete):
    layer = PBPLayer(copy.deepcopy(discrete)).to("meta")
    with pytest.raises(RuntimeError, match="device"):
        layer({"a1": torch.ones(5, 6)})
