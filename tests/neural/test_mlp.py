"""Training of stage-1 networks: seeds, folds, hidden values, divergence."""

from __future__ import annotations

import warnings

import pytest
import torch
from lightning.pytorch import Trainer
from torch import Tensor

from torchpbp import MLP, PBP, DiscreteNetwork, templates
from torchpbp.errors import DataError
from torchpbp.learning.cross_fitting import CrossFitting
from torchpbp.learning.message_nets import InstrumentNets
from torchpbp.moments.rows import TrainingRows
from torchpbp.neural.batches import Orders
from torchpbp.neural.mlp import NetTraining

NETWORK = DiscreteNetwork.random(templates.hmm(4), seed=0)
DATA = NETWORK.sample(600, seed=1)


def model(**settings) -> PBP:
    """A model whose instruments are predictions alone: the operators depend on all that training does."""
    usual = {"hidden": [8], "folds": 2, "epochs": 6, "linear": False}
    return PBP(NETWORK.graph, regressor=MLP(**{**usual, **settings}))


def operators(fitted: PBP) -> list[Tensor]:
    """Parameters of the operators and of the networks."""
    assert fitted.stage1 is not None
    return [p.detach() for p in fitted.parameters()]


def same(a: PBP, b: PBP) -> bool:
    return all(torch.equal(x, y) for x, y in zip(operators(a), operators(b), strict=True))


def test_same_seed_same_operators_and_another_seed_others():
    first = model(seed=3).fit(DATA)
    assert same(first, model(seed=3).fit(DATA))
    assert not same(first, model(seed=4).fit(DATA))


def trained(monkeypatch, data: dict[str, Tensor], **settings) -> CrossFitting:
    """The networks of a fit, in double precision."""
    found: list[CrossFitting] = []
    original = NetTraining.run

    def run(self: NetTraining, options) -> None:
        original(self, options)
        found.append(self.fitting)

    with monkeypatch.context() as patch:
        patch.setattr(NetTraining, "run", run)
        model(dtype=torch.float64, **settings).fit(data)
    return found[0]


def test_networks_of_a_fold_do_not_depend_on_its_rows(monkeypatch):
    """Labels of the rows of a fold are exchanged: the gradient of its networks stays the same, that of the others does not."""
    fitting = trained(monkeypatch, DATA, folds=3, epochs=1)
    assert sorted(fitting.fold.bincount().tolist()) == [200, 200, 200]
    rows, everything = fitting.rows, torch.arange(600)
    gradients = []
    for shift in (0, 1):
        states = rows.states.clone()
        chosen = fitting.fold == 1
        states[chosen] = states[chosen].roll(shift, dims=0)
        states[chosen, 0] = states[chosen, 0].roll(shift, dims=0)
        fitting.rows = TrainingRows(rows.names, rows.maps, states)
        for nets in fitting.nets:
            nets.requires_grad_(True).train().zero_grad()
        fitting.loss(everything, torch.ones(600, 4, dtype=torch.bool), torch.device("cpu")).backward()
        gradients.append([torch.cat([p.grad.flatten() for p in nets.parameters()]) for nets in fitting.nets])
    unchanged = [torch.equal(a, b) for a, b in zip(*gradients, strict=True)]
    assert unchanged == [False, True, False]


def test_heads_are_least_squares_on_the_rows_outside_the_fold(monkeypatch):
    fitting = trained(monkeypatch, DATA, folds=2, epochs=1)
    everything = torch.arange(600)
    leaves = fitting.rows.leaves()
    found = dict(zip(fitting.nodes, fitting.predict(fitting.rows, everything), strict=True))
    targets = dict(zip(fitting.nodes, fitting.targets(fitting.rows), strict=True))
    for k, nets in enumerate(fitting.nets):
        eta = nets.instrument_features(leaves, leaves.seen)
        outside, inside = fitting.fold != k, fitting.fold == k
        for node, y in targets.items():
            x = eta[node]
            ridge = 1e-3 * torch.eye(x.shape[1], dtype=x.dtype)
            ridge[0, 0] = 0.0
            gram = x[outside].T @ x[outside] / int(outside.sum()) + ridge
            head = torch.linalg.solve(gram, x[outside].T @ y[outside] / int(outside.sum()))
            torch.testing.assert_close(found[node][inside], x[inside] @ head, rtol=1e-6, atol=1e-8)
            torch.testing.assert_close(x[outside].mean(dim=0)[1:], torch.zeros(x.shape[1] - 1, dtype=x.dtype))


def test_the_loss_is_the_unexplained_share_of_core_features(monkeypatch):
    """The mean squared error of least squares on the networks' outputs, divided by the variance."""
    fitting = trained(monkeypatch, DATA, folds=2, epochs=1)
    positions, shown = torch.arange(0, 600, 2), torch.ones(300, 4, dtype=torch.bool)
    found = fitting.loss(positions, shown, torch.device("cpu"))
    part = fitting.rows[positions]
    leaves = part.leaves()
    shares: list[Tensor] = []
    for k, nets in enumerate(fitting.nets):
        chosen = fitting.fold[positions] != k
        eta = nets.instrument_features(leaves, leaves.seen)
        for node, y in zip(fitting.nodes, fitting.targets(part), strict=True):
            x = eta[node][chosen][:, 1:]
            x = x - x.mean(dim=0)
            centred = y[chosen] - y[chosen].mean(dim=0)
            gram = x.T @ x / len(x) + 1e-2 * torch.eye(x.shape[1], dtype=x.dtype)
            cross = x.T @ centred / len(x)
            explained = (cross * torch.linalg.solve(gram, cross)).sum(dim=0)
            shares.append(1 - explained / centred.square().mean(dim=0))
    expected = torch.stack([s.mean() for s in shares]).sum()
    torch.testing.assert_close(found, expected)


def test_shares_of_an_order_cover_each_batch():
    parts = [Orders(100, 4, True, 5, before, own) for before, own in ((0, 37), (37, 63))]
    for order in parts:
        order.set_epoch(2)
    every = Orders(100, 4, True, 5, 0, 100)
    every.set_epoch(2)
    for shares, batch in zip(zip(*parts, strict=True), every, strict=True):
        together = torch.cat([shares[0], shares[1] + 37])
        assert sorted(together.tolist()) == sorted(batch.tolist())
    assert sorted(torch.cat(list(every)).tolist()) == list(range(100))
    assert not torch.equal(torch.cat(list(Orders(100, 4, True, 5))), torch.cat(list(every)))


def test_a_loss_that_is_not_finite_raises(monkeypatch):
    original = InstrumentNets.instrument_features

    def spoiled(self: InstrumentNets, *args) -> dict[int, Tensor]:
        return {n: x * torch.nan for n, x in original(self, *args).items()}

    monkeypatch.setattr(InstrumentNets, "instrument_features", spoiled)
    with pytest.raises(DataError, match=r"the loss is not finite in epoch 1. Lower learning_rate="):
        model().fit(DATA)


def test_trainer_settings_reach_lightning(monkeypatch):
    seen = {}

    def recorded(self, *args, **kwargs):
        seen.update(kwargs)
        raise StopIteration

    monkeypatch.setattr(Trainer, "__init__", recorded)
    with pytest.raises(StopIteration), warnings.catch_warnings():
        model(trainer={"accelerator": "gpu", "devices": 4, "strategy": "ddp"}).fit(DATA)
    assert (seen["accelerator"], seen["devices"], seen["strategy"]) == ("gpu", 4, "ddp")


def test_hidden_values_are_part_of_training():
    assert not same(model(missing=0.0).fit(DATA), model(missing=0.5).fit(DATA))


def test_networks_are_in_the_state_of_an_unfitted_model():
    unfitted, fitted = model(), model(epochs=1).fit(DATA)
    shapes = [{k: x.shape for k, x in m.state_dict().items() if k.startswith("stage1.")} for m in (unfitted, fitted)]
    assert shapes[0]
    assert shapes[0] == shapes[1]
