"""Min-fill triangulation: its cliques are those of a chordal graph that covers the given one."""

from __future__ import annotations

import math
from itertools import combinations

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchpbp.graph.triangulation import maximal_cliques


@st.composite
def plain_graphs(draw: st.DrawFn) -> tuple[nx.Graph, dict[str, float]]:
    names = [f"n{i}" for i in range(draw(st.integers(1, 12)))]
    pairs = list(combinations(names, 2))
    graph = nx.Graph()
    graph.add_nodes_from(draw(st.permutations(names)))
    if pairs:
        graph.add_edges_from(draw(st.lists(st.sampled_from(pairs), unique=True, max_size=2 * len(names))))
    return graph, {v: math.log(draw(st.integers(1, 6))) for v in names}


def covered(cliques: list[frozenset[str]]) -> nx.Graph:
    union = nx.Graph()
    for clique in cliques:
        union.add_nodes_from(clique)
        union.add_edges_from(combinations(sorted(clique), 2))
    return union


@given(problem=plain_graphs())
def test_cliques_are_the_maximal_cliques_of_a_chordal_cover(problem):
    graph, weights = problem
    cliques = maximal_cliques(graph, weights)
    union = covered(cliques)
    assert set(union) == set(graph)
    assert all(union.has_edge(a, b) for a, b in graph.edges)
    assert nx.is_chordal(union)
    assert not any(a <= b for a in cliques for b in cliques if a is not b)
    assert set(cliques) == {frozenset(c) for c in nx.find_cliques(union)}


@given(problem=plain_graphs())
def test_a_chordal_graph_gets_no_fill_in(problem):
    graph, weights = problem
    chordal, _ = nx.complete_to_chordal_graph(graph)
    assert set(map(frozenset, covered(maximal_cliques(chordal, weights)).edges)) == set(map(frozenset, chordal.edges))


@given(problem=plain_graphs())
def test_the_same_graph_gives_the_same_cliques_in_the_same_order(problem):
    graph, weights = problem
    again = nx.Graph()
    again.add_nodes_from(graph)
    again.add_edges_from(reversed([(b, a) for a, b in graph.edges]))
    assert maximal_cliques(graph, weights) == maximal_cliques(again, weights)


def test_ties_go_to_the_smaller_state_space():
    # A square can be cut along either diagonal: the one whose triangles have fewer joint states is taken.
    square = nx.cycle_graph(["a", "b", "c", "d"])
    big_ac = {"a": math.log(9), "b": math.log(2), "c": math.log(9), "d": math.log(2)}
    assert set(maximal_cliques(square, big_ac)) == {frozenset("abd"), frozenset("bcd")}
    big_bd = {"a": math.log(2), "b": math.log(9), "c": math.log(2), "d": math.log(9)}
    assert set(maximal_cliques(square, big_bd)) == {frozenset("abc"), frozenset("acd")}


def test_fill_in_comes_before_state_space():
    # The leaf has many states, but eliminating it costs no edge.
    graph = nx.cycle_graph(["a", "b", "c", "d"])
    graph.add_edge("a", "leaf")
    cliques = maximal_cliques(graph, {**dict.fromkeys("abcd", 0.1), "leaf": 20.0})
    assert cliques[0] == frozenset(["a", "leaf"])


@pytest.mark.parametrize(("rows", "columns", "width"), [(3, 3, 4), (4, 4, 5), (2, 20, 3)])
def test_grids_have_cliques_near_their_treewidth(rows, columns, width):
    grid = nx.relabel_nodes(nx.grid_2d_graph(rows, columns), lambda v: f"{v[0]}_{v[1]}")
    assert max(map(len, maximal_cliques(grid, dict.fromkeys(grid, 1.0)))) <= width


def test_isolated_vertices_and_complete_graphs():
    alone = nx.empty_graph(["a", "b"])
    assert maximal_cliques(alone, {"a": 1.0, "b": 1.0}) == [frozenset("a"), frozenset("b")]
    complete = nx.complete_graph(["a", "b", "c", "d"])
    assert maximal_cliques(complete, dict.fromkeys("abcd", 1.0)) == [frozenset("abcd")]
