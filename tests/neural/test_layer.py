"""A model as a layer: equal to the model, compiled, exported, vectorised, trained through."""

import copy

import pytest
import torch

from torchpbp import PBP, Continuous, DiscreteNetwork, LatentGraph, Nystroem, PBPLayer, templates
from torchpbp.errors import NotFittedError, QueryError, ShapeError


@pytest.fixture(scope="module")
def network():
    return DiscreteNetwork.random(templates.diamond(observed_states=4), seed=1)


@pytest.fixture(scope="module")
def layer(network):
    return PBPLayer(PBP(network.graph).fit_population(network))


@pytest.fixture(scope="module")
def evidence():
    weights = torch.rand(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return {"a1": torch.tensor([0, 1, -1]), "b1": weights}


def test_the_layer_equals_exact_posteriors(layer, network, evidence):
    out, exact = layer(evidence), network.posteriors(evidence)
    assert set(out) == set(network.graph.observed) - {"a1"}
    for v, p in out.items():
        assert torch.allclose(p, exact[v], atol=1e-9)
    assert torch.allclose(layer.log_evidence(evidence), network.log_evidence(evidence), atol=1e-9)
    most = layer.most_probable(evidence)
    assert all(torch.equal(most[v], exact[v].argmax(dim=1)) for v in most)
    assert layer({})["a1"].shape == (1, 4)


@pytest.mark.slow
def test_compiled_without_graph_breaks(layer, evidence):
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    eager = layer(evidence)
    for v, p in compiled(evidence).items():
        assert torch.allclose(p, eager[v], atol=1e-12)


def test_exported_for_serving(layer, evidence):
    program = torch.export.export(layer, (evidence,))
    other = {"a1": torch.tensor([3, -1, 2]), "b1": 0.5 + evidence["b1"]}
    for v, p in program.module()(other).items():
        assert torch.allclose(p, layer(other)[v], atol=1e-12)


def test_vmap_and_functional_gradients(layer):
    weights = torch.rand(5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    one = torch.func.vmap(lambda w: layer({"b1": w.unsqueeze(0)})["d1"].squeeze(0))(weights)
    assert torch.allclose(one, layer({"b1": weights})["d1"], atol=1e-12)
    gradient = torch.func.grad(lambda w: layer.log_evidence({"b1": w}).sum())(weights)
    asked = weights.clone().requires_grad_()
    layer.log_evidence({"b1": asked}).sum().backward()
    assert torch.allclose(gradient, asked.grad)


def test_gradcheck_through_soft_evidence(layer):
    drawn = torch.rand(2, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    weights = (0.2 + drawn).requires_grad_()
    assert torch.autograd.gradcheck(lambda w: tuple(layer({"b1": w, "c1": torch.tensor([1, -1])}).values()), (weights,))


def test_mixed_precision_stops_at_the_layer(layer, evidence):
    single = copy.deepcopy(layer).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = single({"a1": evidence["a1"], "b1": evidence["b1"].bfloat16()})
    assert all(p.dtype == torch.float32 for p in out.values())
    rounded = {"a1": evidence["a1"], "b1": evidence["b1"].bfloat16().double()}
    for v, p in out.items():
        assert torch.allclose(p.double(), layer(rounded)[v], atol=1e-4)


def test_an_upstream_network_learns_through_the_layer(layer, network):
    """An encoder that sees b1 through noise learns to read it from the loss on d1 alone."""
    frozen = copy.deepcopy(layer)
    for p in frozen.parameters():
        p.requires_grad_(False)
    rows = network.sample(2_000, seed=0)
    torch.manual_seed(0)
    code = torch.randn(4, 6, dtype=torch.float64)
    seen = code[rows["b1"]] + 0.3 * torch.randn(2_000, 6, dtype=torch.float64)
    encoder = torch.nn.Linear(6, 4).double()
    optimiser = torch.optim.Adam(encoder.parameters(), lr=0.05)

    def loss():
        posterior = frozen({"b1": torch.softmax(encoder(seen), dim=1), "a1": rows["a1"]})["b2"]
        return -posterior.gather(1, rows["b2"].unsqueeze(1)).log().mean()

    before = loss().item()
    for _ in range(60):
        optimiser.zero_grad()
        loss().backward()
        optimiser.step()
    bound = (
        -network.posterior("b2", {"b1": rows["b1"], "a1": rows["a1"]}).gather(1, rows["b2"].unsqueeze(1)).log().mean()
    )
    assert loss().item() < before - 0.25 * (before - bound.item())


@pytest.mark.parametrize("rank", [None, "auto"])
def test_a_model_that_is_not_fitted_raises_with_the_two_routes(network, rank):
    with pytest.raises(
        NotFittedError, match=r"PBPModule\(model\)\.fit\(table\), or fit it, model\.fit\(table\), and train"
    ):
        PBPLayer(PBP(network.graph, rank=rank))


def test_relaxed_samples(layer, evidence):
    torch.manual_seed(0)
    soft = layer.relaxed_sample(evidence, temperature=0.5)
    assert all(torch.allclose(p.sum(dim=1), torch.ones(3, dtype=torch.float64)) for p in soft.values())
    hard = layer.relaxed_sample(evidence, hard=True)["d1"]
    assert set(hard.unique().tolist()) <= {0.0, 1.0}
    many = torch.stack([layer.relaxed_sample(evidence, hard=True)["d1"].detach() for _ in range(400)]).mean(dim=0)
    assert (many - layer(evidence)["d1"]).abs().max() < 0.12


def test_the_distribution_face(layer, network, evidence):
    given = layer.given(evidence)
    assert given.batch_shape == (3,)
    assert given.event_shape == (8,)
    values = {"d1": torch.tensor([0, 1, 2]), "c2": torch.tensor([3, 3, 0])}
    joint = network.posterior(("d1", "c2"), evidence)
    expected = joint[torch.arange(3), values["d1"], values["c2"]].log()
    assert torch.allclose(given.log_prob(values), expected, atol=1e-8)
    own = given.log_prob({"b1": torch.tensor([0, 1, 2])})  # also when the value was given as weights
    assert torch.allclose(own, network.posterior("b1", evidence)[torch.arange(3), [0, 1, 2]].log(), atol=1e-8)
    draws = given.sample((50, 2), seed=0)
    assert draws["d1"].shape == (50, 2, 3)
    assert (draws["a1"][..., 0] == 0).all()
    with pytest.raises(QueryError, match="already in the evidence"):
        given.log_prob({"a1": torch.tensor([0, 0, 0])})


def test_continuous_evidence():
    graph = LatentGraph(
        [("h", "x"), ("h", "y"), ("h", "c")], {"h": 2, "x": Continuous(), "y": Continuous(), "c": 3}, ["h"]
    )
    torch.manual_seed(0)
    hidden = torch.randint(2, (2_000,))
    data = {
        "x": hidden * 3.0 + torch.randn(2_000),
        "y": hidden * 2.0 + torch.randn(2_000),
        "c": (hidden + torch.randint(2, (2_000,))) % 3,
    }
    layer = PBPLayer(PBP(graph).fit(data))
    evidence = {"x": torch.tensor([0.0, 3.0, float("nan")])}
    out = layer(evidence)
    assert set(out) == {"c"}
    assert torch.allclose(out["c"], layer.model.posterior("c", evidence))
    assert out["c"][0, 0] > out["c"][1, 0]


def test_bad_evidence(layer):
    with pytest.raises(QueryError, match="the layer observes"):
        layer({"nobody": torch.tensor([0])})
    with pytest.raises(ShapeError, match=r"expected shape \(batch, 4\), got \(2, 3\)"):
        layer({"a1": torch.rand(2, 3)})
    with pytest.raises(ShapeError, match="has 3 rows, others have 2"):
        layer({"a1": torch.tensor([0, 1]), "b1": torch.tensor([0, 1, 2])})


def test_invalid_rows_answer_nan_and_leave_the_others_alone(layer):
    good = layer({"a1": torch.tensor([1, -1])})["d1"]
    mixed = {"a1": torch.tensor([1, 4, 5, 99, -2, -1])}
    found = layer(mixed)["d1"]
    assert torch.allclose(found[[0, 5]], good, atol=1e-12)
    assert found[1:5].isnan().all()
    assert layer.log_evidence(mixed).isnan().tolist() == [False, True, True, True, True, False]
    weights = torch.ones(4, 4, dtype=torch.float64)
    weights[1, 0], weights[2, 0], weights[3, 0] = -1.0, float("nan"), float("inf")
    assert layer({"b1": weights})["d1"].isnan().all(dim=1).tolist() == [False, True, True, True]


def test_estimates_keep_signs_and_lead_to_the_answers(layer, evidence):
    found = layer.estimates(evidence)
    answers = layer(evidence)
    assert found.keys() == answers.keys()
    for v, e in found.items():
        weighted = e * evidence[v] if v in evidence else e
        torch.testing.assert_close(weighted / weighted.sum(dim=1, keepdim=True), answers[v], rtol=0, atol=1e-8)
    (alone,) = layer.estimates(evidence, ["d2"]).values()
    torch.testing.assert_close(alone, found["d2"])


@pytest.mark.slow
def test_continuous_evidence_compiles_without_graph_breaks():
    graph = LatentGraph([("h", "x"), ("h", "y"), ("h", "z")], {"h": 2, "x": Continuous(), "y": 3, "z": 3}, ["h"])
    generator = torch.Generator().manual_seed(0)
    h = torch.randint(2, (500,), generator=generator)
    data = {"x": 2.0 * h + torch.randn(500, generator=generator), "y": 2 * h, "z": h}
    layer = PBPLayer(PBP(graph, features=Nystroem(5)).fit(data))
    evidence = {"x": torch.tensor([0.5, torch.nan, 2.0], dtype=torch.float64), "y": torch.tensor([0, 2, -1])}
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(evidence)["z"], layer(evidence)["z"])
