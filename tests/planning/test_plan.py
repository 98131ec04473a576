"""Plans of separators, against ranks of the full tables of random models written out by enumeration."""

from __future__ import annotations

import json
import math
import warnings
from functools import cache

import numpy as np
import pytest
from hypothesis import given

from tests.graph.strategies import SMALL, latent_graphs
from tests.oracle import Oracle, random_cpts
from torchpbp import JunctionTree, LatentGraph, build_junction_tree, templates
from torchpbp.errors import ArgumentError, RankWarning, StructureError
from torchpbp.planning import Plan, PlanOptions, plan_tree


class Ranks:
    """Ranks of cross tables of observables, the largest of several random models with all worlds written out."""

    def __init__(self, graph: LatentGraph, draws: int = 3) -> None:
        self.models = []
        states = {v: graph.num_states(v) for v in graph.names}
        for seed in range(draws):
            rng = np.random.default_rng(seed)
            if graph.directed:
                cpts = random_cpts(graph, rng)
                factors = [((*graph.parents(v), v), cpts[v]) for v in graph.names]
            else:
                scopes = [*graph.edges, *((v,) for v in graph.names)]
                factors = [(s, rng.gamma(1.0, size=[states[v] for v in s]) + 1e-2) for s in scopes]
            self.models.append(Oracle(states, factors))

    def cross(self, rows: tuple[str, ...], groups: tuple[tuple[str, ...], ...]) -> int:
        """Rank of the moment between one group's joint states and a union of other groups' joint states."""
        best = 0
        for model in self.models:
            blocks = []
            for group in groups:
                table = model.joint((*rows, *group))
                blocks.append(table.reshape(math.prod(table.shape[: len(rows)]), -1))
            matrix = np.concatenate(blocks, axis=1)
            scale = np.sqrt(matrix.sum(axis=1, keepdims=True) * matrix.sum(axis=0, keepdims=True))
            values = np.linalg.svd(matrix / scale, compute_uv=False)
            best = max(best, int((values > 1e-12 * values[0]).sum()))
        return best


@cache
def planned(name: str) -> tuple[JunctionTree, Plan, Ranks]:
    tree = build_junction_tree(SMALL[name]())
    return tree, plan_tree(tree), Ranks(tree.graph)


def assert_sound(tree: JunctionTree, plan: Plan, ranks: Ranks) -> None:
    """Everything a separator promises, by enumeration."""
    for separator in plan.separators:
        node = separator.node
        inside, outside = sorted(tree.inside[node]), sorted(tree.outside(node))
        assert separator.needed == ranks.cross(tuple(inside), (tuple(outside),)), tree.separator_name(node)
        assert separator.needed <= math.prod(tree.graph.num_states(v) for v in tree.separators[node])
        assert set(separator.core) <= set(inside)
        assert separator.core
        assert ranks.cross(separator.core, (tuple(outside),)) == separator.needed
        assert all(set(group) <= set(outside) for group in separator.instrument)
        assert len(set(separator.instrument)) == len(separator.instrument)
        assert separator.reached == separator.needed == ranks.cross(separator.core, separator.instrument)
        assert separator.rank == separator.needed
        if tree.leaf_observables[node]:
            assert separator.core == tree.leaf_observables[node]
        elif len(separator.core) > 1:
            for v in separator.core:
                smaller = tuple(u for u in separator.core if u != v)
                assert ranks.cross(smaller, (tuple(outside),)) < separator.needed, (
                    f"{v} is not needed in {separator.core}"
                )
        for group in separator.instrument:
            if group not in tree.leaf_observables:  # a product across leaves, added for its rank
                rest = tuple(g for g in separator.instrument if g != group)
                assert ranks.cross(separator.core, rest) < separator.needed, (
                    f"{group} is not needed in {separator.instrument}"
                )


@pytest.mark.parametrize("name", SMALL)
def test_named_graphs(name):
    assert_sound(*planned(name))


@given(graph=latent_graphs(max_variables=7))
def test_random_graphs(graph):
    tree = build_junction_tree(graph)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RankWarning)
        plan = plan_tree(tree, PlanOptions(pool=10, singles=10))
    assert_sound(tree, plan, Ranks(graph))


def plan_above(tree: JunctionTree, plan: Plan, separator: str, below: str):
    (separator,) = [
        p
        for p in plan.separators
        if tree.separators[p.node] == set(separator.split()) and tree.inside[p.node] == set(below.split())
    ]
    return separator


@pytest.mark.parametrize(("states", "rank"), [(2, 2), (3, 3), (4, 4), (5, 4)])
def test_a_separator_is_worth_no_more_than_what_lies_below_it(states, rank):
    """{B, C} above D alone: D's states bound the rank until B and C themselves do."""
    graph = LatentGraph(
        [("A", "B"), ("A", "C"), ("B", "D"), ("C", "D"), ("A", "a"), ("B", "b"), ("C", "c"), ("D", "d"), ("D", "e")],
        {"A": 4, "B": 2, "C": 2, "D": states, "a": 5, "b": 5, "c": 5, "d": 6, "e": 6},
        list("ABCD"),
    )
    cliques = ["ABC", "Aa", "BC", "BCD", "Bb", "Cc", "Dd", "De"]
    tree = JunctionTree(
        tuple(map(frozenset, cliques)),
        (-1, 0, 0, 0, 2, 2, 3, 3),
        graph,
        ((), ("a",), (), (), ("b",), ("c",), ("d",), ("e",)),
    )
    tree.validate()
    plan = plan_tree(tree)
    assert plan[3].needed == rank
    assert plan[3].core == ("d",)
    assert plan[2].needed == 4
    assert_sound(tree, plan, Ranks(graph))


@pytest.mark.parametrize("states", [2, 3, 5])
def test_messages_of_a_hidden_markov_model_have_the_rank_of_its_states(states):
    tree = build_junction_tree(templates.hmm(6, states, 6))
    assert {p.needed for p in plan_tree(tree).separators} == {states}
    assert {len(p.core) for p in plan_tree(tree).separators} == {1}


def test_observables_with_fewer_states_than_the_latent_act_together():
    tree = build_junction_tree(templates.hmm(8, 4, 2))
    plan = plan_tree(tree)
    for node in tree.leaves:
        assert plan[node].needed == 2
    middle = [n for n in tree.inner if min(len(tree.inside[n]), len(tree.outside(n))) >= 3]
    assert middle
    for node in middle:
        assert plan[node].needed == 4
        assert len(plan[node].core) == 2


def test_nothing_outside_leaves_the_constant():
    tree = build_junction_tree(LatentGraph([], {"x": 3}))
    (separator,) = plan_tree(tree).separators
    assert separator.instrument == ((),)
    assert (separator.rank, separator.needed, separator.reached) == (1, 1, 1)


def test_empty_separators_have_rank_one():
    tree, plan, _ = planned("disconnected")
    assert {p.needed for p in plan.separators if not tree.separators[p.node]} == {1}


# -- singles are not enough ------------------------------------------------------------------------------------------


def test_the_diamond_gets_one_pair():
    tree, plan, ranks = planned("diamond_two_leaves")
    separator = plan_above(tree, plan, "B C", "b1 b2 d1 d2")
    pairs = [g for g in separator.instrument if len(g) > 1]
    assert len(pairs) == 1
    assert len({v[0] for v in pairs[0]}) == 2  # one member of each branch
    singles = tuple(g for g in separator.instrument if len(g) == 1)
    assert ranks.cross(separator.core, singles) == 3 < separator.needed == 4


def test_a_pool_without_pairs_warns():
    tree = build_junction_tree(templates.diamond())
    message = (
        r"Separator {B, C} above {b1, b2, d1, d2}: instrument rank 3, needs 4\. Answers that cross it will be biased\. "
        r"Add outside observables, raise pool="
    )
    for again in (
        tree,
        build_junction_tree(templates.diamond()),
    ):  # a separator made before is remembered, its faults too
        with pytest.warns(RankWarning, match=message):
            plan = plan_tree(again, PlanOptions(pool=1))
    separator = plan_above(tree, plan, "B C", "b1 b2 d1 d2")
    assert (separator.needed, separator.reached, separator.rank) == (4, 3, 4)


def test_strict_mode_raises():
    tree = build_junction_tree(templates.diamond())
    with pytest.raises(StructureError, match=r"Separator {B, C} above .*: instrument rank 3, needs 4"):
        plan_tree(tree, PlanOptions(pool=1, strict=True))
    plan_tree(tree, PlanOptions(strict=True))


def test_groups_larger_than_allowed_are_not_used():
    tree = build_junction_tree(templates.diamond(observed_states=6))
    with pytest.warns(RankWarning, match="raise pool= or largest_group="):
        plan = plan_tree(tree, PlanOptions(largest_group=35))
    assert all(len(g) == 1 for p in plan.separators for g in p.instrument)
    plan_tree(tree, PlanOptions(largest_group=36, strict=True))


def test_third_order_chains_need_no_warning():
    tree = build_junction_tree(templates.hmm(8, 2, 4, order=3))
    plan = plan_tree(tree, PlanOptions(strict=True))
    assert max(p.needed for p in plan.separators) == 8
    assert any(len(g) > 1 for p in plan.separators for g in p.instrument)


@pytest.mark.parametrize(
    "graph",
    [
        templates.hmm(10, 16, 20),
        templates.hmm(8, 3, 6, order=3),
        templates.diamond(5, 6),
        templates.factorial_hmm(4, 3, 2, 10),
        templates.nested_loops(3, 5),
        templates.grid(3, 3, 2, 4),
        templates.grid(3, 3, 3, 4),
        templates.grid(3, 3, 3, 6),
    ],
    ids=["hmm16", "order3", "diamond5", "factorial", "nested3", "grid2", "grid3", "grid3wide"],
)
def test_larger_structures_meet_their_ranks(graph):
    plan = plan_tree(build_junction_tree(graph), PlanOptions(strict=True))
    assert all(p.reached == p.needed for p in plan.separators)


def test_all_of_a_grids_separator_is_needed():
    """A rank that rounding hides would be cut from the message for good."""
    tree = build_junction_tree(templates.grid(3, 3, 3, 4))
    wide = [p for p in plan_tree(tree).separators if len(tree.separators[p.node]) == 3]
    assert wide
    assert all(min(len(tree.inside[p.node]), len(tree.outside(p.node))) >= 3 for p in wide)
    assert {p.needed for p in wide} == {27}


# -- options ---------------------------------------------------------------------------------------------------------


def test_the_rank_option_caps_messages_and_nothing_else():
    tree = build_junction_tree(templates.hmm(6, 4, 5))
    free, capped = plan_tree(tree), plan_tree(tree, PlanOptions(rank=3))
    for a, b in zip(free.separators, capped.separators, strict=True):
        assert b.rank == min(3, a.rank)
        assert (a.core, a.instrument, a.needed, a.reached) == (b.core, b.instrument, b.needed, b.reached)
    assert [p.rank for p in plan_tree(tree, PlanOptions(rank=99)).separators] == [p.rank for p in free.separators]


@pytest.mark.parametrize("singles", [1, 3])
def test_the_number_of_singles_is_kept(singles):
    tree = build_junction_tree(templates.hmm(12, 2, 3))
    for separator in plan_tree(tree, PlanOptions(singles=singles)).separators:
        assert len([g for g in separator.instrument if len(g) == 1]) == singles


def test_instruments_are_near():
    tree = build_junction_tree(templates.hmm(60, 2, 3))
    plan = plan_tree(tree, PlanOptions(singles=4))
    for separator in plan.separators:
        core = {int(v[1:]) for v in separator.core}
        used = {int(v[1:]) for g in separator.instrument for v in g}
        assert max(min(abs(u - c) for c in core) for u in used) <= 12


def test_long_chains_are_planned_locally():
    tree = build_junction_tree(templates.hmm(300, 3, 4))
    plan = plan_tree(tree)
    assert len(plan.separators) == len(tree) - 1
    assert {p.needed for p in plan.separators} == {3}


@pytest.mark.parametrize(
    ("option", "value"), [("singles", 0), ("pool", 0), ("largest_group", -1), ("rank", 0), ("rank", -3)]
)
def test_options_are_checked(option, value):
    with pytest.raises(ArgumentError, match=f"{option}: expected .*of at least 1, got {value}"):
        PlanOptions(**{option: value})


def test_latents_of_unknown_cardinality_raise():
    with pytest.raises(StructureError, match="'h1' is of unknown cardinality"):
        plan_tree(build_junction_tree(templates.hmm(3, states=None)))


@pytest.mark.parametrize("name", ["diamond_two_leaves", "grid", "loopy_network"])
def test_the_same_tree_gives_the_same_plan(name):
    tree, plan, _ = planned(name)
    assert plan_tree(build_junction_tree(SMALL[name]())) == plan
    other = plan_tree(tree, PlanOptions(seed=5))
    assert [p.needed for p in other.separators] == [p.needed for p in plan.separators]


@pytest.mark.parametrize("name", SMALL)
def test_plans_are_saved_as_plain_values(name):
    tree, plan, _ = planned(name)
    saved = json.loads(json.dumps(plan.to_list()))
    assert Plan.from_list(tree, saved) == plan


def test_plans_are_found_by_node():
    _, plan, _ = planned("hmm")
    assert [plan[p.node] for p in plan.separators] == list(plan.separators)
    assert [p.node for p in plan.separators] == list(range(1, len(plan.separators) + 1))
