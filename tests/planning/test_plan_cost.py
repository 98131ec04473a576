"""Estimates made before work, and the error above the budget."""

import pytest
import torch

from tests.models.structures import STRUCTURES
from torchpbp import PBP, DiscreteNetwork, LatentGraph, SpectralJunctionTree, build_junction_tree, templates
from torchpbp.errors import ArgumentError, BudgetError
from torchpbp.planning import plan_tree
from torchpbp.planning.plan_cost import tree_cost
from torchpbp.planning.rank_bounds import rank_bounds

PARENTS = LatentGraph([(f"p{i}", "y") for i in range(40)], dict.fromkeys([*(f"p{i}" for i in range(40)), "y"], 2))


@pytest.mark.parametrize("learner", [PBP, SpectralJunctionTree])
@pytest.mark.parametrize(
    "graph", [templates.grid(7, 7), templates.grid(10, 10), PARENTS], ids=["7x7", "10x10", "parents"]
)
def test_structures_beyond_the_budget_raise_before_they_are_planned(graph, learner):
    with pytest.raises(
        BudgetError, match=r"of memory and .* budget of 4 GiB.*clique \{.*variables\)\}, has .* entries.*budget="
    ):
        learner(graph)


def test_a_plan_that_takes_too_long_raises_before_it_is_made():
    graph = templates.hmm(10, 10, 4, order=3)  # separators of 1,000 states
    with pytest.raises(BudgetError, match=r"s of it for the plan, .* 4 GiB, which allows 60 s for a plan.*budget="):
        PBP(graph)
    tree = build_junction_tree(graph)
    cost = tree_cost(tree, rank_bounds(tree), dict.fromkeys(graph.observed, 4))
    assert cost.bytes < 2**32
    cost.require(2**34, "A larger budget", "allows more time.")


def test_the_budget_is_in_bytes_and_can_be_lifted():
    graph = templates.diamond()
    need = PBP(graph).plan.cost().bytes
    with pytest.raises(BudgetError, match="Fitting this model would take about"):
        PBP(graph, budget=0.9 * need)
    assert PBP(graph, budget=1.1 * need).plan == PBP(graph, budget=None).plan == PBP(graph).plan
    with pytest.raises(ArgumentError, match="budget: expected None or a positive number, got 0"):
        PBP(graph, budget=0)


@pytest.mark.parametrize("name", STRUCTURES)
def test_the_estimate_before_planning_is_no_more_than_that_of_the_plan(name):
    tree = build_junction_tree(STRUCTURES[name])
    before, plan = tree_cost(tree, rank_bounds(tree), STRUCTURES[name].variables), plan_tree(tree)
    assert before.moments <= plan.cost().moments
    assert before.entries <= plan.cost().entries


def test_costs_count_what_a_fit_holds():
    model = PBP(templates.naive_bayes(4, 3, 20))
    cost = model.plan.cost()
    assert cost.entries == 20**3
    assert cost.operators == model.operators.root.weight.numel() + sum(
        op.weight.numel() for op in model.operators.separator_operators
    )
    counts = model.count({v: torch.zeros(1, dtype=torch.int64) for v in model.graph.observed})
    assert counts.tables.layout.cells <= cost.moments <= 3 * counts.tables.layout.cells


def test_wide_observables_are_learned_exactly():
    graph = templates.naive_bayes(4, 2, 40)
    network = DiscreteNetwork.random(graph, seed=3)
    model = PBP(graph).fit_population(network)  # tables large enough to be read without numbering their cells
    evidence = {"x2": [0, 7, -1], "x4": [3, -1, 39]}
    with torch.no_grad():
        assert torch.allclose(model.posterior("x1", evidence), network.posterior("x1", evidence), atol=1e-8, rtol=0)


def test_exact_networks_have_the_same_limit():
    with pytest.raises(
        BudgetError, match=r"A network on this graph would take about 16 TiB.*\(41 variables\).*budget = <"
    ):
        DiscreteNetwork.random(PARENTS)
    network = DiscreteNetwork.random(templates.diamond(), seed=0)
    network.budget = 100.0
    with pytest.raises(BudgetError, match=r"Exact inference on this graph would take about .*set network.budget"):
        network.posterior("a1", {"d1": torch.tensor([0, 1])})
    network = DiscreteNetwork.random(templates.diamond(), seed=0)
    network.budget = None
    assert network.posterior("a1", {"d1": torch.tensor([0, 1])}).shape == (2, 6)
