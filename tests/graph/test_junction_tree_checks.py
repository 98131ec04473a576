"""A junction tree without a required property raises, naming the property and the node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.graph.strategies import SMALL
from torchpbp import JunctionTree, LatentGraph, build_junction_tree, templates
from torchpbp.errors import StructureError


@pytest.fixture
def tree() -> JunctionTree:
    result = build_junction_tree(templates.hmm(5, 2, 3))
    result.validate()
    return result


def changed(values: tuple, index: int, value: object) -> tuple:
    return (*values[:index], value, *values[index + 1 :])


def test_validate_counts_entries(tree):
    with pytest.raises(StructureError, match="one entry per node"):
        replace(tree, parent=tree.parent[:-1]).validate()
    with pytest.raises(StructureError, match="one entry per node"):
        replace(tree, leaf_observables=(*tree.leaf_observables, ())).validate()


@pytest.mark.parametrize(("node", "parent"), [(0, 1), (2, 2), (2, 3), (2, -1)])
def test_validate_sees_a_broken_numbering(tree, node, parent):
    with pytest.raises(StructureError, match="not connected, or not numbered with parents before children"):
        replace(tree, parent=changed(tree.parent, node, parent)).validate()


def test_validate_sees_a_broken_running_intersection(tree):
    inner = next(n for n in tree.inner if tree.children[n])
    with pytest.raises(StructureError, match="Running intersection fails"):
        replace(tree, cliques=changed(tree.cliques, inner, frozenset())).validate()


def test_validate_sees_a_missing_family(tree):
    leaf = tree.leaf_of["x1"]
    with pytest.raises(StructureError, match=r"Family preservation fails: no clique holds {h1, x1}"):
        replace(tree, cliques=changed(tree.cliques, leaf, frozenset(["x1"]))).validate()


def test_validate_sees_an_observable_twice_or_nowhere(tree):
    leaf, other = tree.leaf_of["x1"], tree.leaf_of["x2"]
    both = changed(tree.leaf_observables, other, ("x2", "x1"))
    with pytest.raises(StructureError, match="Each observable must belong to exactly one leaf"):
        replace(tree, leaf_observables=both).validate()
    with pytest.raises(StructureError, match="Each observable must belong to exactly one leaf"):
        replace(tree, leaf_observables=changed(tree.leaf_observables, leaf, ())).validate()


def test_validate_sees_observables_in_an_inner_node(tree):
    leaf = tree.leaf_of["x1"]
    moved = changed(changed(tree.leaf_observables, leaf, ()), tree.parent[leaf], ("x1",))
    with pytest.raises(StructureError, match="holds observables but is not a leaf"):
        replace(tree, leaf_observables=moved).validate()


def test_validate_sees_a_leaf_without_observable():
    tree = build_junction_tree(templates.naive_bayes(2))
    assert len(tree.children[0]) == 2
    with pytest.raises(StructureError, match=rf"Leaf {len(tree)} {{.*}} holds no observable"):
        replace(
            tree,
            cliques=(*tree.cliques, tree.cliques[0]),
            parent=(*tree.parent, 0),
            leaf_observables=(*tree.leaf_observables, ()),
        ).validate()


def test_validate_sees_observables_outside_their_leaf(tree):
    one, two = tree.leaf_of["x1"], tree.leaf_of["x2"]
    swapped = changed(changed(tree.leaf_observables, one, ("x2",)), two, ("x1",))
    with pytest.raises(StructureError, match="does not contain its observables"):
        replace(tree, leaf_observables=swapped).validate()


def test_validate_sees_too_many_neighbours():
    graph = LatentGraph([("h", f"x{i}") for i in range(4)], {"h": 2, **{f"x{i}": 2 for i in range(4)}}, ["h"])
    star = JunctionTree(
        cliques=(frozenset("h"), *(frozenset(("h", f"x{i}")) for i in range(4))),
        parent=(-1, 0, 0, 0, 0),
        graph=graph,
        leaf_observables=((), *((f"x{i}",) for i in range(4))),
    )
    with pytest.raises(StructureError, match=r"Node 0 {h} has 4 neighbours, at most 3 allowed"):
        star.validate()


def test_validate_checks_pruned_cliques_too():
    graph = SMALL["barren_latents"]()
    tree = build_junction_tree(graph)
    assert tree.pruned
    with pytest.raises(StructureError, match="Family preservation fails"):
        replace(tree, pruned=()).validate()
    bad = replace(tree, pruned=((frozenset(["k", "l", "y"]), 0), *tree.pruned[1:]))
    with pytest.raises(StructureError, match="Running intersection fails"):
        bad.validate()
    with pytest.raises(StructureError, match="The parent of each pruned clique must be a node"):
        replace(tree, pruned=((tree.pruned[0][0], 99),)).validate()
