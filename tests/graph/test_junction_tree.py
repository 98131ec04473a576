"""Latent junction trees: each observable in one leaf, no node with many neighbours, a valid clique tree throughout."""

from __future__ import annotations

import math

import networkx as nx
import pytest
from hypothesis import given

from tests.graph.strategies import SMALL, latent_graphs
from tests.graph.test_clique_tree import assert_clique_tree_of, networkx_tree
from torchpbp import JunctionTree, LatentGraph, build_junction_tree, templates
from torchpbp.errors import StructureError


def assert_junction_tree_of(tree: JunctionTree, graph: LatentGraph) -> None:
    """Every promise of the tree, checked from its definition."""
    tree.validate()
    full = tree.full_tree()
    assert_clique_tree_of(full, graph)
    assert full.cliques[: len(tree)] == tree.cliques
    shape = networkx_tree(tree)
    assert nx.is_tree(shape)
    assert max(dict(shape.degree).values()) <= 3
    homes = [(v, node) for node, group in enumerate(tree.leaf_observables) for v in group]
    assert sorted(v for v, _ in homes) == sorted(graph.observed)
    assert dict(homes) == tree.leaf_of
    for v, node in homes:
        assert node > 0
        assert not tree.children[node]
        assert v in tree.cliques[node]
    for node in range(len(tree)):
        assert bool(tree.children[node]) != bool(tree.leaf_observables[node])
        below = nx.descendants(nx.bfs_tree(shape, 0), node) | {node}
        assert tree.inside[node] == {v for v, home in homes if home in below}
        assert tree.outside(node) == set(graph.observed) - tree.inside[node]
    # Pruned cliques contain no observable, and are attached to a separator of the tree.
    for node in range(len(tree), len(full)):
        assert full.parent[node] < node


@given(graph=latent_graphs(max_variables=10, max_parents=3))
def test_random_graphs(graph):
    assert_junction_tree_of(build_junction_tree(graph), graph)


@given(graph=latent_graphs(max_variables=10, max_parents=1))
def test_random_forests(graph):
    assert_junction_tree_of(build_junction_tree(graph), graph)


@given(graph=latent_graphs(max_variables=10))
def test_separators_separate(graph):
    """Removing a separator's variables from the moral graph leaves no path from inside to outside observables."""
    tree = build_junction_tree(graph)
    moral = graph.moral_graph()
    for node in range(1, len(tree)):
        rest = moral.subgraph(set(moral) - tree.separators[node])
        for a in tree.inside[node] - tree.separators[node]:
            reachable = nx.node_connected_component(rest, a)
            assert not reachable & tree.outside(node), f"{a} reaches past separator {node}"


@pytest.mark.parametrize("name", SMALL)
def test_named_graphs(name):
    graph = SMALL[name]()
    tree = build_junction_tree(graph)
    assert_junction_tree_of(tree, graph)
    assert build_junction_tree(SMALL[name]()).cliques == tree.cliques


@given(graph=latent_graphs(max_variables=10))
def test_distances_to_outside_observables(graph):
    tree = build_junction_tree(graph)
    shape = networkx_tree(tree)
    for node in range(1, len(tree)):
        steps = nx.single_source_shortest_path_length(shape, tree.parent[node])
        expected = {v: steps[tree.leaf_of[v]] for v in tree.outside(node)}
        everything = tree.distances(node, limit=1000)
        assert {v: d for d, v in everything} == expected
        assert [d for d, _ in everything] == sorted(d for d, _ in everything)
        assert len(everything) == len(expected)
        some = tree.distances(node, limit=2)
        assert len(some) >= min(2, len(expected))
        assert some == everything[: len(some)]
        assert {d for d, _ in everything[len(some) :]}.isdisjoint({d for d, _ in some})


# -- special shapes --------------------------------------------------------------------------------------------------


def test_a_single_clique_graph():
    tree = build_junction_tree(LatentGraph([("a", "b"), ("a", "c"), ("b", "c")], dict.fromkeys("abc", 2)))
    assert len(tree) == 2
    assert tree.cliques[1] == frozenset("abc")
    assert set(tree.leaf_observables[1]) == set("abc")


def test_a_single_variable():
    tree = build_junction_tree(LatentGraph([], {"x": 3}))
    assert tree.leaf_of == {"x": 1}
    assert tree.separators[1] == frozenset()


def test_isolated_observables_hang_on_empty_separators():
    graph = LatentGraph([], dict.fromkeys("abcdef", 3))
    tree = build_junction_tree(graph)
    assert_junction_tree_of(tree, graph)
    assert all(not s for s in tree.separators)


def test_an_observable_with_children_has_a_leaf_of_its_own():
    graph = LatentGraph([("x", "h"), ("h", "y"), ("x", "z"), ("h", "w")], dict.fromkeys("xhyzw", 2), ["h"])
    tree = build_junction_tree(graph)
    assert_junction_tree_of(tree, graph)
    assert tree.cliques[tree.leaf_of["x"]] == frozenset("x")
    assert tree.separators[tree.leaf_of["x"]] == frozenset("x")


def test_observables_of_one_clique_share_a_leaf():
    graph = LatentGraph([("h", "x"), ("h", "y"), ("x", "y"), ("h", "z")], dict.fromkeys("hxyz", 2), ["h"])
    tree = build_junction_tree(graph)
    assert tree.leaf_of["x"] == tree.leaf_of["y"] != tree.leaf_of["z"]


def test_disconnected_components_meet_in_empty_separators():
    graph = SMALL["disconnected"]()
    tree = build_junction_tree(graph)
    assert_junction_tree_of(tree, graph)
    assert any(not s for s in tree.separators[1:])


def test_a_component_without_observables_is_pruned():
    graph = LatentGraph([("h", "x"), ("k", "l"), ("l", "m")], dict.fromkeys("hxklm", 2), ["h", "k", "l", "m"])
    tree = build_junction_tree(graph)
    assert_junction_tree_of(tree, graph)
    assert not {"k", "l", "m"} & frozenset().union(*tree.cliques)
    assert frozenset().union(*(c for c, _ in tree.pruned)) == {"k", "l", "m"}


def test_barren_latents_are_pruned_and_kept_aside():
    graph = LatentGraph(
        [("h", "x"), ("h", "y"), ("h", "k"), ("k", "l"), ("l", "m")], dict.fromkeys("hxyklm", 2), ["h", "k", "l", "m"]
    )
    tree = build_junction_tree(graph)
    assert_junction_tree_of(tree, graph)
    assert {frozenset("kl"), frozenset("lm")} <= {c for c, _ in tree.pruned}
    assert "pruned: " in str(tree)
    assert {frozenset("hk"), frozenset("kl"), frozenset("lm")} <= set(tree.full_tree().cliques)


def test_a_star_becomes_a_shallow_tree():
    graph = templates.naive_bayes(200, 2, 2)
    tree = build_junction_tree(graph)
    assert_junction_tree_of(tree, graph)
    assert max(tree.depth) <= 2 * math.log2(200)


def test_a_latent_star_becomes_a_shallow_tree():
    edges = [e for i in range(100) for e in (("h", f"k{i}"), (f"k{i}", f"x{i}"))]
    hidden = ["h", *(f"k{i}" for i in range(100))]
    graph = LatentGraph(edges, dict.fromkeys([*hidden, *(f"x{i}" for i in range(100))], 2), hidden)
    tree = build_junction_tree(graph)
    assert_junction_tree_of(tree, graph)
    assert max(tree.depth) <= 2 * math.log2(200)


def test_a_long_chain():
    tree = build_junction_tree(templates.hmm(1000, 2, 2))
    assert len(tree.leaves) == 1000
    assert max(tree.depth) <= 502  # rooted in the middle
    assert max(map(len, tree.cliques)) <= 3  # nodes that only pass messages on are merged


def test_a_clique_with_many_children_of_many_states_is_split():
    hub = ["a", "b", "c"]
    edges = [("a", "b"), ("a", "c"), ("b", "c")]
    edges += [(hub[i % 3], f"k{i}") for i in range(8)] + [(f"k{i}", f"x{i}") for i in range(8)]
    hidden = [*hub, *(f"k{i}" for i in range(8))]
    graph = LatentGraph(edges, dict.fromkeys([*hidden, *(f"x{i}" for i in range(8))], 10), hidden)
    tree = build_junction_tree(graph)
    assert_junction_tree_of(tree, graph)
    sizes = [
        math.prod(10 ** len(tree.separators[m]) for m in (*tree.children[n], *([n] if n else [])))
        for n in range(len(tree))
    ]
    assert max(sizes) <= 10**7


def test_a_split_keeps_its_whole_clique_as_separator():
    tree = build_junction_tree(templates.naive_bayes(16, 3, 4))
    for node in tree.inner:
        assert tree.separators[node] == tree.cliques[node] == {"h"}


# -- root ------------------------------------------------------------------------------------------------------------


def test_the_root_can_be_asked_for():
    graph = templates.hmm(8, 2, 3)
    for wanted in (["h1"], ["h4", "h5"], ("h8",)):
        tree = build_junction_tree(graph, root=wanted)
        assert set(wanted) <= tree.cliques[0]
        assert_junction_tree_of(tree, graph)


def test_every_possible_root_gives_a_valid_tree():
    graph = SMALL["nested_loops"]()
    tree = build_junction_tree(graph)
    for node in (0, *tree.inner):
        assert_junction_tree_of(build_junction_tree(graph, root=tree.cliques[node]), graph)


@pytest.mark.parametrize("wanted", [["h1", "h5"], ["nobody"], ["x1", "h1"], [1, "h1"]])
def test_an_impossible_root_raises(wanted):
    with pytest.raises(
        StructureError, match=r"No inner clique contains the requested root {.*}; inner cliques are: {h"
    ):
        build_junction_tree(templates.hmm(5), root=wanted)


def test_a_root_given_as_a_string_raises():
    with pytest.raises(StructureError, match=r"root: expected a list of names, got the string 'h1'. Write \['h1'\]"):
        build_junction_tree(templates.hmm(5), root="h1")


# -- looking at it ---------------------------------------------------------------------------------------------------


def test_print_shows_root_separators_and_observables():
    tree = build_junction_tree(templates.diamond(2, 3, 1))
    text = str(tree)
    lines = text.splitlines()
    assert lines[0].startswith(f"JunctionTree: {len(tree)} cliques, 4 leaves, depth ")
    assert lines[1].startswith("root {")
    assert sum("root" in line for line in lines) == 1
    for v in tree.graph.observed:
        assert f"<- {v}" in text
    assert "[B, C]" in text
    assert len(lines) == 1 + len(tree)


def test_print_of_a_deep_tree_does_not_recurse():
    tree = build_junction_tree(templates.hmm(1200, 2, 2))
    assert len(str(tree).splitlines()) == 1 + len(tree)


@pytest.mark.parametrize(
    "graph", [templates.hmm(12), templates.diamond(), templates.latent_tree(3), templates.nested_loops()]
)
def test_names_of_separators_list_the_first_observables_below(graph):
    tree = build_junction_tree(graph)
    for node in range(1, len(tree)):
        below = sorted(tree.inside[node])
        assert tree.separator_name(node).endswith(f"above {{{', '.join(below[:4])}{', …' if len(below) > 4 else ''}}}")


def test_separator_name_shortens_long_lists():
    tree = build_junction_tree(templates.naive_bayes(20))
    names = [tree.separator_name(n) for n in range(1, len(tree))]
    assert all(name.startswith("{h} above {x") for name in names)
    assert any(name.endswith(", …}") for name in names)
