"""Single rows, which are answered by variable elimination: against enumeration, and against the clique tree."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.exact.test_inference import random_network
from tests.graph.strategies import SMALL, latent_graphs
from tests.oracle import one_hot
from torchpbp import DiscreteNetwork, LatentGraph, templates
from torchpbp.errors import DataError, QueryError, QueryWarning
from torchpbp.exact import elimination
from torchpbp.exact.elimination import plain_states
from torchpbp.inputs.evidence import read_evidence


def by_tree(network: DiscreteNetwork, query: str, evidence: dict[str, int]) -> torch.Tensor:
    """The same answer from the clique tree: two equal rows are no case for elimination."""
    rows = {v: [state] * 2 for v, state in evidence.items()}
    return network.posterior(query, rows)[:1] if rows else network.posteriors(include_latent=True)[query]


@given(graph=latent_graphs(max_variables=7), seed=st.integers(0, 1000), zeros=st.sampled_from([0.0, 0.4]))
def test_random_graphs_match_enumeration(graph, seed, zeros):
    network, oracle = random_network(graph, seed, zeros)
    rng = np.random.default_rng(seed)
    row = {v: int(rng.integers(0, k)) for v, k in network.states.items() if rng.random() < 0.5}
    weights = {v: one_hot([state], network.states[v]) for v, state in row.items()}
    possible = np.isfinite(oracle.log_evidence(weights, 1)[0])
    for v in graph.names:
        if v in row and possible:
            with pytest.warns(QueryWarning, match=f"Query of '{v}': every row observes it"):
                np.testing.assert_allclose(network.posterior(v, row), weights[v], atol=1e-12)
        elif possible:
            np.testing.assert_allclose(network.posterior(v, row), oracle.posterior(v, weights, 1), atol=1e-12)
            assert network._queries.elimination.posterior(v, row) is not None  # the tree was not asked
        elif v not in row:
            with pytest.raises(DataError, match=r"1 row\(s\) has probability 0, first in row 0"):
                network.posterior(v, row)


@pytest.mark.parametrize("name", ["grid", "loopy_network", "undirected_loop"])
def test_large_products_are_multiplied_in_another_order(name, monkeypatch):
    network, oracle = random_network(SMALL[name](), seed=2)
    monkeypatch.setattr(elimination, "LARGE", 1)
    monkeypatch.setattr(elimination, "TOGETHER", 3)
    for v in network.graph.names:
        np.testing.assert_allclose(network.posterior(v), oracle.posterior(v, {}, 1), atol=1e-12)


def test_evidence_that_a_separate_part_rules_out_raises():
    """z tells nothing about x, but it can never be 1."""
    graph = LatentGraph([("h", "x"), ("k", "z")], {"h": 2, "x": 2, "k": 2, "z": 2}, ["h", "k"])
    tables = {"h": [0.5, 0.5], "x": [[0.9, 0.1], [0.2, 0.8]], "k": [0.0, 1.0], "z": [[0.5, 0.5], [1.0, 0.0]]}
    network = DiscreteNetwork(graph, tables)
    with pytest.raises(DataError, match="probability 0, first in row 0"):
        network.posterior("x", {"z": 1})
    torch.testing.assert_close(network.posterior("x", {"z": 0}), network.posterior("x"))


def test_all_forms_of_one_row_give_one_answer():
    network, _ = random_network(SMALL["diamond"](), seed=1)
    names = network.graph.observed
    expected = by_tree(network, "A", {names[0]: 1, names[1]: 2})
    for one, two, missing in [
        (1, 2, -1),
        ([1], [2], [-1]),
        (np.array([1.0]), torch.tensor(2), math.nan),
        (torch.tensor([[0.0, 1.0, 0.0]]), 2, -1),
        (np.int64(1), 2.0, None),
    ]:
        row = {names[0]: one, names[1]: two, names[2]: missing}
        torch.testing.assert_close(network.posterior("A", row), expected)
    checked = read_evidence({names[0]: 1, names[1]: 2}, network.states)
    torch.testing.assert_close(network.posterior("A", checked), expected)


@pytest.fixture
def labelled(tmp_path) -> DiscreteNetwork:
    network = DiscreteNetwork.random(LatentGraph([("a", "b")], {"a": 2, "b": 3}), seed=1)
    network.labels = {"a": ("no", "yes"), "b": ("low", "mid", "high")}
    network.to_bif(tmp_path / "network.bif")
    return DiscreteNetwork.from_bif(tmp_path / "network.bif")


def test_labels(labelled):
    assert plain_states({"b": "high"}, labelled.states, labelled.labels) == {"b": 2}
    torch.testing.assert_close(labelled.posterior("a", {"b": "high"}), labelled.posteriors({"b": ["high"]})["a"])


@pytest.mark.parametrize(
    ("evidence", "error", "message"),
    [
        ({"b": "highest"}, DataError, "unseen category 'highest'"),
        ({"b": 2}, DataError, "expected labels out of"),
        ({"c": 0}, QueryError, "unknown variable 'c'"),
    ],
)
def test_bad_evidence_is_named(labelled, evidence, error, message):
    with pytest.raises(error, match=message):
        labelled.posterior("a", evidence)


@pytest.mark.parametrize("state", [3, -2, 0.5])
def test_states_out_of_range_raise(state):
    network, _ = random_network(SMALL["hmm"](), seed=1)
    with pytest.raises(DataError, match="Evidence on 'x1', row 0"):
        network.posterior("h1", {"x1": state})


def test_gradients_reach_the_tables():
    graph = templates.hmm(2, 2, 3)
    tables = {v: t.clone().requires_grad_() for v, t in DiscreteNetwork.random(graph, seed=1).cpts.items()}
    DiscreteNetwork(graph, tables).posterior("h1", {"x1": 0, "x2": 1})[0, 0].backward()
    assert all(bool(t.grad.abs().sum() > 0) for t in tables.values())


def test_gradients_reach_soft_evidence():
    weights = torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64, requires_grad=True)
    network = DiscreteNetwork.random(templates.hmm(2, 2, 3), seed=1)
    network.posterior("h1", {"x1": weights, "x2": 1})[0, 0].backward()
    assert bool(weights.grad.abs().sum() > 0)


def test_the_answer_shares_no_memory_with_the_network():
    network = DiscreteNetwork.random(LatentGraph([], {"x": 3}), seed=1)
    first = network.posterior("x")
    first.zero_()
    torch.testing.assert_close(network.posterior("x"), network.cpts["x"][None])


# -- long and wide models --------------------------------------------------------------------------------------------


def test_a_hub_with_many_observables_does_not_underflow():
    network = DiscreteNetwork.random(templates.naive_bayes(700, 3, 4), seed=1)
    row = {v: int(x) for v, x in network.sample(1, seed=0).items()}
    assert network._queries.elimination.posterior("h", row) is not None
    torch.testing.assert_close(network.posterior("h", row), by_tree(network, "h", row))


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_factors_of_any_scale(scale):
    graph = LatentGraph([("a", "b"), ("b", "c"), ("c", "d")], dict.fromkeys("abcd", 2), directed=False)
    table = np.array([[2.0, 1.0], [1.0, 3.0]])
    factors = dict.fromkeys(graph.edges, table)
    plain = DiscreteNetwork.from_factors(graph, factors)
    scaled = DiscreteNetwork.from_factors(graph, factors | {("b", "c"): table * scale})
    torch.testing.assert_close(scaled.posterior("a", {"d": 1}), plain.posterior("a", {"d": 1}))


def test_on_a_long_chain_the_tree_is_asked_only_where_it_skips_most():
    network = DiscreteNetwork.random(templates.hmm(600, 3, 4), seed=2)
    row = {v: int(x) for v, x in network.sample(1, seed=1).items() if v != "x300"}
    assert network._queries.elimination.posterior("x300", row) is not None
    near = {"x301": 1}  # 300 ancestors, but most of the tree sends what it always sends
    assert network._queries.elimination.posterior("x300", near) is None
    for evidence in (row, near):
        torch.testing.assert_close(network.posterior("x300", evidence), by_tree(network, "x300", evidence))


def test_a_long_chain_without_evidence_does_not_overflow():
    """Tables are divided by their largest entries, so that their sums grow from variable to variable."""
    graph = LatentGraph([(f"x{i}", f"x{i + 1}") for i in range(700)], {f"x{i}": 4 for i in range(701)})
    network = DiscreteNetwork.random(graph, seed=0)
    assert network._queries.elimination.posterior("x700", {}) is not None
    torch.testing.assert_close(network.posterior("x700"), by_tree(network, "x700", {})[:1])
