"""The greedy searches behind core groups and instruments, on ranks made up for the purpose."""

from __future__ import annotations

import pytest
import torch

from torchpbp import build_junction_tree, templates
from torchpbp.planning.groups import GroupSearch
from torchpbp.planning.plan import PlanOptions, group_size
from torchpbp.planning.ranks import StructureProbe, scaled_cross
from torchpbp.planning.spans import numerical_rank

TREE = build_junction_tree(templates.hmm(6, 2, 3))


def search(needed, states, near=(), node=0, cores=(), **options):
    return GroupSearch(TREE, node, needed, dict(cores), near, states, PlanOptions(**options))


def test_candidates_come_from_leaves_first():
    node = next(n for n in TREE.inner if any(not TREE.leaf_observables[c] for c in TREE.children[n]))
    leaf = next(c for c in TREE.children[node] if TREE.leaf_observables[c])
    cores = {c: TREE.leaf_observables[c] or ("far", "farther") for c in TREE.children[node]}
    assert search(1, {}, node=node, cores=cores).core_candidates() == [*TREE.leaf_observables[leaf], "far", "farther"]


def rank_by_sum(values):
    return lambda group: sum(values[v] for v in group)


def test_one_sufficient_member_is_enough():
    group = search(3, dict.fromkeys("abc", 4)).minimal_core("abc", rank_by_sum({"a": 1, "b": 3, "c": 2}))
    assert group == ("b",)


def test_among_equals_fewer_states_win_then_the_order_given():
    rank = rank_by_sum(dict.fromkeys("abc", 2))
    assert search(2, {"a": 6, "b": 3, "c": 3}).minimal_core("abc", rank) == ("b",)
    assert search(2, dict.fromkeys("abc", 3)).minimal_core("abc", rank) == ("a",)


def test_members_made_superfluous_are_dropped():
    def rank(group):
        return 4 if {"b", "c"} <= set(group) else {"a": 2, "b": 1, "c": 1}.get(group[0], 0) + (len(group) - 1) * 0.5

    assert set(search(4, dict.fromkeys("abc", 4)).minimal_core("abc", rank)) == {"b", "c"}


def test_members_that_help_only_together_are_found():
    def rank(group):
        return 3 if {"b", "c"} <= set(group) else 1

    assert set(search(3, dict.fromkeys("abc", 4)).minimal_core("abc", rank)) == {"b", "c"}


def test_the_best_group_is_given_where_the_rank_is_out_of_reach():
    group = search(9, dict.fromkeys("abc", 4)).minimal_core("abc", rank_by_sum({"a": 2, "b": 2, "c": 0}))
    assert set(group) == {"a", "b"}


# -- instruments -----------------------------------------------------------------------------------------------------

STATES = dict.fromkeys("abcd", 2)


def blocks(directions: dict[tuple[str, ...], list[int]]):
    """Each group's block holds the unit vectors of R^6 that it is said to see."""
    return lambda group: torch.eye(6, dtype=torch.float64)[:, directions.get(group, [0])]


def choose(directions, needed, near="abcd", singles=8, pool=6, largest=100):
    leaves = [(v,) if isinstance(v, str) else v for v in near]
    options = {"singles": singles, "pool": pool, "largest_group": largest}
    return search(needed, STATES, leaves, **options).instrument(blocks(directions))


def test_singles_are_kept_even_if_the_first_suffices():
    groups, rank = choose({("a",): [0, 1]}, needed=2)
    assert groups == (("a",), ("b",), ("c",), ("d",))
    assert rank == 2


def test_the_observables_of_a_leaf_enter_as_one_group():
    groups, rank = choose({("a", "b"): [0, 1], ("c",): [2], ("b", "c"): [3]}, needed=4, near=[("a", "b"), ("c",)])
    assert groups == (("a", "b"), ("c",), ("b", "c"))
    assert rank == 4


def test_the_number_of_leaves_that_enter_is_limited():
    groups, _ = choose({("a",): [0], ("b", "c"): [1]}, needed=2, near=[("a",), ("b", "c"), ("d",)], singles=2)
    assert groups == (("a",), ("b", "c"))


def test_pairs_are_added_until_the_rank_is_reached():
    groups, rank = choose({("a",): [0, 1], ("a", "c"): [2], ("b", "d"): [2, 3]}, needed=4)
    assert groups[:4] == (("a",), ("b",), ("c",), ("d",))
    assert groups[4:] == (("b", "d"),)
    assert rank == 4


def test_triples_follow_pairs():
    groups, rank = choose({("a",): [0, 1], ("a", "c"): [2], ("b", "c", "d"): [3]}, needed=4)
    assert [g for g in groups if len(g) > 1] == [("a", "c"), ("b", "c", "d")]
    assert rank == 4


def test_pairs_that_triples_make_superfluous_are_dropped():
    groups, rank = choose({("a",): [0], ("a", "c"): [1], ("b", "c", "d"): [1, 2]}, needed=3)
    assert [g for g in groups if len(g) > 1] == [("b", "c", "d")]
    assert rank == 3


def test_the_pool_and_the_largest_group_are_limits():
    directions = {("a",): [0], ("c", "d"): [1], ("a", "b"): [2]}
    groups, rank = choose(directions, needed=3, pool=2)
    assert ("c", "d") not in groups
    assert rank == 2
    groups, rank = choose(directions, needed=3, largest=3)
    assert rank == 1
    assert all(len(g) == 1 for g in groups)


def test_without_anything_outside_the_constant_is_left():
    assert choose({}, needed=1, near="") == (((),), 1)


# -- ranks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_numerical_rank(rank):
    generator = torch.Generator().manual_seed(rank)
    left, right = (torch.randn(n, rank, generator=generator, dtype=torch.float64) for n in (6, 9))
    assert numerical_rank(left @ right.T) == rank
    assert numerical_rank(1e-200 * left @ right.T) == rank


def test_numerical_rank_of_empty_and_of_small_values():
    assert numerical_rank(torch.empty(0, 3)) == 0
    assert numerical_rank(torch.diag(torch.tensor([1.0, 1e-9, 1e-14], dtype=torch.float64))) == 2
    assert numerical_rank(torch.diag(torch.tensor([1.0, 1e-9, 1e-14], dtype=torch.float64)), tolerance=1e-6) == 1


def test_probes_repeat_with_their_seed():
    tree = build_junction_tree(templates.diamond(2, 3, 1))
    one, same = StructureProbe(tree, 3), StructureProbe(tree, 3)
    node = tree.leaf_of["a1"]
    blocks = [p.instrument_block(node, p.core_factor(node, ("a1",)), ("b1",)) for p in (one, same)]
    assert torch.equal(*blocks)
    assert [one.separator_rank(n) for n in range(1, len(tree))] == [same.separator_rank(n) for n in range(1, len(tree))]


def test_core_rank_grows_with_the_group():
    tree = build_junction_tree(templates.hmm(8, 4, 2))
    node = next(n for n in tree.inner if min(len(tree.inside[n]), len(tree.outside(n))) >= 3)
    probe = StructureProbe(tree, 1)
    inside = sorted(tree.inside[node])
    ranks = [probe.core_rank(node, tuple(inside[:k])) for k in (1, 2, 3)]
    assert ranks == [2, 4, 4]


@pytest.mark.parametrize("graph", [templates.diamond(2, 3, 1), templates.loopy_network(2, 3)])
def test_a_separator_in_place_of_the_core_group_keeps_all_singular_values(graph):
    tree = build_junction_tree(graph)
    probe = StructureProbe(tree, 1)
    for node in range(1, len(tree)):
        core, group = tuple(sorted(tree.inside[node]))[:2], tuple(sorted(tree.outside(node)))[:2]
        whole = scaled_cross(probe.network.joint((*core, *group)).reshape(group_size(core, probe.network.states), -1))
        small = probe.instrument_block(node, probe.core_factor(node, core), group)
        values, expected = torch.linalg.svdvals(small), torch.linalg.svdvals(whole)
        shared = min(len(values), len(expected))
        assert torch.allclose(values[:shared], expected[:shared], atol=1e-12, rtol=0)
        assert float(torch.cat([values[shared:], expected[shared:], values.new_zeros(1)]).amax()) < 1e-12
