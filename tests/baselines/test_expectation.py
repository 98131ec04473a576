"""The E-step and the M-step, for several runs at once."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from tests.baselines.test_em import GRAPHS, with_missing_values
from torchpbp import DiscreteNetwork, LatentGraph, templates
from torchpbp.baselines import expectation
from torchpbp.baselines.expectation import ExpectationStep, TableLayout, numbered
from torchpbp.baselines.rowwise import ROW, RUN, rowwise_product
from torchpbp.exact.contraction import contract


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


def vectors_of(layout: TableLayout, *networks: DiscreteNetwork) -> torch.Tensor:
    return torch.stack([layout.vector(dict(n.factors)) for n in networks])


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
    assert len(step.tree) == 1 or any(step._static(n, torch.arange(40)) for n in range(len(step.tree)))
    assert not any(step._static(n, torch.tensor([0])) for n in range(len(step.tree)))
    for cells, messages in (
        (1 << 18, 1 << 28),
        (3 * 7, 1 << 28),
        (1 << 18, 3 * 5 * step.message_entries),
        (1 << 18, 1),
    ):
        monkeypatch.setattr(expectation, "CELLS_AT_ONCE", cells)
        monkeypatch.setattr(expectation, "LARGEST_MESSAGES", messages)
        sizes = {len(part) for part in step._blocks(torch.arange(40), 3)}
        assert max(sizes) == {(3 * 7): 7, (1 << 18): min(40, max(1, messages // step.message_entries // 3))}[cells]
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
    layout = TableLayout(LatentGraph([("a", "b")], {"a": 2, "b": 3}, latent=["a"]))
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
    layout = TableLayout(network.graph)
    tables = layout.tables(vectors_of(layout, network, network))
    for scope, table in network.factors:
        torch.testing.assert_close(tables[scope], torch.stack([table, table]))


def test_products_over_rows_equal_einsum():
    draw = torch.Generator().manual_seed(0)
    sizes = {RUN: 2, ROW: 5, "a": 2, "b": 3, "c": 4}
    every = [(RUN, "b", "a"), (RUN, "a", ROW), (RUN, "b", ROW), (RUN, "b", "c", ROW), ("c", ROW), (RUN, "c", "a")]
    for count in range(1, len(every) + 1):
        for scopes in itertools.combinations(every, count):
            present = {m for scope in scopes for m in scope}
            parts = [(torch.rand([sizes[m] for m in s], generator=draw, dtype=torch.float64), s) for s in scopes]
            for kept in [(), ("a",), ("b", "c"), ("c", "a")]:
                output = (RUN, *kept, ROW)
                if set(output) <= present:
                    expected = contract([t for t, _ in parts], [s for _, s in parts], output)
                    torch.testing.assert_close(rowwise_product(parts, output), expected)
