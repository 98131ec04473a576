"""The score link and the objectives: gradients everywhere, and values that agree with the model's own answers."""

import math

import pytest
import torch

from torchpbp import PBP, Continuous, DiscreteNetwork, LatentGraph, templates
from torchpbp.errors import QueryError, ShapeError, StructureError
from torchpbp.inputs import Evidence
from torchpbp.models.refinement import ClassLikelihood, ConditionalLikelihood, JointLikelihood
from torchpbp.models.refinement.link import log_link, log_probabilities
from torchpbp.models.refinement.objectives import CustomLoss, hide, negative_share, random_cells

SEED = 3


def generator(seed=SEED):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def network():
    return DiscreteNetwork.random(templates.diamond(2, 3, 1), seed=1)


@pytest.fixture(scope="module")
def exact(network):
    return PBP(network.graph).fit_population(network)


@pytest.fixture(scope="module")
def noisy(network):
    """A model of so few rows that some of its estimates are negative."""
    return PBP(network.graph, ridge=(0.01, 0.01)).fit(network.sample(60, seed=5))


@pytest.fixture(scope="module")
def rows(network):
    data = network.sample(40, seed=7)
    return Evidence(40, data)


def test_link_is_the_logarithm_of_scores_well_above_its_scale():
    scores = torch.tensor([0.05, 0.3, 1.0], dtype=torch.float64)
    assert torch.allclose(log_link(scores, 1e-3), scores.log(), atol=1e-3)


def test_link_has_a_gradient_where_the_clipped_logarithm_has_none():
    scores = torch.linspace(-2, 2, 41, dtype=torch.float64).requires_grad_()
    (slope,) = torch.autograd.grad(log_link(scores, 1e-3).sum(), scores)
    assert bool((slope > 0).all())
    assert bool(slope.isfinite().all())
    clipped = scores.clamp(min=1e-3).log().sum()
    assert bool((torch.autograd.grad(clipped, scores)[0][scores < 0] == 0).all())


@pytest.mark.parametrize("scale", [1e-3, 0.1])
def test_link_passes_gradcheck_on_both_sides_of_zero(scale):
    scores = torch.tensor([[-0.7, -0.01, 0.0, 0.02, 0.9], [0.3, 0.2, -0.3, 0.1, 0.4]], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda s: log_link(s, scale), scores.requires_grad_())


def test_linked_probabilities_sum_to_one_keep_the_order_and_survive_a_row_of_zeros():
    scores = torch.tensor([[0.5, -0.2, 0.7], [0.0, 0.0, 0.0]], dtype=torch.float64)
    found = log_probabilities(scores).exp()
    assert torch.allclose(found.sum(dim=1), torch.ones(2, dtype=torch.float64))
    assert found[0].argsort().tolist() == scores[0].argsort().tolist()
    assert torch.allclose(found[1], torch.full((3,), 1 / 3, dtype=torch.float64))
    assert torch.allclose(log_probabilities(scores * 1e-8)[0], log_probabilities(scores)[0])


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_a_link_needs_a_positive_scale(scale):
    with pytest.raises(StructureError, match="expected a positive number"):
        log_link(torch.zeros(2), scale)


@pytest.mark.parametrize("objective", [JointLikelihood(), ConditionalLikelihood(), ClassLikelihood("b1")])
def test_objectives_pass_gradcheck_in_the_operators(noisy, rows, objective):
    few = rows.rows(slice(0, 5))
    weights = [w.detach().clone().requires_grad_() for w in noisy.operator_tree.operators]

    def costs(*operators):
        names = ["root.weight", *(f"operators.{i}.weight" for i in range(len(operators) - 1))]
        return torch.func.functional_call(
            Costs(noisy, objective, few), dict(zip(("model." + n for n in names), operators, strict=True)), ()
        )

    assert torch.autograd.gradcheck(costs, weights, eps=1e-7, atol=1e-4)


class Costs(torch.nn.Module):
    def __init__(self, model, objective, rows):
        super().__init__()
        self.model, self.objective, self.rows = model, objective, rows

    def forward(self):
        return self.objective.loss(self.model, self.rows, generator())


def test_losses_of_an_exact_model_are_the_true_ones(network, exact, rows):
    joint = JointLikelihood().loss(exact, rows, generator())
    assert torch.allclose(joint, -network.log_evidence(rows.hard), atol=1e-4)
    names = list(rows.hard)
    others = {v: rows.hard[v] for v in names[1:]}
    true = network.posterior(names[0], others).gather(1, rows.hard[names[0]].unsqueeze(1)).squeeze(1)
    assert torch.allclose(ClassLikelihood(names[0]).loss(exact, rows, generator()), -true.log(), atol=1e-3)
    visible, hidden = hide(rows, generator())
    expected = torch.zeros(rows.batch, dtype=torch.float64)
    for v, states in rows.hard.items():
        given = {u: s for u, s in visible.hard.items() if u != v}
        probability = network.posterior(v, given).gather(1, states.unsqueeze(1)).squeeze(1)
        expected -= probability.log() * hidden[v]
    assert torch.allclose(ConditionalLikelihood().loss(exact, rows, generator()), expected, atol=1e-2)
    assert torch.allclose(ConditionalLikelihood().score(exact, rows, generator()), expected, atol=1e-6)


def test_joint_score_does_not_fall_by_scaling_the_root(exact, rows):
    before = JointLikelihood().score(exact, rows, generator())
    root = exact.root.weight.detach().clone()
    try:
        with torch.no_grad():
            exact.root.weight.mul_(3.0)
        after = JointLikelihood().score(exact, rows, generator())
        linked = JointLikelihood().loss(exact, rows, generator())
    finally:
        with torch.no_grad():
            exact.root.weight.copy_(root)
    assert torch.allclose(before, after)
    assert torch.allclose(linked, before, atol=1e-4)


def test_hiding_covers_everything_from_none_to_all_and_repeats_with_its_seed(rows):
    visible, hidden = hide(rows, generator())
    mask = torch.stack([hidden[v] for v in rows.hard])
    assert bool(mask.any())
    assert not bool(mask.all())
    for v, states in rows.hard.items():
        assert torch.equal(visible.hard[v], torch.where(hidden[v], -1, states))
    again, _ = hide(rows, generator())
    assert all(torch.equal(again.hard[v], visible.hard[v]) for v in rows.hard)


def test_negative_share_is_zero_for_an_exact_model_and_seen_in_a_noisy_one(exact, noisy):
    cells = random_cells(noisy, 300, generator())
    with torch.no_grad():
        assert float(negative_share(noisy, cells)) > 1e-3
        assert float(negative_share(exact, cells)) < 1e-9


def test_continuous_values_have_a_gradient_and_a_linked_density_near_the_models_own():
    graph = LatentGraph(
        [("h", "x"), ("h", "y"), ("h", "c")], {"h": 2, "x": Continuous(), "y": Continuous(), "c": 3}, ["h"]
    )
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randint(2, (400,), generator=draw)
    data = {v: 2.0 * hidden + 0.5 * torch.randn(400, generator=draw, dtype=torch.float64) for v in "xy"}
    data["c"] = hidden + torch.randint(2, (400,), generator=draw)
    model = PBP(graph).fit(data)
    rows = Evidence(50, {"c": data["c"][:50]}, {}, {v: data[v][:50] for v in "xy"})
    objective = ConditionalLikelihood()
    loss = objective.loss(model, rows, generator())
    assert torch.allclose(loss.mean(), objective.score(model, rows, generator()).mean(), atol=0.1)
    gradients = torch.autograd.grad(loss.sum(), model.operator_tree.operators)
    assert all(bool(g.isfinite().all()) and float(g.abs().sum()) > 0 for g in gradients)
    with torch.no_grad():
        assert 0 <= float(negative_share(model, random_cells(model, 50, generator()))) < 1


def test_a_class_must_be_a_discrete_observable(exact):
    with pytest.raises(QueryError, match="expected a discrete observable"):
        ClassLikelihood("A").check(exact)


def test_a_loss_function_returns_one_cost_per_row(exact, rows):
    with pytest.raises(ShapeError, match="Do not average"):
        CustomLoss(lambda model, rows: model.log_evidence(rows).mean()).loss(exact, rows, generator())
