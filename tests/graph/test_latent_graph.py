"""Latent graphs: invalid descriptions, properties, and conversions."""

from __future__ import annotations

import math
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given

from tests.graph.strategies import SMALL, latent_graphs
from torchpbp import Continuous, LatentGraph
from torchpbp.errors import ArgumentError, StructureError, TorchPBPError

XY = {"h": 2, "x": 3, "y": 4}


@pytest.mark.parametrize(
    ("edges", "variables", "latent", "message"),
    [
        ([("a", "b"), ("b", "c"), ("c", "a")], dict.fromkeys("abc", 2), [], r"cycle: a -> b -> c -> a"),
        ([("a", "b"), ("b", "a")], dict.fromkeys("ab", 2), [], r"cycle: (a -> b -> a|b -> a -> b)\. Remove"),
        ([("h", "q")], XY, ["h"], r"Edge \(h, q\): unknown variable 'q'. Add it to variables"),
        ([("q", "h")], XY, ["h"], r"Edge \(q, h\): unknown variable 'q'"),
        ([("h", "x"), ("h", "x")], XY, ["h"], r"Duplicate edge \(h, x\)"),
        ([("h", "h")], XY, ["h"], r"Edge \(h, h\) joins a variable to itself"),
        (["hx"], XY, ["h"], "each edge to be a pair of names, got 'hx'"),
        ([("h", "x", "y")], XY, ["h"], "each edge to be a pair of names"),
        ([5], XY, ["h"], "each edge to be a pair of names, got 5"),
        ([], [("x", 2), ("x", 3)], [], "Duplicate variable name 'x'"),
        ([], {"x": 0}, [], "Variable 'x': expected at least 1 state, got 0"),
        ([], {"x": -3}, [], "Variable 'x': expected at least 1 state, got -3"),
        ([], {"x": True}, [], r"Variable 'x': expected a number of states \(int\), .* got True"),
        ([], {"x": np.bool_(True)}, [], "Variable 'x': expected a number of states"),
        ([], {"x": 2.0}, [], "Variable 'x': expected a number of states .* got 2.0"),
        ([], {"x": np.float64(3)}, [], "Variable 'x': expected a number of states"),
        ([], {"x": torch.tensor(2.5)}, [], "Variable 'x': expected a number of states"),
        ([], {"x": "3"}, [], "Variable 'x': expected a number of states .* got '3'"),
        ([], {}, [], "at least one variable, got none"),
        ([], ["x"], [], r"variables: expected a mapping or pairs \(name, states\), got 'x'"),
        ([], [("x", 2, 3)], [], r"variables: expected a mapping or pairs \(name, states\)"),
        ([], {"": 2}, [], "non-empty strings, got ''"),
        ([], {3: 2}, [], "non-empty strings, got 3"),
        ([], {"h": 2}, ["h"], "no observable: every variable is listed as latent"),
        ([], XY, ["h", "z"], "Latent variable 'z' is listed but absent from variables"),
        ([], XY, ["h", "h"], "Duplicate latent variable 'h'"),
        ([], XY, "h", r"expected a list of names, got the string 'h'. Write \['h'\]"),
        ([], {"h": Continuous(), "x": 2}, ["h"], r"Latent variable 'h': .* got Continuous\(\)"),
        ([], {"h": 2, "x": None}, ["h"], r"Variable 'x': an observed variable needs its number of states .* got None"),
    ],
)
def test_invalid_descriptions_raise(edges, variables, latent, message):
    with pytest.raises(StructureError, match=message):
        LatentGraph(edges, variables, latent)


def test_a_long_cycle_is_named_in_order():
    names = [f"v{i}" for i in range(6)]
    edges = [*pairwise(names), ("v5", "v2"), ("v0", "v3")]
    with pytest.raises(StructureError, match="v2 -> v3 -> v4 -> v5 -> v2"):
        LatentGraph(edges, dict.fromkeys(names, 2))


def test_a_cycle_is_fine_in_an_undirected_graph():
    graph = LatentGraph([("a", "b"), ("b", "c"), ("c", "a")], dict.fromkeys("abc", 2), directed=False)
    assert graph.neighbors("a") == ("c", "b")


def test_an_undirected_edge_given_both_ways_is_a_duplicate():
    with pytest.raises(StructureError, match=r"Duplicate edge \(b, a\)"):
        LatentGraph([("a", "b"), ("b", "a")], {"a": 2, "b": 2}, directed=False)


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (2.0, 1.0)])
def test_a_continuous_range_needs_low_below_high(low, high):
    with pytest.raises(ArgumentError, match="expected low < high"):
        Continuous(low, high)


@pytest.mark.parametrize("bound", [math.nan, math.inf, -math.inf, "0"])
def test_bounds_are_finite_numbers(bound):
    for name in ("low", "high"):
        with pytest.raises(ArgumentError, match=f"Continuous: {name}: expected None or a finite number, got"):
            Continuous(**{name: bound})


def test_errors_can_be_caught_as_value_errors_or_by_the_base_class():
    with pytest.raises(ValueError):
        LatentGraph([], {})
    with pytest.raises(TorchPBPError):
        LatentGraph([], {})


def test_parents_come_in_the_order_of_the_edges():
    graph = LatentGraph([("b", "x"), ("a", "y"), ("a", "x"), ("c", "x")], dict.fromkeys("abcxy", 2), ["a"])
    assert graph.parents("x") == ("b", "a", "c")
    assert graph.parents("a") == ()
    assert graph.children("a") == ("y", "x")
    assert set(graph.neighbors("x")) == {"a", "b", "c"}


def test_observed_and_names_keep_the_order_given():
    graph = LatentGraph([], [("z", 2), ("h", 5), ("a", 3)], ["h"])
    assert graph.names == ("z", "h", "a")
    assert graph.observed == ("z", "a")
    assert graph.is_latent("h")
    assert not graph.is_latent("z")
    assert [graph.num_states(v) for v in graph.names] == [2, 5, 3]


def test_numpy_and_torch_integers_count_as_numbers_of_states():
    graph = LatentGraph([], {"a": np.int8(3), "b": torch.tensor(4)})
    assert graph.variables == {"a": 3, "b": 4}
    assert all(type(s) is int for s in graph.variables.values())


def test_a_generator_of_edges_and_latents_is_read_once():
    graph = LatentGraph(((a, b) for a, b in [("h", "x"), ("h", "y")]), XY, (v for v in ["h"]))
    assert graph.edges == (("h", "x"), ("h", "y"))
    assert graph.latent == ("h",)


@pytest.mark.parametrize("method", ["parents", "children", "neighbors", "num_states"])
def test_asking_about_an_unknown_variable(method):
    graph = LatentGraph([("h", "x")], XY, ["h"])
    with pytest.raises(StructureError, match=r"Unknown variable 'q'\. The graph has: h, x, y"):
        getattr(graph, method)("q")


@pytest.mark.parametrize("method", ["parents", "children"])
def test_an_undirected_graph_has_neighbours_only(method):
    graph = LatentGraph([("h", "x")], XY, ["h"], directed=False)
    with pytest.raises(StructureError, match=rf"no {method}; use neighbors"):
        getattr(graph, method)("x")


@pytest.mark.parametrize(("domain", "kind"), [(None, "of unknown cardinality"), (Continuous(), "continuous")])
def test_num_states_of_what_has_none(domain, kind):
    latent = ["v"] if domain is None else []
    graph = LatentGraph([], {"v": domain, "x": 2}, latent)
    with pytest.raises(StructureError, match=f"Variable 'v' is {kind}"):
        graph.num_states("v")


def test_topological_order_puts_parents_first_and_keeps_the_given_order_otherwise():
    graph = LatentGraph([("c", "a"), ("a", "b")], dict.fromkeys("abcd", 2))
    assert graph.topological_order() == ("c", "a", "b", "d")


def test_moralisation_marries_all_pairs_of_parents():
    graph = LatentGraph([(p, "x") for p in "abc"], dict.fromkeys("abcx", 2))
    moral = graph.moral_graph()
    assert set(map(frozenset, moral.edges)) == {frozenset(e) for e in ("ab", "ac", "bc", "ax", "bx", "cx")}
    undirected = LatentGraph([(p, "x") for p in "abc"], dict.fromkeys("abcx", 2), directed=False)
    assert undirected.moral_graph().number_of_edges() == 3


def test_with_states_changes_only_what_is_named():
    graph = LatentGraph([("h", "x")], {"h": None, "x": 3}, ["h"])
    changed = graph.with_states({"h": 4})
    assert changed.variables == {"h": 4, "x": 3}
    assert graph.variables["h"] is None
    assert changed.edges == graph.edges
    with pytest.raises(StructureError, match="Unknown variable 'q'"):
        graph.with_states({"q": 2})


def test_equality_and_hash():
    one = LatentGraph([("h", "x")], {"h": 2, "x": 3}, ["h"])
    same = LatentGraph([("h", "x")], [("h", 2), ("x", 3)], ("h",))
    assert one == same
    assert hash(one) == hash(same)
    others = [
        LatentGraph([("x", "h")], {"h": 2, "x": 3}, ["h"]),
        LatentGraph([("h", "x")], {"h": 3, "x": 3}, ["h"]),
        LatentGraph([("h", "x")], {"h": 2, "x": 3}),
        LatentGraph([("h", "x")], {"h": 2, "x": 3}, ["h"], directed=False),
        LatentGraph([], {"h": 2, "x": 3}, ["h"]),
        LatentGraph([("h", "x")], {"h": 2, "x": Continuous()}, ["h"]),
        "not a graph",
    ]
    assert all(one != other for other in others)


def test_repr_counts():
    assert repr(LatentGraph([("h", "x")], XY, ["h"])) == "LatentGraph(directed, 2 observed, 1 latent, 1 edges)"
    assert "undirected" in repr(LatentGraph([], XY, directed=False))


# -- travelling ------------------------------------------------------------------------------------------------------


@given(graph=latent_graphs())
def test_round_trips(graph):
    assert LatentGraph.from_dict(graph.to_dict()) == graph
    back = LatentGraph.from_networkx(graph.to_networkx())
    assert back.variables == graph.variables
    assert back.names == graph.names
    assert set(back.latent) == set(graph.latent)
    assert back.directed == graph.directed
    kind = tuple if graph.directed else frozenset
    assert set(map(kind, back.edges)) == set(map(kind, graph.edges))


def test_to_dict_holds_plain_values_only():
    graph = LatentGraph([("h", "x")], {"h": None, "x": Continuous(0.0, 1.0), "y": 3, "z": Continuous()}, ["h"])
    saved = graph.to_dict()

    def plain(value):
        if isinstance(value, dict):
            return all(isinstance(k, str) and plain(v) for k, v in value.items())
        if isinstance(value, list):
            return all(plain(v) for v in value)
        return value is None or type(value) in (str, int, float, bool)

    assert plain(saved)
    assert LatentGraph.from_dict(saved) == graph


def test_to_networkx_carries_states_and_latent():
    nodes = SMALL["diamond"]().to_networkx().nodes
    assert nodes["A"] == {"states": 2, "latent": True}
    assert nodes["a1"] == {"states": 3, "latent": False}
    assert isinstance(SMALL["diamond"]().to_networkx(), nx.DiGraph)
    assert not SMALL["grid"]().to_networkx().is_directed()


def test_from_networkx_with_arguments():
    plain = nx.DiGraph([("h", "x"), ("h", "y")])
    graph = LatentGraph.from_networkx(plain, variables=XY, latent=["h"])
    assert graph == LatentGraph([("h", "x"), ("h", "y")], XY, ["h"])


def test_from_networkx_needs_the_states():
    plain = nx.DiGraph([("h", "x")])
    with pytest.raises(StructureError, match=r"Nodes \['h', 'x'\] carry no 'states' attribute"):
        LatentGraph.from_networkx(plain)
    with pytest.raises(StructureError, match=r"Nodes \['x'\] of the networkx graph are missing from variables="):
        LatentGraph.from_networkx(plain, variables={"h": 2})


def test_from_networkx_raises_for_parallel_edges():
    multi = nx.MultiGraph([("a", "b"), ("a", "b")])
    with pytest.raises(StructureError, match="Duplicate edge"):
        LatentGraph.from_networkx(multi, variables={"a": 2, "b": 2})


@pytest.mark.parametrize("directed", ["no", None, 1])
def test_directed_is_yes_or_no(directed):
    with pytest.raises(ArgumentError, match="directed: expected True or False, got"):
        LatentGraph([("a", "b")], {"a": 2, "b": 2}, directed=directed)
