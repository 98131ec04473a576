"""Nets of stage 1 as part of a model: predicted messages, state, files."""

from __future__ import annotations

import copy

import pytest
import torch

import torchpbp
from torchpbp import MLP, PBP, Continuous, DiscreteNetwork, KernelRidge, LatentGraph, Nystroem, templates
from torchpbp.errors import CheckpointError, NotFittedError, QueryError, StructureError
from torchpbp.io import read_file, write_file
from torchpbp.learning.message_nets import InstrumentNets

NETWORK = DiscreteNetwork.random(templates.hmm(4, states=2, observed_states=3), seed=0, concentration=0.3)
EVIDENCE = {"x1": [0, 2, -1], "x2": [1, -1, -1], "x3": [0, 1, -1], "x4": [2, 2, -1]}


@pytest.fixture(scope="module")
def fitted() -> PBP:
    regressor = MLP(hidden=[16])
    return PBP(NETWORK.graph, regressor=regressor).fit(NETWORK.sample(20_000, seed=0))


def same(a: PBP, b: PBP, evidence=None) -> bool:
    ours, theirs = (m.predicted_messages(EVIDENCE if evidence is None else evidence) for m in (a, b))
    assert list(ours) == list(theirs)
    return all(torch.equal(x, y) for s in ours for x, y in zip(ours[s], theirs[s], strict=True))


def test_messages_and_products_have_the_shapes_of_the_operators(fitted):
    predicted = fitted.predicted_messages(EVIDENCE)
    assert list(predicted) == fitted.diagnostics()["separator"].tolist()
    for operator, (message, products) in zip(fitted.operators.separator_operators, predicted.values(), strict=True):
        rank, *below = operator.weight.shape
        assert message.shape == (3, rank)
        assert products.shape == (3, *below)
        torch.testing.assert_close(message[:, 0], torch.ones(3, dtype=torch.float64))


def leaf_errors(model: PBP, evidence: dict[str, torch.Tensor]) -> float:
    """Largest mean absolute error of P(leaf | what is seen of the others), which is what S1B says at a leaf."""
    worst = 0.0
    predicted = model.predicted_messages(evidence)
    for s in model.plan.separators:
        if not model.tree.leaf_observables[s.node]:
            continue
        (leaf,) = model.tree.leaf_observables[s.node]
        exact = NETWORK.posterior(leaf, {v: x for v, x in evidence.items() if v != leaf})
        products = predicted[model.tree.separator_name(s.node)].products
        worst = max(worst, float((products - exact).abs().mean()))
    return worst


def some_of(rows: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {v: x.where(torch.rand(len(x), generator=generator) < 0.5, -1) for v, x in rows.items()}


def test_nets_predict_leaves_from_complete_and_from_incomplete_evidence(fitted):
    """0.066 is the error of marginals, which ignore all evidence, on complete rows."""
    rows = NETWORK.sample(300, seed=5)
    assert leaf_errors(fitted, rows) < 0.02
    assert leaf_errors(fitted, some_of(rows)) < 0.025
    assert leaf_errors(fitted, {v: torch.full_like(x, -1) for v, x in rows.items()}) < 0.025


def test_nets_that_have_always_seen_everything_are_worse_without(fitted):
    spoiled = PBP(NETWORK.graph, regressor=MLP(hidden=[16], missing=0.0))
    spoiled.fit(NETWORK.sample(20_000, seed=0))
    rows = some_of(NETWORK.sample(300, seed=5))
    assert leaf_errors(spoiled, rows) > 1.5 * leaf_errors(fitted, rows)


def test_without_evidence_predictions_are_the_same_in_every_row_and_own_evidence_does_not_count(fitted):
    predicted = fitted.predicted_messages(EVIDENCE)
    assert same(fitted, fitted, {})
    alone = fitted.predicted_messages()
    for name, (message, products) in predicted.items():
        torch.testing.assert_close(message[2:], alone[name].message)
        torch.testing.assert_close(products[2:], alone[name].products)
    changed = fitted.predicted_messages({**EVIDENCE, "x4": [0, 1, 0]})
    own = next(fitted.tree.separator_name(n) for n in fitted.tree.leaves if fitted.tree.leaf_observables[n] == ("x4",))
    assert torch.equal(changed[own].message, predicted[own].message)


@pytest.mark.parametrize("name", ["hmm", "diamond", "parity"])
def test_in_the_population_stage_two_leads_from_one_head_to_the_other(name):
    """Both heads look at the same η: W takes what S1A says to what S1B says, however poor the nets are."""
    graph = {
        "hmm": templates.hmm(4, states=2, observed_states=3),
        "diamond": templates.diamond(states=2, observed_states=3, leaves=1),
        "parity": templates.parity(leaves=1, observed_states=3),
    }[name]
    network = DiscreteNetwork.random(graph, seed=3)
    regressor = MLP(hidden=[6], epochs=1, missing=0.0, dtype=torch.float64)
    model = PBP(graph, regressor=regressor).fit_population(network)
    predicted = model.predicted_messages(network.sample(20, seed=1))
    for operator, (message, products) in zip(model.operators.separator_operators, predicted.values(), strict=True):
        led = torch.einsum("bm,m...->b...", message, operator.weight)
        torch.testing.assert_close(led.detach(), products, atol=1e-6, rtol=0)


def test_predictions_are_averages_over_the_folds(fitted):
    alone = []
    for k in range(2):
        single = copy.deepcopy(fitted)
        assert isinstance(single.stage1, InstrumentNets)
        for tensor in single.stage1.state_dict().values():
            tensor.copy_(tensor[[k, k]])
        alone.append(single.predicted_messages(EVIDENCE))
    for name, (message, products) in fitted.predicted_messages(EVIDENCE).items():
        torch.testing.assert_close(message, (alone[0][name].message + alone[1][name].message) / 2)
        torch.testing.assert_close(products, (alone[0][name].products + alone[1][name].products) / 2)
        assert not torch.equal(alone[0][name].products, alone[1][name].products)


# -- continuous variables and classes --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixed() -> PBP:
    graph = LatentGraph(
        [("h", "x"), ("h", "y"), ("h", "z")], {"h": 2, "x": Continuous(), "y": Continuous(), "z": 3}, latent=["h"]
    )
    generator = torch.Generator().manual_seed(0)
    h = torch.randint(2, (3_000,), generator=generator)
    data = {
        "x": 2.0 * h + torch.randn(3_000, generator=generator),
        "y": -2.0 * h + torch.randn(3_000, generator=generator),
        "z": torch.where(torch.rand(3_000, generator=generator) < 0.8, 2 * h, torch.ones_like(h)),
    }
    return PBP(graph, features=Nystroem(6), regressor=MLP(hidden=[8])).fit(data)


def test_continuous_variables(mixed):
    evidence = {"x": torch.tensor([-1.0, 3.0, torch.nan]), "y": torch.tensor([1.0, torch.nan, torch.nan])}
    (leaf,) = [s for s in mixed.predicted_messages(evidence) if "above {z}" in s]
    expected = torch.tensor([[0.8, 0.2, 0.0], [0.0, 0.2, 0.8], [0.4, 0.2, 0.4]])
    assert float((mixed.predicted_messages(evidence)[leaf].products - expected).abs().max()) < 0.15


def test_a_model_of_classes_has_nets_of_each():
    graph = LatentGraph(
        [("h", "x"), ("h", "y"), ("h", "z"), ("c", "h")], {"h": 2, "x": 3, "y": 3, "z": 3, "c": 2}, latent=["h"]
    )
    network = DiscreteNetwork.random(graph, seed=4)
    regressor = MLP(hidden=[4], epochs=2)
    model = PBP(graph, condition="c", regressor=regressor).fit(network.sample(2_000, seed=0))
    evidence = {"x": [0, 1, -1], "y": [2, -1, -1]}
    for operator, (message, products) in zip(
        model.operators.separator_operators, model.predicted_messages(evidence).values(), strict=True
    ):
        classes, rank, *below = operator.weight.shape
        assert message.shape == (classes, 3, rank)
        assert products.shape == (classes, 3, *below)
    with pytest.raises(QueryError, match="'c' is the condition"):
        model.predicted_messages({"c": [0]})


# -- state and files -------------------------------------------------------------------------------------------------


def test_nets_are_in_the_state_the_copy_and_the_text(fitted):
    names = [name for name in fitted.state_dict() if name.startswith("stage1.")]
    assert {"stage1.instruments_.0.weights.0", "stage1.instruments_.0.mean", "stage1.head_a0", "stage1.head_b0"} <= set(
        names
    )
    assert not any(p.requires_grad for p in fitted.stage1.parameters())
    assert same(fitted, copy.deepcopy(fitted))
    assert "InstrumentNets" in repr(fitted)
    assert "parameters in stage-1 nets" in str(fitted)
    moved = copy.deepcopy(fitted).to("meta")
    assert all(t.is_meta for t in (*moved.stage1.parameters(), *moved.stage1.buffers()))


@pytest.mark.parametrize("make", ["fitted", "mixed"])
def test_a_loaded_model_predicts_the_same(make, request, tmp_path):
    model = request.getfixturevalue(make)
    evidence = EVIDENCE if make == "fitted" else {"x": torch.tensor([0.3, torch.nan]), "z": [1, 2]}
    model.save(tmp_path / "model.pt")
    assert same(model, torchpbp.load(tmp_path / "model.pt"), evidence)


def test_classes_are_loaded_too(tmp_path):
    graph = LatentGraph(
        [("h", "x"), ("h", "y"), ("h", "z"), ("c", "h")], {"h": 2, "x": 3, "y": 3, "z": 3, "c": 2}, latent=["h"]
    )
    data = DiscreteNetwork.random(graph, seed=4).sample(500, seed=0)
    model = PBP(graph, condition="c", regressor=MLP(hidden=[4], epochs=1)).fit(data)
    model.save(tmp_path / "model.pt")
    loaded, evidence = torchpbp.load(tmp_path / "model.pt"), {"x": [0, 1], "y": [2, -1]}
    assert same(model, loaded, evidence)
    fresh = PBP(graph, condition="c", regressor=MLP(hidden=[4]))
    fresh.load_state_dict(model.state_dict())
    assert same(model, fresh, evidence)


def test_a_fresh_model_takes_nets_from_a_state(fitted):
    fresh = PBP(NETWORK.graph, regressor=MLP(hidden=[16]))
    fresh.load_state_dict(fitted.state_dict())
    assert same(fitted, fresh)


def test_another_fit_replaces_the_nets(fitted):
    model = copy.deepcopy(fitted)
    model.regressor = torchpbp.Ridge()
    model.fit(NETWORK.sample(500, seed=1))
    assert model.stage1 is None
    assert not any(name.startswith("stage1.") for name in model.state_dict())


def changed_file(model: PBP, path, change) -> None:
    model.save(path)
    content = read_file(path)
    change(content)
    write_file(path, content)


def test_files_whose_nets_do_not_fit_raise(fitted, tmp_path):
    path = tmp_path / "model.pt"
    for change, message in (
        (lambda c: c["nets"]["settings"].update(hidden=[17]), r"stage1\.instruments_\.0\.weights\.0: expected shape"),
        (lambda c: c["nets"]["settings"].update(folds=3), r"stage1\.\S+: expected shape"),
        (lambda c: c["state"].pop("stage1.head_b0"), r"stage1\.head_b0: missing in the file"),
        (lambda c: c["state"]["stage1.head_a0"].fill_(torch.nan), "expected finite numbers"),
    ):
        changed_file(fitted, path, change)
        with pytest.raises(CheckpointError, match=message):
            torchpbp.load(path)


# -- errors ----------------------------------------------------------------------------------------------------------


def test_models_without_nets_say_so(fitted):
    with pytest.raises(NotFittedError, match="not fitted yet"):
        PBP(NETWORK.graph, regressor=MLP()).predicted_messages(EVIDENCE)
    data = NETWORK.sample(500, seed=1)
    for regressor in (None, KernelRidge(landmarks=20)):
        with pytest.raises(StructureError, match=r"has no nets, its regressor.*regressor=MLP\(\)"):
            PBP(NETWORK.graph, regressor=regressor).fit(data).predicted_messages(EVIDENCE)
    with pytest.raises(QueryError, match="weights of states of x1"):
        fitted.predicted_messages({"x1": torch.tensor([[0.2, 0.5, 0.3]])})
