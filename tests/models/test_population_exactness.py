"""Exact moments in, exact answers out: the identity that the whole method rests on."""

import pytest
import torch

from tests.models.structures import STRUCTURES
from torchpbp import EM, PBP, DiscreteNetwork, PBPLayer
from torchpbp.errors import RankWarning

TOLERANCE = 1e-8
SEEDS = (0, 1, 2)


def patterns(graph, rows, seed):
    """Evidence in which each row observes a random subset, from nothing to everything."""
    generator = torch.Generator().manual_seed(seed)
    share = torch.linspace(0, 1, rows)
    evidence = {}
    for v in graph.observed:
        states = torch.randint(graph.num_states(v), (rows,), generator=generator)
        evidence[v] = torch.where(torch.rand(rows, generator=generator) < share, states, torch.tensor(-1))
    return evidence


@pytest.mark.parametrize("name", STRUCTURES)
def test_population_fit_reproduces_exact_answers(name):
    graph = STRUCTURES[name]
    model = PBP(graph, strict=True)
    for seed in SEEDS:
        network = DiscreteNetwork.random(graph, seed=seed)
        model.fit_population(network)
        evidence = patterns(graph, 60, seed)
        with torch.no_grad():
            assert torch.allclose(model.log_evidence(evidence), network.log_evidence(evidence), atol=TOLERANCE, rtol=0)
            sign, log_size = model.log_evidence(evidence, raw=True)
            assert (sign == 1).all()
            assert torch.allclose(log_size, network.log_evidence(evidence), atol=TOLERANCE, rtol=0)
            learned, exact = model.posteriors(evidence), network.posteriors(evidence)
            assert learned.keys() == exact.keys() == set(graph.observed)
            for v in exact:
                assert torch.allclose(learned[v], exact[v], atol=TOLERANCE, rtol=0), v
                single = model.posterior(v, {k: x for k, x in evidence.items() if k != v})
                other = network.posterior(v, {k: x for k, x in evidence.items() if k != v})
                assert torch.allclose(single, other, atol=TOLERANCE, rtol=0), v


@pytest.mark.parametrize("name", ["diamond", "chain, order 2", "observables with children", "undirected grid"])
def test_joint_queries_and_soft_evidence_are_exact(name):
    graph = STRUCTURES[name]
    network = DiscreteNetwork.random(graph, seed=5)
    model = PBP(graph).fit_population(network)
    first, second, third, fourth = graph.observed[0], graph.observed[-1], graph.observed[1], graph.observed[2]
    weights = torch.rand(7, graph.num_states(third), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    evidence = {third: weights, fourth: torch.tensor([0, 1, -1, 0, 1, 1, -1])}
    with torch.no_grad():
        joint = model.posterior((first, second), evidence)
        assert joint.shape == (7, graph.num_states(first), graph.num_states(second))
        assert torch.allclose(joint, network.posterior((first, second), evidence), atol=TOLERANCE, rtol=0)
        assert torch.allclose(
            model.posterior(third, evidence), network.posterior(third, evidence), atol=TOLERANCE, rtol=0
        )


def test_a_wrong_instrument_is_caught_by_this_suite():
    """Without product groups the diamond's instrument is rank-deficient, and the answers are visibly wrong."""
    graph = STRUCTURES["diamond"]
    network = DiscreteNetwork.random(graph, seed=0)
    with pytest.warns(match=r"instrument rank 3, needs 4"):
        model = PBP(graph, pool=1)
    model.fit_population(network)
    evidence = patterns(graph, 60, 0)
    exact = network.posteriors(evidence)
    with torch.no_grad():
        error = max(float((p - exact[v]).abs().max()) for v, p in model.posteriors(evidence).items())
    assert error > 1e-5


def test_near_deterministic_networks():
    for seed in range(3):
        graph = STRUCTURES["diamond"]
        network = DiscreteNetwork.random(graph, seed=seed, concentration=0.2)
        model = PBP(graph).fit_population(network)
        evidence = {v: x[:50] for v, x in network.sample(50, seed=seed).items()}
        hidden = {v: torch.where(torch.arange(50) % 3 == i % 3, -1, x) for i, (v, x) in enumerate(evidence.items())}
        with torch.no_grad():
            for v, p in model.posteriors(hidden).items():
                assert torch.allclose(p, network.posteriors(hidden)[v], atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["latent class", "diamond", "nested loops", "loop with an observed parent"])
def test_to_pbp_answers_as_the_network_does(name):
    """Also for tables that were learned, with probabilities close to 0, and inside a layer."""
    graph = STRUCTURES[name]
    rows = DiscreteNetwork.random(graph, seed=3).sample(400, seed=1)
    network = EM(graph, restarts=1, relative_tolerance=1e-4, prior=0.0, progress=False).fit(rows).network
    network.labels = {graph.observed[0]: tuple(f"state {i}" for i in range(graph.num_states(graph.observed[0])))}
    model = network.to_pbp(ridge=(2.0, 3.0))
    assert isinstance(model, PBP)
    assert model.labels == network.labels
    assert model.settings.ridge == (2.0, 3.0)
    half = {v: x[:50] for v, x in rows.items() if v in graph.observed[::2]}
    with torch.no_grad():
        assert torch.allclose(model.log_evidence(half), network.log_evidence(half), atol=TOLERANCE, rtol=0)
        exact, learned = network.posteriors(half), model.posteriors(half)
        layer = PBPLayer(model)(half)
        for v in exact:
            assert torch.allclose(learned[v], exact[v], atol=TOLERANCE, rtol=0), v
            assert torch.allclose(layer[v], exact[v], atol=TOLERANCE, rtol=0), v


def test_to_pbp_says_where_ranks_are_too_low():
    network = DiscreteNetwork.random(STRUCTURES["diamond"], seed=1)
    for options in ({"pool": 1}, {"rank": 1}):
        with pytest.warns(RankWarning) as caught:
            network.to_pbp(**options)
        assert "to_pbp: log-probabilities of rows differ by up to" in str(caught[-1].message)
