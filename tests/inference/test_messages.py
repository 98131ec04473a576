"""Message passing against a direct contraction of all operators."""

import pytest
import torch

from torchpbp import PBP, DiscreteNetwork, Evidence, templates
from torchpbp.exact.contraction import contract
from torchpbp.inference.observable import as_distribution, negative_mass


def direct(model, evidence_states):
    """Contract every operator at once, with one-hot vectors at the leaves."""
    tree, operands, modes = model.tree, [model.root.weight], [tuple(("s", c) for c in model.tree.children[0])]
    for node in range(1, len(tree)):
        below = [("s", c) for c in tree.children[node]] or [("x", v) for v in tree.leaf_observables[node]]
        operands.append(model.operators[node - 1].weight)
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
    tree, exact, mixed = model.operator_tree, Evidence(6, hard), Evidence(6, rest, soft)
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
