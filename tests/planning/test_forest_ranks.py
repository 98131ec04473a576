"""Ranks in closed form against random draws, on random trees."""

import random

import pytest

from torchpbp import LatentGraph, build_junction_tree, templates
from torchpbp.planning import PlanOptions, plan_tree
from torchpbp.planning.forest_ranks import ForestRanks
from torchpbp.planning.planner import clear_cached_plans
from torchpbp.planning.rank_bounds import is_forest, rank_bounds
from torchpbp.planning.ranks import StructureProbe


def random_forest(seed: int) -> LatentGraph:
    """Latents of 2 to 4 states, some of them observed, with up to three observables each, which may have children."""
    draw = random.Random(seed)
    count = draw.randint(2, 6)
    variables = {f"h{i}": draw.randint(2, 4) for i in range(count)}
    edges = [(f"h{draw.randrange(i)}", f"h{i}") for i in range(1, count) if draw.random() < 0.9]
    latent = [h for h in variables if draw.random() < 0.9]
    for h in list(variables):
        for k in range(draw.choice([0, 1, 1, 2, 3])):
            variables[f"x{h}{k}"] = draw.randint(2, 4)
            edges.append((h, f"x{h}{k}"))
            if draw.random() < 0.2:
                variables[f"y{h}{k}"] = draw.randint(2, 3)
                edges.append((f"x{h}{k}", f"y{h}{k}"))
    variables["alone"] = 2
    return LatentGraph(edges, variables, latent, directed=draw.random() < 0.7)


@pytest.mark.parametrize("seed", range(12))
def test_closed_forms_are_the_ranks_of_random_draws(seed):
    tree = build_junction_tree(random_forest(seed))
    ranks = ForestRanks(tree, rank_bounds(tree), 0)
    probes = [StructureProbe(tree, s) for s in (1, 2)]
    draw = random.Random(seed)
    for node in range(1, len(tree)):
        assert ranks.separator_rank(node) == max(p.separator_rank(node) for p in probes), tree.separator_name(node)
        inside = sorted(tree.inside[node])
        group = tuple(draw.sample(inside, min(len(inside), 3)))
        assert ranks.core_rank(node, group) == max(p.core_rank(node, group) for p in probes), group


@pytest.mark.filterwarnings(
    "ignore::torchpbp.errors.RankWarning"
)  # few near observables: products are needed, or not enough
@pytest.mark.parametrize("seed", range(12, 24))
def test_plans_in_closed_form_are_those_of_random_draws(seed, monkeypatch):
    tree = build_junction_tree(random_forest(seed))
    options = PlanOptions(singles=2, pool=4)
    clear_cached_plans()
    closed = plan_tree(tree, options)
    monkeypatch.setattr("torchpbp.planning.planner.rank_bounds", lambda t: rank_bounds(t)._replace(exact=False))
    clear_cached_plans()
    drawn = plan_tree(tree, options)
    clear_cached_plans()
    assert closed == drawn


def test_bounds_hold_where_there_is_no_closed_form():
    for graph in (templates.diamond(), templates.nested_loops(), templates.hmm(6, order=2), templates.grid(2, 3)):
        tree = build_junction_tree(graph)
        bounds, probe = rank_bounds(tree), StructureProbe(tree, 1)
        assert not bounds.exact
        assert all(probe.separator_rank(n) <= bounds.rank(n) for n in range(1, len(tree)))


def test_two_parents_or_a_cycle_are_no_forest():
    edges = [("a", "b"), ("c", "b")]
    assert is_forest(build_junction_tree(LatentGraph(edges, dict.fromkeys("abc", 2), directed=False)))
    assert not is_forest(build_junction_tree(LatentGraph(edges, dict.fromkeys("abc", 2))))
    assert not is_forest(
        build_junction_tree(LatentGraph([*edges, ("a", "c")], dict.fromkeys("abc", 2), directed=False))
    )


def test_hubs_and_long_chains_have_balanced_trees_and_small_plans():
    star = plan_tree(build_junction_tree(templates.naive_bayes(300)))
    assert max(star.tree.depth) <= 10
    assert {(s.rank, len(s.core), len(s.instrument)) for s in star.separators} == {(3, 1, 8)}
