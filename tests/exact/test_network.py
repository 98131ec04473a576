"""Discrete networks: errors of bad parameters and questions, and draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.graph.strategies import SMALL
from tests.oracle import Oracle
from torchpbp import DiscreteNetwork, LatentGraph, templates
from torchpbp.errors import ArgumentError, DataError, QueryError, ShapeError, StructureError
from torchpbp.exact import prior

GRAPH = LatentGraph([("h", "x"), ("h", "y"), ("x", "y")], {"h": 2, "x": 2, "y": 3}, ["h"])
GOOD = {"h": [0.5, 0.5], "x": [[0.9, 0.1], [0.2, 0.8]], "y": np.full((2, 2, 3), 1 / 3)}
PAIR = LatentGraph([("a", "b"), ("b", "c")], {"a": 2, "b": 3, "c": 2}, directed=False)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"x": [0.9, 0.1]}, ShapeError, r"CPT of 'x': expected shape \(2, 2\) for \('h', 'x'\), got \(2,\)"),
        ({"y": np.full((2, 3, 2), 0.5)}, ShapeError, r"CPT of 'y': expected shape \(2, 2, 3\).*got \(2, 3, 2\)"),
        ({"x": [[0.9], [0.2, 0.8]]}, ShapeError, r"CPT of 'x': expected numbers of shape \(2, 2\)"),
        ({"x": "wrong"}, ShapeError, r"CPT of 'x': expected numbers of shape \(2, 2\)"),
        ({"h": [0.5, 0.6]}, StructureError, r"CPT of 'h': rows must sum to 1 over its states; off by 0.1"),
        ({"x": [[0.9, 0.2], [0.1, 0.8]]}, StructureError, "CPT of 'x': rows must sum to 1"),
        ({"h": [1.5, -0.5]}, StructureError, "CPT of 'h': expected finite non-negative entries"),
        ({"h": [math.nan, 1.0]}, StructureError, "CPT of 'h': expected finite non-negative entries"),
        ({"h": [math.inf, 0.0]}, StructureError, "CPT of 'h': expected finite non-negative entries"),
        ({"z": [1.0]}, QueryError, r"CPT for unknown variable 'z'\. The network has: h, x, y"),
        ({"y": None}, StructureError, "No CPT for variable 'y'"),
    ],
)
def test_bad_cpts(changes, error, message):
    cpts = {v: t for v, t in {**GOOD, **changes}.items() if t is not None}
    with pytest.raises(error, match=message):
        DiscreteNetwork(GRAPH, cpts)


def test_rounding_in_cpts_is_forgiven_and_removed():
    network = DiscreteNetwork(GRAPH, {**GOOD, "h": [0.3333333, 0.6666666]})
    assert float(network.cpts["h"].sum()) == pytest.approx(1.0, abs=1e-15)
    assert float(network.log_evidence()) == pytest.approx(0.0, abs=1e-12)


def test_cpts_of_all_kinds_are_read():
    tables = [list, np.asarray, torch.as_tensor, lambda t: torch.as_tensor(t, dtype=torch.float32)]
    answers = [DiscreteNetwork(GRAPH, {v: f(t) for v, t in GOOD.items()}).posterior("h", {"x": 0}) for f in tables]
    for answer in answers[1:]:
        torch.testing.assert_close(answer, answers[0], atol=1e-7, rtol=1e-6)


def test_parents_index_the_cpt_in_the_order_of_the_edges():
    graph = LatentGraph([("b", "c"), ("a", "c")], {"a": 2, "b": 3, "c": 2})
    table = np.random.default_rng(0).dirichlet([1, 1], size=(3, 2))  # (b, a, c)
    network = DiscreteNetwork(graph, {"a": [0.5, 0.5], "b": [0.2, 0.3, 0.5], "c": table})
    np.testing.assert_allclose(network.posterior("c", {"a": 1, "b": 2})[0], table[2, 1])


@pytest.mark.parametrize(
    ("factors", "error", "message"),
    [
        ({("a", "c"): np.ones((2, 2))}, StructureError, r"\('a', 'c'\): 'a' and 'c' are not joined by an edge"),
        ({("a", "a"): np.ones((2, 2))}, StructureError, "not joined by an edge"),
        ({("a", "b"): np.ones((3, 2))}, ShapeError, r"Factor over \('a', 'b'\): expected shape \(2, 3\).*got \(3, 2\)"),
        ({("a", "z"): np.ones((2, 2))}, QueryError, "Factor over unknown variable 'z'"),
        ({"a": [1.0, -1.0]}, StructureError, "expected finite non-negative entries"),
        ({"a": [1.0, math.nan]}, StructureError, "expected finite non-negative entries"),
        ({"a": [0.0, 0.0]}, StructureError, "rule out every joint state: their product sums to 0"),
        (
            {("a", "b"): [[1, 0, 0], [0, 0, 0]], ("b", "c"): [[0, 0], [1, 1], [1, 1]]},
            StructureError,
            "rule out every joint state",
        ),
    ],
)
def test_bad_factors(factors, error, message):
    with pytest.raises(error, match=message):
        DiscreteNetwork.from_factors(PAIR, factors)


def test_directed_and_undirected_do_not_mix():
    with pytest.raises(StructureError, match=r"undirected graph has no CPTs; use DiscreteNetwork\.from_factors"):
        DiscreteNetwork(PAIR, {})
    with pytest.raises(StructureError, match="from_factors expects an undirected graph"):
        DiscreteNetwork.from_factors(GRAPH, {})
    with pytest.raises(StructureError, match="An undirected model has factors, not CPTs"):
        _ = DiscreteNetwork.from_factors(PAIR, {}).cpts


def test_a_model_without_factors_is_uniform():
    network = DiscreteNetwork.from_factors(PAIR, {})
    np.testing.assert_allclose(network.joint(("b", "a")), np.full((3, 2), 1 / 6))
    assert float(network.log_evidence({"a": 0, "c": 1})) == pytest.approx(math.log(1 / 4))


def test_factors_over_triangles_in_any_order():
    graph = LatentGraph([("a", "b"), ("b", "c"), ("a", "c")], {"a": 2, "b": 3, "c": 4}, directed=False)
    table = np.random.default_rng(1).random((4, 2, 3))
    network = DiscreteNetwork.from_factors(graph, {("c", "a", "b"): table, "b": [1.0, 2.0, 3.0], ("a",): [0.5, 4.0]})
    oracle = Oracle({"a": 2, "b": 3, "c": 4}, [("cab", table), ("b", np.array([1.0, 2, 3])), ("a", np.array([0.5, 4]))])
    np.testing.assert_allclose(network.joint(tuple("abc")), oracle.joint("abc"), atol=1e-14)


def test_huge_and_tiny_factors_cancel():
    network = DiscreteNetwork.from_factors(
        PAIR, {("a", "b"): np.full((2, 3), 1e-200), ("b", "c"): np.full((3, 2), 1e-200), "c": [1e250, 3e250]}
    )
    np.testing.assert_allclose(network.posterior("c")[0], [0.25, 0.75])
    assert float(network.log_evidence({"c": 1})) == pytest.approx(math.log(0.75))


def test_later_changes_to_the_callers_tables_do_not_reach_the_network():
    factor = np.ones((2, 3))
    network = DiscreteNetwork.from_factors(PAIR, {("a", "b"): factor})
    before = [t.clone() for _, t in network.factors]
    factor[0, 0] = 100.0
    assert all(torch.equal(t, b) for (_, t), b in zip(network.factors, before, strict=True))


def test_latents_need_a_number_of_states():
    with pytest.raises(StructureError, match="'h1' is of unknown cardinality"):
        DiscreteNetwork.random(templates.hmm(3, states=None))


@pytest.mark.parametrize("concentration", [0, -1.0, math.nan])
def test_concentration_must_be_positive(concentration):
    with pytest.raises(ArgumentError, match="concentration: expected a positive number"):
        DiscreteNetwork.random(GRAPH, concentration=concentration)


@pytest.mark.parametrize("name", ["diamond", "grid"])
def test_random_networks_repeat_with_their_seed(name):
    graph = SMALL[name]()
    one, same, other = (DiscreteNetwork.random(graph, seed=s) for s in (4, 4, 5))
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(one.factors, same.factors, strict=True))
    assert not all(torch.equal(a, b) for (_, a), (_, b) in zip(one.factors, other.factors, strict=True))


def test_small_concentrations_give_sharper_tables():
    sharp, flat = (DiscreteNetwork.random(GRAPH, 0, c).cpts["y"].amax(dim=-1).mean() for c in (0.01, 100.0))
    assert sharp > 0.9
    assert flat < 0.5


# -- questions -------------------------------------------------------------------------------------------------------


@pytest.fixture
def network() -> DiscreteNetwork:
    return DiscreteNetwork(GRAPH, GOOD)


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda n: n.posterior("z"), QueryError, r"Query of unknown variable 'z'\. The model observes: h, x, y"),
        (lambda n: n.posterior(("x", "z")), QueryError, "Query of unknown variable 'z'"),
        (
            lambda n: n.posterior(("x", "x")),
            QueryError,
            r"Expected one or more different variables to query, got \('x', 'x'\)",
        ),
        (lambda n: n.posterior(()), QueryError, "Expected one or more different variables to query"),
        (lambda n: n.posterior("x", {"z": [0]}), QueryError, "Evidence on unknown variable 'z'"),
        (lambda n: n.posterior("x", {"y": [3]}), DataError, "'y', row 0: state 3 is out of range; expected 0 to 2"),
        (lambda n: n.log_evidence({"y": [0, 1], "x": [0, 1, 0]}), ShapeError, "has 2 rows, but 'x' has 3"),
        (lambda n: n.joint(("x", "z")), QueryError, "Joint of unknown variable 'z'"),
        (lambda n: n.joint(("x", "x")), QueryError, "Expected different variables, got"),
        (lambda n: n.sample(-1), ArgumentError, "n: expected a whole number of at least 0, got -1"),
    ],
)
def test_bad_questions(network, ask, error, message):
    with pytest.raises(error, match=message):
        ask(network)


def test_a_query_observed_in_some_rows_is_certain_there(network):
    result = network.posterior("x", {"x": [1, -1], "y": [0, 0]})
    np.testing.assert_allclose(result[0], [0, 1])
    assert 0 < result[1, 0] < 1


def test_soft_evidence_on_the_query_itself_is_a_likelihood(network):
    prior = network.posterior("x")[0]
    weights = torch.tensor([[3.0, 1.0]])
    expected = prior * weights[0]
    torch.testing.assert_close(network.posterior("x", {"x": weights})[0], expected / expected.sum())


def test_posteriors_leave_out_latents_and_what_is_observed_everywhere(network):
    assert list(network.posteriors()) == ["x", "y"]
    assert list(network.posteriors({"x": 0})) == ["y"]
    assert list(network.posteriors({"x": [0, -1]})) == ["x", "y"]
    assert list(network.posteriors(include_latent=True)) == ["h", "x", "y"]


def test_joint_of_nothing_is_one(network):
    assert float(network.joint(())) == pytest.approx(1.0, abs=1e-12)


# -- sampling --------------------------------------------------------------------------------------------------------


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> tuple[float, int]:
    """Pearson's statistic and its degrees of freedom; cells that cannot occur must be empty."""
    possible = probabilities > 0
    assert counts[~possible].sum() == 0
    expected = counts.sum() * probabilities[possible]
    return float(((counts[possible] - expected) ** 2 / expected).sum()), int(possible.sum()) - 1


@pytest.mark.parametrize("name", ["diamond", "observed_parent", "disconnected", "grid", "hmm_order_2", "one_variable"])
def test_frequencies_of_samples_follow_the_exact_joint(name):
    network = DiscreteNetwork.random(SMALL[name](), seed=7, concentration=2.0)
    rows, count = network.sample(40_000, seed=3, include_latent=True), 40_000
    oracle = Oracle.of(network)
    names = list(network.graph.names)
    rng = np.random.default_rng(0)
    subsets = [names[:1], *(list(rng.permutation(names)[:3]) for _ in range(6))]
    for subset in subsets:
        sizes = [network.states[v] for v in subset]
        codes = np.ravel_multi_index([rows[v].numpy() for v in subset], sizes)
        counts = np.bincount(codes, minlength=math.prod(sizes))
        assert counts.sum() == count
        statistic, freedom = chi_square(counts, oracle.joint(subset).reshape(-1))
        assert statistic < freedom + 5 * math.sqrt(2 * max(freedom, 1)), f"{subset}: {statistic:.1f} for {freedom}"


def test_samples_repeat_with_their_seed_and_only_then(network):
    one, same, other = (network.sample(50, seed=s) for s in (1, 1, 2))
    assert all(torch.equal(one[v], same[v]) for v in one)
    assert any(not torch.equal(one[v], other[v]) for v in one)


def test_sampling_leaves_the_global_generator_alone(network):
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    network.sample(10, seed=5)
    assert torch.equal(torch.rand(3), expected)


def test_sample_shapes(network):
    rows = network.sample(5, seed=0)
    assert list(rows) == ["x", "y"]
    assert all(t.shape == (5,) and t.dtype == torch.int64 for t in rows.values())
    assert list(network.sample(5, include_latent=True)) == ["h", "x", "y"]
    assert all(t.shape == (0,) for t in network.sample(0).values())


def test_samples_differ_unless_a_seed_makes_them_equal(network):
    """Rows to learn from and rows to judge by would be the same ones otherwise."""
    torch.manual_seed(0)
    first, second = (torch.stack(list(network.sample(100).values())) for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(first, torch.stack(list(network.sample(100).values())))


def test_large_samples_are_drawn_in_chunks(network, monkeypatch):
    monkeypatch.setattr(prior, "ROWS_PER_CHUNK", 1000)
    rows = network.sample(20_500, seed=0)
    counts = np.bincount(rows["x"], minlength=2)
    assert counts.sum() == 20_500
    statistic, _ = chi_square(counts, network.joint(("x",)).numpy())
    assert statistic < 25
    assert not torch.equal(rows["x"][:1000], rows["x"][1000:2000])


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_impossible_states_are_not_drawn_at_the_ends_of_the_unit_interval(monkeypatch, uniform):
    network = DiscreteNetwork(LatentGraph([], {"x": 4}), {"x": [0.0, 0.5, 0.5, 0.0]})
    monkeypatch.setattr(torch, "rand", lambda *size, **_: torch.full(size, uniform, dtype=torch.float64))
    assert set(network.sample(3, seed=0)["x"].tolist()) == {1 if uniform == 0 else 2}


def test_impossible_states_are_never_drawn():
    graph = LatentGraph([("h", "x"), ("h", "y")], {"h": 3, "x": 3, "y": 4}, ["h"])
    table = np.array([[0, 0.5, 0, 0.5], [0, 0, 1, 0], [0.2, 0.8, 0, 0]])
    network = DiscreteNetwork(graph, {"h": [0.0, 0.6, 0.4], "x": np.eye(3), "y": table})
    rows = network.sample(5000, seed=1, include_latent=True)
    assert torch.equal(rows["h"], rows["x"])
    assert set(rows["h"].tolist()) == {1, 2}
    assert (torch.from_numpy(table)[rows["h"], rows["y"]] > 0).all()
