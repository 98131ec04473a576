"""Expectation maximisation."""

from __future__ import annotations

import itertools

import pytest
import torch

from torchpbp import EM, PBP, Continuous, DiscreteNetwork, LatentGraph, templates
from torchpbp.baselines.em import ExpectationStep, maximised
from torchpbp.errors import CheckpointError, DataError, NotFittedError, QueryError, StructureError

GRAPHS = {
    "naive_bayes": templates.naive_bayes(3, states=2, observed_states=3),
    "hmm": templates.hmm(3, states=2, observed_states=2),
    "order 2": templates.hmm(4, states=2, observed_states=2, order=2),
    "diamond": templates.diamond(states=2, observed_states=2, leaves=1),
    "parity": templates.parity(leaves=1, observed_states=2),
    "observed parent": LatentGraph([("a", "h"), ("h", "b"), ("a", "b")], {"a": 2, "h": 3, "b": 2}, latent=["h"]),
}


def enumerated(network: DiscreteNetwork, rows: dict[str, torch.Tensor], counts: torch.Tensor):
    """Log-likelihood and expected counts by going through all joint states."""
    names = list(network.states)
    worlds = list(itertools.product(*[range(network.states[v]) for v in names]))
    result = {scope: torch.zeros_like(table) for scope, table in network.factors}
    total = 0.0
    for i in range(len(counts)):
        mass = []
        for world in worlds:
            value = dict(zip(names, world, strict=True))
            agrees = all(int(x[i]) in (-1, value[v]) for v, x in rows.items())
            p = 1.0
            for scope, table in network.factors:
                p *= float(table[tuple(value[v] for v in scope)])
            mass.append(p if agrees else 0.0)
        evidence = sum(mass)
        total += float(counts[i]) * float(torch.tensor(evidence).double().log())
        for world, p in zip(worlds, mass, strict=True):
            value = dict(zip(names, world, strict=True))
            for scope in result:
                result[scope][tuple(value[v] for v in scope)] += float(counts[i]) * p / evidence
    return total, result


@pytest.mark.parametrize("name", GRAPHS)
def test_expected_counts_equal_enumeration(name):
    graph = GRAPHS[name]
    network = DiscreteNetwork.random(graph, seed=1)
    rows = network.sample(6, seed=2)
    first = graph.observed[0]
    rows[first] = torch.where(torch.arange(6) % 3 == 0, -1, rows[first])  # not observed in some rows
    counts = torch.tensor([1.0, 2.0, 1.0, 5.0, 1.0, 3.0], dtype=torch.float64)
    total, found = ExpectationStep(graph, rows, counts)(dict(network.factors))
    expected_total, expected = enumerated(network, rows, counts)
    assert total == pytest.approx(expected_total, rel=1e-6)
    assert found.keys() == expected.keys()
    for scope, table in expected.items():
        torch.testing.assert_close(found[scope], table, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("prior", [0.0, 0.5])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_objective_never_falls(name, prior):
    graph = GRAPHS[name]
    data = DiscreteNetwork.random(graph, seed=3).sample(300, seed=4)
    model = EM(graph, restarts=3, iterations=40, tolerance=0.0, prior=prior, progress=False).fit(data)
    assert len(model.runs) == 3
    for run in model.runs:
        assert len(run.objective) == 40 or run.objective[-1] == run.objective[-2]  # nothing left to gain
        assert all(b >= a - 1e-10 for a, b in itertools.pairwise(run.objective))
        assert run.objective[-1] > run.objective[0]


def test_without_hidden_variables_one_iteration_counts():
    graph = LatentGraph([("a", "b")], {"a": 2, "b": 3}, latent=[])
    data = {"a": torch.tensor([0, 0, 1, 1, 1]), "b": torch.tensor([0, 2, 1, 1, 2])}
    model = EM(graph, restarts=1, prior=0.0, progress=False).fit(data)
    cpts = model.network.cpts
    torch.testing.assert_close(cpts["a"], torch.tensor([0.4, 0.6], dtype=torch.float64))
    torch.testing.assert_close(cpts["b"], torch.tensor([[0.5, 0, 0.5], [0, 2 / 3, 1 / 3]], dtype=torch.float64))


def test_it_comes_close_to_the_truth():
    network = DiscreteNetwork.random(templates.diamond(states=2, observed_states=4, leaves=2), seed=0)
    evidence = network.sample(300, seed=9)
    del evidence["d1"]
    exact = network.posterior("d1", evidence)
    errors = []
    for rows in (500, 20_000):
        model = EM(network.graph, restarts=2, progress=False).fit(network.sample(rows, seed=1))
        learned = model.posterior("d1", evidence)
        errors.append(float((exact * (exact / learned).log()).sum(dim=1).mean()))
    assert errors[1] < 0.002
    assert errors[1] < 0.3 * errors[0]


def test_the_best_start_is_kept_and_seeds_repeat():
    network = DiscreteNetwork.random(templates.naive_bayes(4, states=3, observed_states=3), seed=0, concentration=0.5)
    data = network.sample(500, seed=1)
    model = EM(network.graph, restarts=4, progress=False).fit(data)
    best = max(run.objective[-1] for run in model.runs)
    alone = [EM(network.graph, restarts=k, progress=False).fit(data).runs[-1].objective[-1] for k in (1, 2)]
    assert alone == [run.objective[-1] for run in model.runs[:2]]
    log_likelihood = float(model.log_evidence(data).mean())
    prior = 0.01 * sum(float(t.log().sum()) for t in model.network.cpts.values()) / 500
    assert log_likelihood + prior == pytest.approx(best, rel=1e-6)
    other = EM(network.graph, restarts=4, seed=1, progress=False).fit(data)
    assert [r.objective for r in other.runs] != [r.objective for r in model.runs]


def test_labels_saving_and_sampling(tmp_path):
    graph = templates.naive_bayes(3, states=2, observed_states=2)
    data = {v: ["no", "yes", "yes", "no", "yes"] * 20 for v in graph.observed}
    model = EM(graph, restarts=1, progress=False).fit(data)
    expected = model.posterior("x1", {"x2": ["yes", None]})
    model.save(tmp_path / "em.pt")
    loaded = EM.load(tmp_path / "em.pt")
    torch.testing.assert_close(loaded.posterior("x1", {"x2": ["yes", None]}), expected)
    assert set(loaded.sample(7)) == set(graph.observed)
    assert set(loaded.posteriors({"x1": ["no"]})) == {"x2", "x3"}


def test_bad_input(tmp_path):
    graph = templates.naive_bayes(3)
    with pytest.raises(NotFittedError, match="Call fit"):
        EM(graph).posterior("x1")
    with pytest.raises(StructureError, match="restarts: expected at least 1"):
        EM(graph, restarts=0)
    with pytest.raises(StructureError, match="prior: expected a non-negative number"):
        EM(graph, prior=-1.0)
    with pytest.raises(StructureError, match="expected a directed graph"):
        EM(templates.grid(2, 2))
    with pytest.raises(StructureError, match="continuous"):
        EM(LatentGraph([("h", "x")], {"h": 2, "x": Continuous()}, ["h"]))
    with pytest.raises(DataError, match="missing columns"):
        EM(graph, progress=False).fit({"x1": [0, 1]})
    model = EM(graph, restarts=1, iterations=2, progress=False).fit(DiscreteNetwork.random(graph).sample(50))
    with pytest.raises(QueryError, match="latent"):
        model.posterior("h", {"x1": [0]})
    PBP(graph).fit(DiscreteNetwork.random(graph).sample(50)).save(tmp_path / "pbp.pt")
    with pytest.raises(CheckpointError, match="no model learned by EM"):
        EM.load(tmp_path / "pbp.pt")


def test_the_step_that_maximises():
    counts = torch.tensor([[3.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(maximised(counts, 0.0), torch.tensor([[0.75, 0.25], [0.5, 0.5]], dtype=torch.float64))
    torch.testing.assert_close(maximised(counts, 1.0), torch.tensor([[4 / 6, 2 / 6], [0.5, 0.5]], dtype=torch.float64))
