"""The E-step and the M-step, for several runs at once."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from tests.baselines.test_em import GRAPHS, with_missing_values
from torchpbp import DiscreteNetwork, LatentGraph, templates
from torchpbp.models.likelihood import expectation, lookup
from torchpbp.models.likelihood.expectation import ExpectationStep, systematic_sample
from torchpbp.models.likelihood.layout import FamilyLayout
from torchpbp.moments.distinct_rows import counted_rows, numbered


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
        total += float(counts[i]) * math.log(evidence)
        for world, p in zip(worlds, mass, strict=True):
            value = dict(zip(names, world, strict=True))
            for scope in result:
                result[scope][tuple(value[v] for v in scope)] += float(counts[i]) * p / evidence
    return total, result


def vectors_of(layout: FamilyLayout, *networks: DiscreteNetwork) -> torch.Tensor:
    return torch.stack([layout.vector(dict(n.factors)) for n in networks])


@pytest.fixture(params=[24, 2])
def indicators(request, monkeypatch):
    """Tables with few places are read by products with indicators, others place by place."""
    monkeypatch.setattr(lookup, "LARGEST_INDICATOR", request.param)


@pytest.mark.usefixtures("indicators")
@pytest.mark.parametrize("missing", [0.0, 0.4])
@pytest.mark.parametrize("name", GRAPHS)
def test_expected_counts_equal_enumeration_in_every_run(name, missing):
    graph = GRAPHS[name]
    networks = [DiscreteNetwork.random(graph, seed) for seed in (1, 2)]
    rows = with_missing_values(networks[0].sample(9, seed=2), missing, seed=3)
    counts = torch.tensor([1.0, 2.0, 1.0, 5.0, 1.0, 3.0, 1.0, 4.0, 2.0], dtype=torch.float64)
    step = ExpectationStep(graph, rows, counts)
    total, found = step(vectors_of(step.layout, *networks))
    for run, network in enumerate(networks):
        expected_total, expected = enumerated(network, rows, counts)
        assert float(total[run]) == pytest.approx(expected_total, rel=1e-10)
        for scope, table in step.layout.tables(found).items():
            torch.testing.assert_close(table[run], expected[scope], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", [*GRAPHS, "loopy", "two parts"])
def test_patterns_and_blocks_change_nothing(name, monkeypatch):
    """Each row alone has no patterns to share; many rows have, and are looked at block by block."""
    extra = {
        "loopy": templates.loopy_network(observed_states=3),
        "two parts": LatentGraph([("g", "x"), ("h", "y"), ("h", "z")], dict.fromkeys("ghxyz", 2), latent=["g", "h"]),
    }
    graph = {**GRAPHS, **extra}[name]
    networks = [DiscreteNetwork.random(graph, seed) for seed in (1, 2, 3)]
    rows = with_missing_values(networks[0].sample(40, seed=2), 0.2, seed=3)
    step = ExpectationStep(graph, rows, torch.ones(40))
    vectors = vectors_of(step.layout, *networks)
    one_by_one = [step(vectors, torch.tensor([i])) for i in range(40)]
    for block, cells, messages, indicators in (
        (1 << 14, 1 << 20, 1 << 26, 1 << 26),
        (1 << 14, 1 << 20, 1 << 26, 1),
        (7, 1 << 20, 1 << 26, 1 << 26),
        (1 << 14, 1, 1 << 26, 1 << 26),
        (1 << 14, 1, 1, 1 << 26),
    ):
        monkeypatch.setattr(expectation, "LARGEST_INDICATORS", indicators)
        monkeypatch.setattr(expectation, "CELLS_AT_ONCE", cells)
        monkeypatch.setattr(expectation, "LARGEST_MESSAGES", messages)
        step = ExpectationStep(graph, rows, torch.ones(40), block)
        assert (len(step.groups) >= 40) == (messages == 1)
        total, counts = step(vectors)
        torch.testing.assert_close(total, sum(t for t, _ in one_by_one))
        torch.testing.assert_close(counts, sum(c for _, c in one_by_one))
        torch.testing.assert_close(step.log_likelihood(vectors), total)


@pytest.mark.parametrize("name", ["chain", "star"])
def test_many_variables_do_not_underflow(name):
    """The probability of a row is below 10^-300."""
    graph = (
        templates.hmm(420, states=2, observed_states=8)
        if name == "chain"
        else templates.naive_bayes(420, states=2, observed_states=8)
    )
    network = DiscreteNetwork.random(graph, seed=1)
    rows = network.sample(3, seed=2)
    step = ExpectationStep(graph, rows, torch.ones(3))
    vectors = vectors_of(step.layout, network)
    total, counts = step(vectors)
    assert float(total) == pytest.approx(float(network.log_evidence(rows).sum()), rel=1e-10)
    assert float(total) < 3 * math.log(1e-300)
    assert float(counts.sum()) == pytest.approx(3 * len(graph.names), rel=1e-9)


def test_the_step_that_maximises():
    layout = FamilyLayout(LatentGraph([("a", "b")], {"a": 2, "b": 3}, latent=["a"]))
    counts = torch.tensor([[3.0, 1.0, 4.0, 4.0, 2.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    third = 1 / 3
    expected = torch.tensor([[0.75, 0.25, 0.4, 0.4, 0.2, third, third, third]], dtype=torch.float64)
    torch.testing.assert_close(layout.maximised(counts, 0.0), expected)
    raised = torch.tensor([[4 / 6, 2 / 6, 5 / 13, 5 / 13, 3 / 13, third, third, third]], dtype=torch.float64)
    torch.testing.assert_close(layout.maximised(counts, 1.0), raised)


def test_equal_rows_have_equal_numbers():
    columns = torch.randint(4, (5, 300), generator=torch.Generator().manual_seed(1))
    numbers, firsts = numbered(list(columns))
    different, counts = torch.unique(columns, dim=1, return_counts=True)
    assert len(firsts) == different.shape[1] < 300
    torch.testing.assert_close(columns[:, firsts[numbers]], columns)
    assert sorted(torch.bincount(numbers).tolist()) == sorted(counts.tolist())


def test_tables_and_vectors():
    network = DiscreteNetwork.random(templates.loopy_network(), seed=1)
    layout = FamilyLayout(network.graph)
    tables = layout.tables(vectors_of(layout, network, network))
    for scope, table in network.factors:
        torch.testing.assert_close(tables[scope], torch.stack([table, table]))


@pytest.mark.usefixtures("indicators")
@pytest.mark.parametrize("missing", [0.0, 0.4])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_information_is_that_of_the_rows_derivatives(name, missing):
    graph = GRAPHS[name]
    network = DiscreteNetwork.random(graph, 1)
    rows = with_missing_values(network.sample(7, seed=2), missing, seed=3)
    step = ExpectationStep(graph, rows, torch.arange(1.0, 8.0))
    vector = step.layout.vector(dict(network.factors))
    logits = vector.log().requires_grad_()
    raised = logits.exp()
    tables = step.layout.named(raised / step.layout.sums(raised[None])[0])
    order = [i for g in range(len(step.groups)) for i in (step._number == g).nonzero().flatten().tolist()]
    exact = DiscreteNetwork(graph, tables | {})
    exact.factors = tuple((scope, tables[scope[-1]]) for scope, _ in exact.factors)  # with their gradients
    logs = exact.log_evidence({v: x[order] for v, x in rows.items()})
    expected = torch.stack([torch.autograd.grad(p, logits, retain_graph=True)[0] for p in logs])[:, step.layout.free]
    weights = step.weights[order]
    torch.testing.assert_close(step.information(vector), (expected * weights[:, None]).T @ expected)


def test_many_groups_of_missing_inner_variables_become_one(monkeypatch):
    names = list("abcd")
    graph = LatentGraph(
        list(itertools.pairwise([*names, "h", "x"])), dict.fromkeys([*names, "h", "x"], 2), latent=["h"]
    )
    network = DiscreteNetwork.random(graph, 1)
    rows = with_missing_values(network.sample(60, seed=2), 0.4, seed=3)
    vectors = vectors_of(FamilyLayout(graph), network)
    expected = ExpectationStep(graph, rows, torch.ones(60))
    assert len(expected.groups) > 4
    monkeypatch.setattr(expectation, "MOST_GROUPS", 4)
    step = ExpectationStep(graph, rows, torch.ones(60))
    assert len(step.groups) == 1
    for found, wanted in zip(step(vectors), expected(vectors), strict=True):
        torch.testing.assert_close(found, wanted)


def test_a_systematic_sample_draws_rows_by_weight_and_keeps_the_total():
    weights = torch.tensor([0.5, 100.0, 1.0, 3.5, 20.0], dtype=torch.float64)
    rows, shares = systematic_sample(weights, 50)
    torch.testing.assert_close(shares.sum(), weights.sum())
    drawn = torch.zeros(5, dtype=torch.float64).index_add_(0, rows, shares)
    assert bool(((drawn - weights).abs() <= weights.sum() / 50).all())
    every, same = systematic_sample(torch.full((7,), 2.0, dtype=torch.float64), 7)
    assert every.tolist() == list(range(7))
    torch.testing.assert_close(same, torch.full((7,), 2.0, dtype=torch.float64))


@pytest.mark.parametrize("states", [3, 400])
def test_distinct_rows_have_the_sums_of_their_weights(states):
    """Few joint states are counted by their code, many are numbered first."""
    generator = torch.Generator().manual_seed(states)
    columns = torch.randint(-1, states, (4, 200), generator=generator)
    columns[:, 100:] = columns[:, :100]
    weights = torch.randint(0, 3, (200,), generator=generator).double()
    found, total = counted_rows(list(columns), weights)
    expected, number = torch.unique(columns, dim=1, return_inverse=True)
    sums = torch.zeros(expected.shape[1], dtype=torch.float64).index_add_(0, number, weights)
    assert int((sums == 0).sum()) > 0
    torch.testing.assert_close(found, expected[:, sums > 0])
    torch.testing.assert_close(total, sums[sums > 0])
