"""Asking a fitted model: shapes, evidence patterns, bad questions, sampling, precision and gradients."""

import copy

import numpy as np
import pytest
import torch

from torchpbp import PBP, DiscreteNetwork, templates
from torchpbp.errors import ArgumentError, DataError, NotFittedError, QueryError, ShapeError


@pytest.fixture(scope="module")
def network():
    return DiscreteNetwork.random(templates.diamond(observed_states=4), seed=2)


@pytest.fixture(scope="module")
def exact(network):
    return PBP(network.graph).fit_population(network)


@pytest.fixture(scope="module")
def model(network):
    return PBP(network.graph).fit(network.sample(2_000, seed=1))


def test_shapes_and_broadcasting(model):
    assert model.posterior("a1").shape == (1, 4)
    assert model.posterior("a1", {"b1": 2}).shape == (1, 4)
    assert model.posterior("a1", {"b1": [0, 1, 2], "c1": 3}).shape == (3, 4)
    assert model.log_evidence({"b1": [0, 1, 2]}).shape == (3,)
    assert model.log_evidence().shape == (1,)
    assert model.log_evidence().abs().item() < 1e-12  # P(no evidence) = 1
    assert set(model({"b1": [0]})) == set(model.states) - {"b1"}


def test_rows_with_different_patterns_equal_rows_asked_alone(model):
    evidence = {
        "a1": torch.tensor([0, -1, 3]),
        "b2": torch.tensor([float("nan"), 1, 2]),
        "d1": torch.tensor([-1, -1, 0]),
    }
    together = model.posterior("c1", evidence)
    for row, alone in enumerate([{"a1": 0}, {"b2": 1}, {"a1": 3, "b2": 2, "d1": 0}]):
        assert torch.allclose(together[row], model.posterior("c1", alone)[0], atol=1e-12)
    everything = model.posteriors(evidence)
    assert torch.allclose(everything["c1"], together, atol=1e-12)
    assert everything["a1"][0].tolist() == pytest.approx([1, 0, 0, 0], abs=1e-12)  # this row observes it
    one_hot = {"a1": torch.eye(4)[[0, 1]]}
    assert torch.allclose(model.posterior("c1", one_hot), model.posterior("c1", {"a1": [0, 1]}), atol=1e-12)


def test_valid_distributions_and_raw_values(network):
    rough = PBP(network.graph, ridge=(0.0, 0.0)).fit(network.sample(40, seed=0))
    evidence = {
        v: torch.randint(-1, 4, (300,), generator=torch.Generator().manual_seed(i)) for i, v in enumerate(rough.states)
    }
    clipped = rough.posteriors(evidence)
    raw = rough.posteriors(evidence, raw=True)
    assert any((p < 0).any() for p in raw.values())  # otherwise this test shows nothing
    for v, p in clipped.items():
        assert (p >= 0).all()
        assert torch.allclose(p.sum(dim=1), torch.ones(300, dtype=torch.float64))
        hidden = evidence[v] < 0
        assert torch.allclose(raw[v][hidden].sum(dim=1), torch.ones(int(hidden.sum()), dtype=torch.float64))
    assert torch.isfinite(rough.log_evidence(evidence)).all()
    sign, log_size = rough.log_evidence(evidence, raw=True)
    positive = sign > 0
    assert not positive.all()
    floored = rough.log_evidence(evidence)
    assert (floored[positive] >= log_size[positive] - 1e-12).all()
    assert torch.isclose(floored[positive], log_size[positive]).float().mean() > 0.5


def test_a_state_never_seen_in_training():
    network = DiscreteNetwork.random(templates.naive_bayes(3), seed=0)
    data = {v: x.clamp(max=2) for v, x in network.sample(500, seed=0).items()}
    model = PBP(network.graph).fit(data)
    assert model.log_evidence({"x1": [3]}).tolist() == [-torch.inf]
    assert torch.allclose(model.posterior("x2", {"x1": [3]}), model.posterior("x2"))  # nothing to go by: the marginal


def test_bad_questions(model):
    for query, evidence, error, text in [
        ("A", {}, QueryError, "it is latent"),
        ("nobody", {}, QueryError, "unknown variable 'nobody'"),
        (("a1", "a1"), {}, QueryError, "different variables"),
        ((), {}, QueryError, "different variables"),
        ("a1", {"nobody": [0]}, QueryError, "unknown variable 'nobody'"),
        ("a1", {"A": [0]}, QueryError, "latent and cannot be observed"),
        ("a1", {"b1": [4]}, DataError, "state 4 is out of range"),
        ("a1", {"b1": [-2]}, DataError, "state -2 is out of range"),
        ("a1", {"b1": [0.5]}, DataError, "expected a whole number"),
        ("a1", {"b1": [0, 1], "c1": [0, 1, 2]}, ShapeError, "has 2 rows"),
        ("a1", {"b1": torch.ones(2, 3)}, ShapeError, r"expected shape \(batch, 4\)"),
        ("a1", {"b1": -torch.ones(2, 4)}, DataError, "non-negative"),
        ("a1", {"b1": torch.zeros(2, 4)}, DataError, "all weights are 0"),
        ("a1", {"b1": torch.zeros(2, 4, dtype=torch.int64)}, ShapeError, "one state per row"),
        ("a1", {"b1": ["x"]}, DataError, "expected states from 0 to 3"),
    ]:
        with pytest.raises(error, match=text):
            model.posterior(query, evidence)
    with pytest.raises(NotFittedError, match="not fitted yet"):
        PBP(model.graph).posterior("a1")
    with pytest.raises(NotFittedError, match="not fitted yet"):
        PBP(model.graph).save("nowhere.pt")


def test_an_empty_batch(model):
    empty = torch.empty(0, dtype=torch.int64)
    assert model.posterior("a1", {"b1": empty}).shape == (0, 4)
    assert model.log_evidence({"b1": empty}).shape == (0,)


def test_sampling_follows_the_exact_distribution(exact, network):
    draws = exact.sample(40_000, seed=0)
    for v in ("a1", "d2"):
        assert_frequencies(draws[v], network.posterior(v)[0])
    pair = draws["b1"] * 4 + draws["c1"]
    assert_frequencies(pair, network.posterior(("b1", "c1"))[0].flatten())
    evidence = {"a1": [0, 3], "d1": torch.tensor([[0.7, 0.1, 0.1, 0.1], [1.0, 0, 0, 0]])}
    given = exact.sample(20_000, evidence, seed=1)
    assert given["c2"].shape == (20_000, 2)
    assert (given["a1"] == torch.tensor([0, 3])).all()
    for row in range(2):
        chosen = {"a1": evidence["a1"][row], "d1": evidence["d1"][row : row + 1]}
        assert_frequencies(given["c2"][:, row], network.posterior("c2", chosen)[0])
        assert_frequencies(given["d1"][:, row], network.posterior("d1", chosen)[0])


def assert_frequencies(values, probabilities):
    counts = torch.bincount(values, minlength=len(probabilities)).double()
    expected = probabilities * counts.sum()
    kept = expected > 0
    assert counts[~kept].sum() == 0
    statistic = float(((counts - expected)[kept] ** 2 / expected[kept]).sum())
    freedom = int(kept.sum()) - 1
    assert statistic < freedom + 5 * np.sqrt(2 * freedom) + 5


def test_sampling_repeats_under_a_seed(model):
    a, b, c = (model.sample(50, seed=s) for s in (1, 1, 2))
    assert all(torch.equal(a[v], b[v]) for v in a)
    assert any(not torch.equal(a[v], c[v]) for v in a)
    torch.manual_seed(5)
    d = model.sample(50)
    torch.manual_seed(5)
    assert all(torch.equal(x, d[v]) for v, x in model.sample(50).items())
    assert model.sample(0)["a1"].shape == (0,)
    with pytest.raises(ArgumentError, match="n: expected a whole number of at least 0"):
        model.sample(-1)


def test_single_precision_and_deepcopy(exact):
    single = copy.deepcopy(exact).float()
    evidence = {"a1": torch.arange(4), "b1": torch.tensor([-1, 0, 1, 2])}
    assert single.posterior("d1", evidence).dtype == torch.float32
    assert torch.allclose(single.posterior("d1", evidence).double(), exact.posterior("d1", evidence), atol=1e-4)
    assert torch.allclose(single.log_evidence(evidence).double(), exact.log_evidence(evidence), atol=1e-4)


def test_save_and_load(tmp_path, model):
    path = tmp_path / "model.pt"
    model.save(path)
    loaded = PBP.load(path)
    evidence = {"a1": torch.arange(4)}
    assert torch.equal(loaded.posterior("d1", evidence), model.posterior("d1", evidence))
    assert loaded.graph == model.graph
    assert loaded.plan == model.plan
    assert [p.name for p in tmp_path.iterdir()] == ["model.pt"]
    auto = PBP(templates.naive_bayes(4, states=None), rank="auto").fit(
        DiscreteNetwork.random(templates.naive_bayes(4), seed=0).sample(2_000, seed=1)
    )
    auto.float().save(path)
    again = PBP.load(path)
    assert again.settings.rank == "auto"
    assert torch.equal(again.posterior("x1", {"x2": [0]}), auto.posterior("x1", {"x2": [0]}))


def test_state_dict_moves_between_models(model):
    other = PBP(model.graph)
    other.load_state_dict(model.state_dict())
    other.fitted = True
    assert torch.equal(other.posterior("a1", {"b1": [1]}), model.posterior("a1", {"b1": [1]}))


def test_diagnostics(model, network):
    table = model.diagnostics()
    assert len(table) == len(model.operators.separators)
    assert (table["needed"] == table["reached"]).all()
    assert (table["condition"] >= 1).all()
    leaves = table["clipped_mass"].notna()
    assert leaves.sum() == 8
    assert (table.loc[leaves, "clipped_mass"] >= 0).all()
    rough = PBP(network.graph, ridge=(0.0, 0.0)).fit(network.sample(40, seed=0)).diagnostics()
    assert rough["clipped_mass"].mean() > table["clipped_mass"].mean()
    with pytest.warns(match="instrument rank 3, needs 4"):
        weak = PBP(network.graph, pool=1).fit_population(network)
    row = weak.diagnostics().query("reached < needed").iloc[0]
    assert (row["needed"], row["reached"]) == (4, 3)
    assert row["separator"].startswith("{B, C}")


def test_gradients_reach_operators_and_soft_evidence(exact):
    model = copy.deepcopy(exact)
    names = [n for n, _ in model.named_parameters()]
    weights = [p.detach().clone().requires_grad_() for p in model.parameters()]
    drawn = torch.rand(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    soft = (0.2 + drawn).requires_grad_()
    hard = torch.tensor([1, -1])

    def posteriors(soft, *parameters):
        state = dict(zip(names, parameters, strict=True))
        out = torch.func.functional_call(model, state, ({"b1": soft, "c1": hard},))
        return tuple(out[v] for v in ("a1", "d2", "b1"))

    class LogEvidence(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, evidence):
            return self.model.log_evidence(evidence)

    def log_evidence(soft, *parameters):
        state = {f"model.{n}": p for n, p in zip(names, parameters, strict=True)}
        return torch.func.functional_call(LogEvidence(), state, ({"b1": soft, "c1": hard},))

    assert torch.autograd.gradcheck(posteriors, (soft, *weights))
    assert torch.autograd.gradcheck(log_evidence, (soft, *weights))


def test_a_loss_on_answers_has_finite_gradients_even_where_estimates_are_clipped(network):
    rough = PBP(network.graph, ridge=(0.0, 0.0)).fit(network.sample(40, seed=0))
    evidence = {v: x[:100] for v, x in network.sample(100, seed=3).items()}
    rough.log_evidence(evidence).mean().backward()
    assert all(torch.isfinite(p.grad).all() for p in rough.parameters())


@pytest.mark.slow
def test_a_thousand_sites_in_single_precision():
    graph = templates.hmm(1_000, states=2, observed_states=3)
    network = DiscreteNetwork.random(graph, seed=0)
    data = network.sample(1_000, seed=0)
    model = PBP(graph, dtype=torch.float32).fit(data)
    rows = {v: x[:20] for v, x in data.items()}
    found, truth = model.log_evidence(rows).double().detach(), network.log_evidence(rows)
    assert found.dtype == torch.float64
    assert torch.isfinite(found).all()
    assert ((found - truth).abs() / truth.abs()).max() < 0.05
    half = {v: x for i, (v, x) in enumerate(rows.items()) if i % 2}
    for p in model.posteriors(half).values():
        assert torch.isfinite(p).all()
