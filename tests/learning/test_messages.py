"""Stage 1 by the model's own messages: exact on populations, and less noise than linear stage 1."""

from __future__ import annotations

import pytest
import torch

from tests.closeness import assert_same_up_to_rounding
from tests.models.structures import STRUCTURES
from torchpbp import PBP, Continuous, DiscreteNetwork, LatentGraph, Messages, templates
from torchpbp.errors import ArgumentError, StructureError
from torchpbp.features.maps import OneHot
from torchpbp.learning.messages import outside_messages
from torchpbp.moments.rows import TrainingRows


def patterns(network: DiscreteNetwork, rows: int, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    drawn = network.sample(rows, seed=seed)
    return {v: x.where(torch.rand(rows, generator=generator) < 0.5, -1) for v, x in drawn.items()}


@pytest.mark.parametrize("name", [n for n, g in STRUCTURES.items() if len(g.observed) <= 6])
def test_exact_moments_give_exact_answers(name):
    graph = STRUCTURES[name]
    network = DiscreteNetwork.random(graph, seed=1)
    evidence = patterns(network, 40, seed=2)
    for rounds in (1, 2):
        model = PBP(graph, strict=True, regressor=Messages(rounds)).fit_population(network)
        with torch.no_grad():
            assert torch.allclose(model.log_evidence(evidence), network.log_evidence(evidence), atol=1e-8, rtol=0)
            exact = network.posteriors(evidence)
            for v, p in model.posteriors(evidence).items():
                assert torch.allclose(p, exact[v], atol=1e-8, rtol=0), v


def test_messages_are_predictions_given_all_outside():
    """In a population, what a message says of the core group is its exact distribution given the rest of the row."""
    graph = templates.naive_bayes(4, states=2, observed_states=3)
    network = DiscreteNetwork.random(graph, seed=3)
    model = PBP(graph).fit_population(network)
    tree = model.fitter().fit_population(model.plan, network).solution.tree
    table = network.sample(50, seed=4)
    rows = TrainingRows.of(table, {v: OneHot(s) for v, s in model.states.items()})
    messages = outside_messages(tree, rows)
    checked = 0
    for node in range(1, len(model.tree)):
        leaf = model.tree.leaf_observables[node]
        if not leaf:
            continue
        (v,) = leaf
        theta = torch.cat([torch.ones(50, 1).double(), messages[node - 1]], dim=1)
        predicted = theta @ tree.operators[node]  # a leaf's operator: from E[θ] to E[φ]
        exact = network.posterior(v, {w: x for w, x in table.items() if w != v})
        assert torch.allclose(predicted, exact, atol=1e-8)
        checked += 1
    assert checked == 4


def mean_kl(model: PBP, network: DiscreteNetwork) -> float:
    evidence = patterns(network, 300, seed=8)
    with torch.no_grad():
        answers = model.posteriors(evidence)
    parts = []
    for v, exact in network.posteriors(evidence).items():
        kl = (exact * (exact.log() - answers[v].log())).sum(dim=1)
        parts.append(kl[evidence[v] < 0])
    return float(torch.cat(parts).mean())


def test_less_noise_than_linear_stage_one():
    graph = templates.diamond()
    errors = {"ridge": 0.0, "messages": 0.0}
    for seed in range(5):
        network = DiscreteNetwork.random(graph, seed=seed)
        rows = network.sample(20_000, seed=50 + seed)
        errors["ridge"] += mean_kl(PBP(graph).fit(rows), network)
        errors["messages"] += mean_kl(PBP(graph, regressor=Messages()).fit(rows), network)
    assert errors["messages"] < 0.85 * errors["ridge"]


def test_rows_that_differ_with_their_counts():
    table = {"a": torch.tensor([0, 1, 0, 1, 1]), "b": torch.tensor([2, 0, 2, 0, 1])}
    for states in ({"a": 2, "b": 3}, {"a": 1 << 40, "b": 1 << 40}):  # too many joint states for one number
        distinct = TrainingRows.of(table, {v: OneHot(n) for v, n in states.items()}).distinct()
        rows = sorted(zip(*distinct.states.T.tolist(), distinct.weights.tolist(), strict=True))
        assert rows == [(0, 2, 2.0), (1, 0, 2.0), (1, 1, 1.0)]


def test_repeated_rows_count_as_often_as_they_occur():
    graph = templates.naive_bayes(3)
    rows = DiscreteNetwork.random(graph, seed=1).sample(400, seed=2)
    twice = {v: torch.cat([x, x]) for v, x in rows.items()}
    models = [PBP(graph, ridge=(r, r), regressor=Messages()).fit(x) for r, x in ((1.0, rows), (2.0, twice))]
    once, again = (m.log_evidence(rows).detach() for m in models)  # singular vectors may come with either sign
    assert_same_up_to_rounding(once, again, rtol=0, atol=1e-8)


def test_errors():
    with pytest.raises(ArgumentError, match="rounds: expected a whole number of at least 1, got 0"):
        Messages(rounds=0)
    graph = LatentGraph([("h", x) for x in "abc"], {"h": 2, "a": 2, "b": Continuous(), "c": 3}, ["h"])
    with pytest.raises(StructureError, match=r"needs discrete variables; \['b'\] are continuous"):
        PBP(graph, regressor=Messages())
    with pytest.raises(StructureError, match="needs the rows themselves"):
        PBP(templates.naive_bayes(3), regressor=Messages()).count({})
