"""Trees of operators per class, against the trees of the single classes and the networks behind them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchpbp import PBP, DiscreteNetwork, Evidence, templates
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.inference.observable import Observable, make_map
from torchpbp.inference.operator_tree import OperatorTree, variable_estimate

PRIOR = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
GRAPHS = {
    "diamond": templates.diamond(observed_states=3),
    "hmm": templates.hmm(4),
    "loopy": templates.loopy_network(observed_states=3),
}


def make(graph: LatentGraph, dtype: torch.dtype = torch.float64) -> tuple[OperatorTree, list[DiscreteNetwork], PBP]:
    """Three classes with networks of their own on one graph."""
    networks = [DiscreteNetwork.random(graph, seed=seed) for seed in range(3)]
    models = [PBP(graph).fit_population(network) for network in networks]
    plan = models[0].plan
    operators = [
        torch.stack([m.operators.tree.operators[n].detach().to(dtype) for m in models]) for n in range(len(plan.tree))
    ]
    return OperatorTree(plan, operators, operators[0], "class", PRIOR.to(dtype)), networks, models[0]


def rows(graph: LatentGraph, network: DiscreteNetwork, count: int = 20) -> dict[str, Tensor]:
    """Rows with about a third of the values missing."""
    drawn = network.sample(count, seed=5)
    hidden = torch.rand(len(drawn), count, generator=torch.Generator().manual_seed(1)) < 0.3
    return {v: x.masked_fill(h, -1) for (v, x), h in zip(drawn.items(), hidden, strict=True)}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("own", ["nothing", "states", "weights"])
def test_mass_and_estimates_are_those_of_the_mixture(name, own):
    graph = GRAPHS[name]
    trees, networks, model = make(graph)
    known = rows(graph, networks[0])
    generator = torch.Generator().manual_seed(3)
    weights = torch.ones(20, 3, dtype=torch.float64)
    evidence = Evidence(20, known)
    if own == "states":
        states = torch.randint(-1, 3, (20,), generator=generator)
        weights[states >= 0] = torch.eye(3, dtype=torch.float64)[states[states >= 0]]
        evidence = Evidence(20, {**known, "class": states})
    elif own == "weights":
        weights = torch.rand(20, 3, generator=generator, dtype=torch.float64)
        evidence = Evidence(20, known, {"class": weights})
    each = torch.stack([n.log_evidence(known).exp() for n in networks], dim=1)  # (rows, classes)
    value, size, log_scale = trees.class_masses(evidence)
    assert value.shape == size.shape == log_scale.shape == (20, 3)
    assert torch.allclose(value * log_scale.exp(), each, rtol=1e-7)
    total = (PRIOR * weights * each).sum(dim=1)
    assert torch.allclose(trees.log_mass(evidence), total.log(), rtol=1e-7)

    classes = trees.class_estimates(evidence)
    assert torch.allclose(
        classes / classes.sum(dim=1, keepdim=True), PRIOR * each / (each @ PRIOR).unsqueeze(1), rtol=1e-7
    )

    tables, leaf_of = trees.estimates(evidence), model.tree.leaf_of
    for v in graph.observed:
        rest = {u: x for u, x in known.items() if u != v}
        group = model.tree.leaf_observables[leaf_of[v]]
        zetas = [
            Observable(u, graph.num_states(u), make_map(graph.num_states(u), None)).zeta(evidence, trees.root)
            for u in group
        ]
        estimate = variable_estimate(tables[leaf_of[v]], group.index(v), zetas)
        joint = torch.stack([n.posterior(v, rest) * n.log_evidence(rest).exp().unsqueeze(1) for n in networks], dim=1)
        expected = torch.einsum("nc,ncs->ns", PRIOR * weights, joint)
        found = estimate / estimate.sum(dim=1, keepdim=True)
        assert torch.allclose(found, expected / expected.sum(dim=1, keepdim=True), atol=1e-7, rtol=0)
        assert torch.allclose(trees.estimates(evidence, [leaf_of[v]])[leaf_of[v]], tables[leaf_of[v]])


def test_long_chains_mix_by_their_probabilities():
    """In single precision, where these probabilities underflow; classes differ by ten orders of magnitude and more."""
    trees, networks, model = make(templates.hmm(150), torch.float32)
    known = networks[1].sample(6, seed=2)
    known = {v: x.masked_fill(torch.tensor([v == "x7"] * 6), -1) for v, x in known.items()}
    evidence = Evidence(6, known)
    each = torch.stack([trees.of_class(c).log_mass(evidence) for c in range(3)], dim=1)
    assert float(each.max()) < -150  # exp(-104) is 0
    assert torch.allclose(trees.log_mass(evidence), (each + PRIOR.log().float()).logsumexp(dim=1), rtol=1e-5)
    leaf = model.tree.leaf_of["x7"]
    single = trees.of_class(1).estimates(evidence, [leaf])[leaf].flatten(1)  # the only class that matters
    mixed = trees.estimates(evidence, [leaf])[leaf].flatten(1)
    assert torch.allclose(mixed / mixed.sum(1, keepdim=True), single / single.sum(1, keepdim=True), atol=1e-4)
    forced = Evidence(6, {**known, "class": torch.zeros(6, dtype=torch.int64)})  # the others are far more probable
    single = trees.of_class(0).estimates(evidence, [leaf])[leaf].flatten(1)
    mixed = trees.estimates(forced, [leaf])[leaf].flatten(1)
    assert torch.allclose(mixed / mixed.sum(1, keepdim=True), single / single.sum(1, keepdim=True), atol=1e-4)


def test_impossible_classes_and_evidence():
    trees, networks, _ = make(GRAPHS["diamond"])
    known = networks[0].sample(2, seed=0)
    certain = OperatorTree(trees.plan, trees.operators, trees.root, "class", torch.tensor([1.0, 0.0, 0.0]).double())
    evidence = Evidence(2, {**known, "class": torch.tensor([1, 0])})
    log_mass = certain.log_mass(evidence)
    assert float(log_mass[0]) == -torch.inf
    assert torch.allclose(log_mass[1], networks[0].log_evidence(known)[1], rtol=1e-7)
    alone = trees.of_class(1).estimates(Evidence(2, known))  # given a class that never occurs, its tree is asked
    for leaf, table in certain.estimates(evidence).items():
        expected = alone[leaf][0] / alone[leaf][0].sum()
        assert torch.allclose(table[0] / table[0].sum(), expected, atol=1e-9)
        assert bool(table.isfinite().all())


def test_gradients_agree_with_finite_differences():
    trees, networks, _ = make(templates.hmm(3, observed_states=2, states=2))
    known = rows(networks[0].graph, networks[0], 3)
    soft = torch.rand(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    own = torch.rand(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()

    def answers(prior: Tensor, soft: Tensor, own: Tensor, root: Tensor, *operators: Tensor) -> tuple[Tensor, ...]:
        moved = OperatorTree(trees.plan, [root, *operators], root, "class", prior)
        evidence = Evidence(3, {v: x for v, x in known.items() if v != "x1"}, {"x1": soft, "class": own})
        tables = [t.flatten(1) for t in moved.estimates(evidence).values()]
        shares = [t / t.sum(dim=1, keepdim=True) for t in (*tables, moved.class_estimates(evidence))]
        return (moved.log_mass(evidence), *shares)

    weights = [w.clone().requires_grad_() for w in (trees.root, *trees.operators[1:])]
    assert torch.autograd.gradcheck(answers, (PRIOR.clone().requires_grad_(), soft, own, *weights))


def test_single_precision_and_without_data():
    trees, networks, _ = make(GRAPHS["diamond"])
    small, _, _ = make(GRAPHS["diamond"], torch.float32)
    known = rows(networks[0].graph, networks[0])
    weights = torch.rand(20, 3, generator=torch.Generator().manual_seed(3))
    exact, evidence = Evidence(20, known, {"class": weights.double()}), Evidence(20, known, {"class": weights})
    assert small.log_mass(evidence).dtype == torch.float32
    assert torch.allclose(small.log_mass(evidence).double(), trees.log_mass(exact), atol=1e-3)
    empty = [w.to("meta") for w in trees.operators]
    nowhere = OperatorTree(trees.plan, empty, empty[0], "class", PRIOR.to("meta"))
    assert nowhere.log_mass(Evidence(20, {v: x.to("meta") for v, x in known.items()})).shape == (20,)


@pytest.mark.parametrize("share", ["all", "every other"])
@pytest.mark.parametrize("name", [*GRAPHS, "naive Bayes"])
def test_operators_of_leaves_that_all_classes_share(name, share):
    """A class dimension of size 1 means the same as equal operators of all classes."""
    trees, networks, model = make({**GRAPHS, "naive Bayes": templates.naive_bayes(3)}[name])
    shared = set(model.tree.leaves[:: 1 if share == "all" else 2])
    few = [w[:1] if n in shared else w for n, w in enumerate(trees.operators)]
    many = [w.expand(3, *w.shape[1:]) for w in few]
    a, b = (OperatorTree(trees.plan, operators, trees.root, "class", PRIOR) for operators in (few, many))
    evidence = Evidence(20, rows(networks[0].graph, networks[0]))
    torch.testing.assert_close(a.class_estimates(evidence), b.class_estimates(evidence))
    torch.testing.assert_close(a.log_mass(evidence), b.log_mass(evidence))
    left, right = a.estimates(evidence), b.estimates(evidence)
    for leaf in model.tree.leaves:
        torch.testing.assert_close(left[leaf], right[leaf])


def test_draws_follow_the_mixture():
    graph = GRAPHS["hmm"]
    trees, networks, model = make(graph)
    observables = {**model.observables, "class": Observable("class", 3, make_map(3, None))}
    given = Evidence(1, {"x1": torch.tensor([1])}, {"class": torch.tensor([[1.0, 0.0, 2.0]], dtype=torch.float64)})
    draws = trees.sample(given.repeat_interleave(4000), observables, 1e-9, torch.Generator().manual_seed(0))
    assert set(draws) == {*graph.observed, "class"}
    assert bool((draws["x1"] == 1).all())
    each = torch.stack([n.log_evidence({"x1": [1]}).exp() for n in networks], dim=1)[0]
    expected = PRIOR * each * torch.tensor([1.0, 0.0, 2.0])
    shares = torch.bincount(draws["class"], minlength=3) / 4000
    assert torch.allclose(shares.double(), expected / expected.sum(), atol=0.03)
    for label in (0, 2):
        drawn = draws["x4"][draws["class"] == label]
        share = torch.bincount(drawn, minlength=graph.num_states("x4")) / len(drawn)
        assert torch.allclose(share.double(), networks[label].posterior("x4", {"x1": [1]})[0], atol=0.05)
