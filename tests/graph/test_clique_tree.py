"""Clique trees: running intersection, families, and a shape that exact inference can afford."""

from __future__ import annotations

import networkx as nx
import pytest
from hypothesis import given

from tests.graph.strategies import SMALL, latent_graphs
from torchpbp import LatentGraph, templates
from torchpbp.errors import StructureError
from torchpbp.graph import CliqueTree, build_clique_tree
from torchpbp.graph.clique_tree import factor_scopes, rooted, tree_centre


def networkx_tree(tree: CliqueTree) -> nx.Graph:
    result = nx.Graph()
    result.add_nodes_from(range(len(tree)))
    result.add_edges_from((i, p) for i, p in enumerate(tree.parent) if p >= 0)
    return result


def assert_clique_tree_of(tree: CliqueTree, graph: LatentGraph) -> None:
    """Checked from the definitions, with networkx."""
    shape = networkx_tree(tree)
    assert nx.is_tree(shape)
    assert tree.parent[0] == -1
    assert all(p < i for i, p in enumerate(tree.parent))
    for v in graph.names:
        holding = [i for i, c in enumerate(tree.cliques) if v in c]
        assert holding
        assert nx.is_connected(shape.subgraph(holding)), f"cliques that hold {v} are not connected"
    wanted = [{v, *graph.parents(v)} for v in graph.names] if graph.directed else [set(e) for e in graph.edges]
    for family in wanted:
        assert any(family <= c for c in tree.cliques), f"no clique holds {family}"


@given(graph=latent_graphs(max_variables=10))
def test_random_graphs(graph):
    assert_clique_tree_of(build_clique_tree(graph), graph)


@pytest.mark.parametrize("name", SMALL)
def test_named_graphs(name):
    graph = SMALL[name]()
    tree = build_clique_tree(graph)
    assert_clique_tree_of(tree, graph)
    tree.check_running_intersection()
    tree.check_families(graph)


def test_derived_properties():
    tree = CliqueTree((frozenset("ab"), frozenset("bc"), frozenset("ad"), frozenset("ce")), (-1, 0, 0, 1))
    assert len(tree) == 4
    assert tree.children == ((1, 2), (3,), (), ())
    assert tree.separators == (frozenset(), frozenset("b"), frozenset("a"), frozenset("c"))
    assert tree.depth == (0, 1, 1, 2)


def test_running_intersection_violations_are_named():
    tree = CliqueTree((frozenset("ab"), frozenset("bc"), frozenset("ac")), (-1, 0, 1))
    with pytest.raises(StructureError, match=r"Running intersection fails: cliques {a, b} and {a, c} both hold 'a'"):
        tree.check_running_intersection()


def test_missing_families_are_named():
    graph = LatentGraph([("a", "c"), ("b", "c")], dict.fromkeys("abc", 2))
    tree = CliqueTree((frozenset("ab"), frozenset("bc")), (-1, 0))
    with pytest.raises(StructureError, match=r"no clique holds {a, b, c}"):
        tree.check_families(graph)


def test_families_of_both_kinds():
    directed = LatentGraph([("a", "c"), ("b", "c")], dict.fromkeys("abc", 2))
    assert set(factor_scopes(directed)) == {frozenset("a"), frozenset("b"), frozenset("abc")}
    undirected = LatentGraph([("a", "c"), ("b", "c")], dict.fromkeys("abc", 2), directed=False)
    assert set(factor_scopes(undirected)) == {frozenset(s) for s in ("a", "b", "c", "ac", "bc")}


def test_rooting_a_disconnected_tree_raises():
    with pytest.raises(StructureError, match="not connected: reached 2 of 3 cliques"):
        rooted([frozenset("a"), frozenset("b"), frozenset("c")], [(0, 1)], 0)


@given(graph=latent_graphs(max_variables=10))
def test_the_root_is_central(graph):
    tree = build_clique_tree(graph)
    shape = networkx_tree(tree)
    assert max(tree.depth) == nx.radius(shape)


@pytest.mark.parametrize(("count", "centre"), [(1, {0}), (2, {0, 1}), (3, {1}), (6, {2, 3}), (7, {3})])
def test_centre_of_a_path(count, centre):
    assert tree_centre(count, [(i, i + 1) for i in range(count - 1)]) in centre


def test_a_hub_does_not_become_a_clique_with_a_thousand_neighbours():
    # Shafer-Shenoy multiplies all messages into a clique for each message out of it.
    tree = build_clique_tree(templates.naive_bayes(1000, 2, 2))
    assert max(map(len, tree.children)) <= 3


def test_a_hub_of_chains_keeps_its_degree_small_too():
    edges = [e for i in range(100) for e in (("h", f"k{i}"), (f"k{i}", f"x{i}"), (f"k{i}", f"y{i}"))]
    variables = {"h": 2} | {f"{p}{i}": 2 for i in range(100) for p in "kxy"}
    graph = LatentGraph(edges, variables, ["h", *(f"k{i}" for i in range(100))])
    tree = build_clique_tree(graph)
    assert_clique_tree_of(tree, graph)
    assert max(map(len, tree.children)) <= 4
