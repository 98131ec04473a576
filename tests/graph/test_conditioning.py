"""Graphs of all other variables given one."""

from __future__ import annotations

from torchpbp import LatentGraph

STATES = {"a": 2, "b": 3, "c": 2, "d": 2}


def test_a_variable_without_parents_leaves_a_directed_graph():
    graph = LatentGraph([("a", "b"), ("a", "d"), ("b", "d"), ("c", "d")], STATES, ["d"])
    rest = graph.conditional("a")
    assert rest == LatentGraph([("b", "d"), ("c", "d")], {"b": 3, "c": 2, "d": 2}, ["d"])


def test_parents_of_the_variable_become_dependent():
    graph = LatentGraph([("a", "d"), ("b", "d"), ("d", "c")], STATES, ["a"])
    rest = graph.conditional("d")
    assert not rest.directed
    assert {frozenset(e) for e in rest.edges} == {frozenset("ab")}
    assert rest.names == ("a", "b", "c")
    other = graph.conditional("c")  # its parent keeps its own parents, married as before
    assert {frozenset(e) for e in other.edges} == {frozenset("ad"), frozenset("bd"), frozenset("ab")}


def test_undirected_graphs_lose_a_node():
    graph = LatentGraph([("a", "b"), ("b", "c"), ("c", "d")], STATES, ["d"], directed=False)
    assert graph.conditional("b") == LatentGraph([("c", "d")], {"a": 2, "c": 2, "d": 2}, ["d"], directed=False)
