"""Message passing against a direct contraction of all operators."""

import itertools

import pytest
import torch

from torchpbp import PBP, DiscreteNetwork, Evidence, LatentGraph, templates
from torchpbp.exact.contraction import contract
from torchpbp.inference import schedule
from torchpbp.inference.observable import as_distribution, negative_mass


def direct(model, evidence_states):
    """Contract every operator at once, with one-hot vectors at the leaves."""
    tree, operands, modes = model.tree, [model.operators.root.weight], [tuple(("s", c) for c in model.tree.children[0])]
    for node in range(1, len(tree)):
        below = [("s", c) for c in tree.children[node]] or [("x", v) for v in tree.leaf_observables[node]]
        operands.append(model.operators.separators[node - 1].weight)
        modes.append((("s", node), *below))
    for v, state in evidence_states.items():
        operands.append(torch.eye(model.states[v], dtype=torch.float64)[state])
        modes.append((("x", v),))
    return contract(operands, modes, ())


def test_log_evidence_equals_contracting_everything():
    for graph in (templates.diamond(observed_states=3), templates.hmm(4), templates.loopy_network(observed_states=3)):
        network = DiscreteNetwork.random(graph, seed=1)
        model = PBP(graph).fit(network.sample(300, seed=0))
        rows = network.sample(5, seed=9)
        sign, log_size = model.log_evidence(rows, raw=True)
        for row in range(5):
            value = direct(model, {v: int(x[row]) for v, x in rows.items()})
            assert torch.allclose(sign[row] * log_size[row].exp(), value, rtol=1e-9)


@pytest.mark.parametrize("chosen", [("x2",), ("x1", "x4"), ("x1", "x2", "x3", "x4", "x5")])
def test_states_and_weights_of_the_same_leaves_mean_the_same(chosen):
    graph = templates.hmm(5)
    network = DiscreteNetwork.random(graph, seed=1)
    model = PBP(graph).fit(network.sample(500, seed=0))
    drawn = network.sample(6, seed=9).items()
    hard = {v: torch.where(torch.arange(6) % 3 == i % 3, -1, x) for i, (v, x) in enumerate(drawn)}
    soft = {v: 1e-3 * weights_of(hard[v], model.states[v]) for v in chosen}
    rest = {v: x for v, x in hard.items() if v not in soft}
    tree, exact, mixed = model.operators.tree, Evidence(6, hard), Evidence(6, rest, soft)
    scale = len(chosen) * torch.tensor(1e-3, dtype=torch.float64).log()
    torch.testing.assert_close(tree.log_mass(mixed), tree.log_mass(exact) + scale)
    for leaf in model.tree.leaves:  # alone, and with all others
        tables = [tree.estimates(exact)[leaf], tree.estimates(mixed)[leaf], tree.estimates(mixed, [leaf])[leaf]]
        one, *others = [t / t.abs().sum(dim=1, keepdim=True) for t in tables]
        for other in others:
            torch.testing.assert_close(other, one)


def weights_of(states, count):
    """(rows, count) one-hot weights; ones for -1."""
    return torch.cat([torch.eye(count), torch.ones(1, count)]).double()[states]


GRAPHS = {
    "diamond": templates.diamond(observed_states=3),
    "chain": templates.hmm(7),
    "loops": templates.loopy_network(observed_states=3),
    "unlike leaves": LatentGraph(
        [
            ("h", "k"),
            ("k", "m"),
            ("m", "n"),
            ("h", "a"),
            ("h", "b"),
            ("k", "c"),
            ("m", "d"),
            ("m", "e"),
            ("n", "f"),
            ("n", "g"),
        ],
        {"h": 2, "k": 2, "m": 2, "n": 2, "a": 2, "b": 3, "c": 4, "d": 2, "e": 5, "f": 3, "g": 2},
        ["h", "k", "m", "n"],
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("classes", [False, True])
def test_the_way_to_some_leaves_gives_what_the_way_to_all_does(name, classes):
    """Messages that the way does not use are left out; what arrives, with its scale, is the same."""
    graph = GRAPHS[name]
    rows = DiscreteNetwork.random(graph, seed=1).sample(400, seed=0)
    if classes:
        graph = LatentGraph(
            [*graph.edges, *(("y", h) for h in graph.latent)], {**graph.variables, "y": 2}, graph.latent
        )
        rows["y"] = torch.arange(400) % 2
    model = PBP(graph, condition="y" if classes else None).fit(rows)
    observed = list(model.tree.leaf_of)
    hard = {v: torch.where(torch.arange(5) % 3 == i % 3, -1, rows[v][:5]) for i, v in enumerate(observed[1:])}
    evidence = Evidence(5, hard, {observed[0]: weights_of(rows[observed[0]][:5], model.states[observed[0]]) + 0.1})
    tree = model.operators.tree
    expected = tree.scaled_estimates(evidence)
    leaves = model.tree.leaves
    for chosen in [*((leaf,) for leaf in leaves), *itertools.combinations(leaves, 2), leaves[::2], leaves[::-1]]:
        found = tree.scaled_estimates(evidence, chosen)
        assert set(found) == set(chosen)
        for leaf, (table, log_scale) in found.items():
            whole, whole_scale = expected[leaf]
            shape = (*log_scale.shape, *[1] * (table.ndim - log_scale.ndim))
            torch.testing.assert_close(table * (log_scale - whole_scale).exp().reshape(shape), whole, rtol=1e-9, atol=0)


def test_routes_are_remembered_within_bounds(monkeypatch):
    monkeypatch.setattr(schedule, "MOST_ROUTES", 3)
    graph = templates.hmm(6)
    model = PBP(graph).fit(DiscreteNetwork.random(graph, seed=1).sample(200, seed=0))
    first = {v: model.posterior(v) for v in model.states}
    for v, p in first.items():
        torch.testing.assert_close(model.posterior(v), p)
    assert len(model.operators.tree.schedule._routes) <= 3


def test_clipping():
    estimate = torch.tensor([[0.5, 0.5, -0.1], [0.0, 0.0, 0.0], [-2.0, 6.0, 2.0]], dtype=torch.float64)
    p = as_distribution(estimate, 1e-6)
    assert torch.allclose(p.sum(dim=1), torch.ones(3, dtype=torch.float64))
    assert torch.allclose(p[0], torch.tensor([0.5, 0.5, 1e-6], dtype=torch.float64), atol=1e-5)
    assert torch.allclose(p[1], torch.full((3,), 1 / 3, dtype=torch.float64))
    assert torch.allclose(negative_mass(estimate), torch.tensor([0.1 / 1.1, 0.0, 0.2], dtype=torch.float64))
    assert torch.allclose(as_distribution(1e-30 * estimate, 1e-6), p)  # scale does not matter


def test_noisy_estimates_retreat_to_the_fallback_by_twice_their_negative_share():
    fallback = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    estimate = torch.tensor([[1.0, 3.0, 4.0], [3.0, 6.0, -1.0], [-1.0, -2.0, 0.5], [0, 0, 0]], dtype=torch.float64)
    p = as_distribution(estimate, 0.0, fallback)
    assert torch.allclose(p[0], estimate[0] / 8)
    clipped = torch.tensor([1 / 3, 2 / 3, 0.0], dtype=torch.float64)
    assert torch.allclose(p[1], 0.8 * clipped + 0.2 * fallback)
    assert torch.allclose(p[2], fallback)
    assert torch.allclose(p[3], fallback)
