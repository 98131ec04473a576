"""Exact inference against the enumeration of all worlds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.graph.strategies import SMALL, latent_graphs
from tests.oracle import Oracle, one_hot, random_cpts, random_evidence, world_probability, worlds
from torchpbp import DiscreteNetwork, LatentGraph, templates
from torchpbp.errors import DataError
from torchpbp.exact.belief_update import BeliefUpdate

BATCH = 5


def random_network(graph: LatentGraph, seed: int, zeros: float = 0.0) -> tuple[DiscreteNetwork, Oracle]:
    """A network and its oracle, both made from the same raw tables."""
    rng = np.random.default_rng(seed)
    states = {v: graph.num_states(v) for v in graph.names}
    if graph.directed:
        cpts = random_cpts(graph, rng, zeros)
        return DiscreteNetwork(graph, cpts), Oracle(states, [((*graph.parents(v), v), cpts[v]) for v in graph.names])
    factors = {}
    for scope in [*graph.edges, *((v,) for v in graph.names[::2])]:  # some variables have no factor of their own
        table = rng.gamma(1.0, size=[states[v] for v in scope]) + 1e-3
        factors[scope] = np.where(rng.random(table.shape) < zeros, 0.0, table)
        factors[scope].reshape(-1)[0] = 1.0  # the world of all zeros stays possible
    return DiscreteNetwork.from_factors(graph, factors), Oracle(states, factors.items())


def test_the_oracle_multiplies_cpts_world_by_world():
    graph = SMALL["observed_parent"]()
    cpts = random_cpts(graph, np.random.default_rng(0))
    states = {v: graph.num_states(v) for v in graph.names}
    oracle = Oracle(states, [((*graph.parents(v), v), cpts[v]) for v in graph.names])
    assert oracle.total == pytest.approx(1.0)
    for world in worlds(states):
        assert oracle.table[tuple(world.values())] == pytest.approx(world_probability(graph, cpts, world))


@pytest.mark.parametrize("name", SMALL)
def test_templates_match_enumeration(name):
    network, oracle = random_network(SMALL[name](), seed=3)
    graph = network.graph
    rng = np.random.default_rng(11)
    for trial in range(4):
        # Latents too may be observed in an exact model; the first trial has no evidence at all.
        given, weights = random_evidence(network.states, graph.names, rng, BATCH) if trial else ({}, {})
        batch = BATCH if given else 1
        np.testing.assert_allclose(network.log_evidence(given), oracle.log_evidence(weights, batch), atol=1e-10)
        posteriors = network.posteriors(given, include_latent=True)
        for v, table in posteriors.items():
            np.testing.assert_allclose(table, oracle.posterior(v, weights, batch), atol=1e-10)
            np.testing.assert_allclose(network.posterior(v, given), table, atol=1e-12)
        left_out = set(graph.names) - set(posteriors)
        assert all(v in given and given[v].ndim == 1 and (given[v] >= 0).all() for v in left_out)


@given(graph=latent_graphs(max_variables=7), seed=st.integers(0, 1000), zeros=st.sampled_from([0.0, 0.0, 0.4]))
def test_random_graphs_match_enumeration(graph, seed, zeros):
    network, oracle = random_network(graph, seed, zeros)
    given, weights = random_evidence(network.states, graph.names, np.random.default_rng(seed), BATCH)
    batch = BATCH if given else 1
    expected = oracle.log_evidence(weights, batch)
    possible = np.flatnonzero(np.isfinite(expected))
    found = network.log_evidence(given).numpy()
    assert found.shape == (batch,)
    np.testing.assert_array_equal(np.isneginf(found), np.isneginf(expected))
    np.testing.assert_allclose(found[possible], expected[possible], atol=1e-9)
    if not possible.size:
        return
    rows = {v: values[possible] for v, values in given.items()}
    row_weights = {v: w[possible] for v, w in weights.items()}
    cliques = network.clique_posteriors([(v,) for v in graph.names], network.read_evidence(rows))
    for v, table in network.posteriors(rows, include_latent=True).items():
        np.testing.assert_allclose(table, oracle.posterior(v, row_weights, len(possible)), atol=1e-9)
        np.testing.assert_allclose(cliques[(v,)], table, atol=1e-9)  # by the other engine


@pytest.mark.parametrize("name", ["diamond", "observed_parent", "disconnected", "grid", "hmm_order_2"])
def test_joint_queries_match_enumeration(name):
    network, oracle = random_network(SMALL[name](), seed=5)
    rng = np.random.default_rng(2)
    for count in (2, 3):
        query = [str(v) for v in rng.permutation(network.graph.names)[:count]]
        given, weights = random_evidence(network.states, network.graph.names, rng, BATCH)
        for v in query:  # a queried variable may be observed in some rows, or softly
            if v in given and given[v].ndim == 1:
                given[v] = np.where(np.arange(BATCH) == 0, -1, given[v])
                weights[v] = one_hot(given[v], network.states[v])
        result = network.posterior(query, given)
        batch = BATCH if given else 1
        assert result.shape == (batch, *(network.states[v] for v in query))
        np.testing.assert_allclose(result, oracle.posterior(query, weights, batch), atol=1e-10)


@given(graph=latent_graphs(max_variables=7), data=st.data())
def test_joint_tables_match_enumeration(graph, data):
    network, oracle = random_network(graph, seed=1, zeros=0.2)
    names = data.draw(st.lists(st.sampled_from(graph.names), unique=True))
    np.testing.assert_allclose(network.joint(names), oracle.joint(names), atol=1e-12)


def test_joint_of_distant_variables_on_a_chain():
    network, oracle = random_network(templates.hmm(5, 2, 2), seed=4)
    for names in (("x5", "x1"), ("h1", "x5", "x3"), ("x1", "h3", "h5", "x2")):
        np.testing.assert_allclose(network.joint(names), oracle.joint(names), atol=1e-12)


# -- impossible evidence ---------------------------------------------------------------------------------------------


@pytest.fixture
def deterministic() -> DiscreteNetwork:
    """x and y are copies of h; h is never 2."""
    graph = LatentGraph([("h", "x"), ("h", "y")], {"h": 3, "x": 3, "y": 3}, ["h"])
    return DiscreteNetwork(graph, {"h": [0.25, 0.75, 0.0], "x": np.eye(3), "y": np.eye(3)})


def test_impossible_rows_have_log_evidence_minus_infinity(deterministic):
    found = deterministic.log_evidence({"x": [0, 1, 2, 0], "y": [0, 1, -1, 1]})
    expected = [math.log(0.25), math.log(0.75), -math.inf, -math.inf]
    np.testing.assert_allclose(found, expected)


def test_impossible_rows_have_no_posterior(deterministic):
    evidence = {"x": [0, 1, 2, 0]}
    with pytest.raises(DataError, match=r"1 row\(s\) has probability 0, first in row 2"):
        deterministic.posterior("y", evidence)
    with pytest.raises(DataError, match=r"first in row 2.*log_evidence\(\) returns -inf"):
        deterministic.posteriors(evidence)
    with pytest.raises(DataError, match="first in row 2"):
        deterministic.posterior(("y", "h"), evidence)


def test_rows_are_counted_across_chunks(deterministic, monkeypatch):
    monkeypatch.setattr(BeliefUpdate, "rows_at_once", 3)
    with pytest.raises(DataError, match="first in row 7"):
        deterministic.posterior("y", {"x": [0] * 7 + [2]})


def test_zeros_that_do_not_contradict_the_evidence_are_fine(deterministic):
    result = deterministic.posterior("y", {"x": [0, 1, -1]})
    np.testing.assert_allclose(result, [[1, 0, 0], [0, 1, 0], [0.25, 0.75, 0]])


# -- batches ---------------------------------------------------------------------------------------------------------


def test_chunks_change_nothing(monkeypatch):
    network, _ = random_network(SMALL["diamond"](), seed=0)
    given, _ = random_evidence(network.states, network.graph.observed, np.random.default_rng(8), 11)
    whole = network.posteriors(given), network.log_evidence(given)
    pair = network.posterior(("A", "D"), given)
    monkeypatch.setattr(BeliefUpdate, "rows_at_once", 4)
    network = DiscreteNetwork(network.graph, network.cpts)  # whose number of rows is not cached
    torch.testing.assert_close(network.posteriors(given), whole[0])
    torch.testing.assert_close(network.log_evidence(given), whole[1])
    torch.testing.assert_close(network.posterior(("A", "D"), given), pair)


def test_a_batch_without_rows():
    network, _ = random_network(templates.hmm(3, 2, 3), seed=0)
    nothing = {"x2": torch.empty(0, dtype=torch.int64)}
    assert network.posterior("x1", nothing).shape == (0, 3)
    assert network.posterior(("x1", "h2"), nothing).shape == (0, 3, 2)
    assert network.log_evidence(nothing).shape == (0,)


# -- long and wide models --------------------------------------------------------------------------------------------


def test_a_long_chain_matches_the_scaled_forward_backward_algorithm():
    length, states = 600, 3
    graph = templates.hmm(length, states, 4)
    network = DiscreteNetwork.random(graph, seed=2)
    rows = network.sample(2, seed=1)
    for t in range(0, length, 7):
        rows[f"x{t + 1}"][1] = -1  # the second row misses some sites
    cpts = {v: t.numpy() for v, t in network.cpts.items()}
    expected = []
    likelihoods = {
        t: np.stack([np.ones(states) if x < 0 else cpts[f"x{t}"][:, x] for x in rows[f"x{t}"].tolist()])
        for t in range(1, length + 1)
    }
    forward, log_total = cpts["h1"] * likelihoods[1], np.zeros(2)
    kept = {}
    for t in range(1, length + 1):
        if t > 1:
            forward = (forward @ cpts[f"h{t}"]) * likelihoods[t]
        scale = forward.sum(axis=1, keepdims=True)
        forward, log_total = forward / scale, log_total + np.log(scale[:, 0])
        kept[t] = forward
    found = network.log_evidence(rows)
    assert torch.isfinite(found).all()
    np.testing.assert_allclose(found, log_total, rtol=1e-12)
    backward = np.ones((2, states))
    for t in range(length, 0, -1):
        expected.append(kept[t] * backward)
        backward = (backward * likelihoods[t]) @ cpts[f"h{t}"].T if t > 1 else backward
        backward /= backward.sum(axis=1, keepdims=True)
    expected = [e / e.sum(axis=1, keepdims=True) for e in reversed(expected)]
    posteriors = network.posteriors(rows, include_latent=True)
    for t in (1, 2, 300, 599, 600):
        np.testing.assert_allclose(posteriors[f"h{t}"], expected[t - 1], atol=1e-10)


def test_a_hub_with_many_observables_does_not_underflow():
    """The product of 700 likelihoods is far below the smallest double, for each state of the hub."""
    network = DiscreteNetwork.random(templates.naive_bayes(700, 3, 4), seed=1)
    rows = network.sample(3, seed=0)
    logs = network.cpts["h"].log() + sum(network.cpts[v][:, rows[v]].T.log() for v in network.graph.observed)
    assert float(logs.max()) < math.log(np.finfo(float).tiny)
    torch.testing.assert_close(network.log_evidence(rows), logs.logsumexp(dim=1))
    torch.testing.assert_close(network.posterior("h", rows), logs.softmax(dim=1))
