"""Ready-made graphs: documented variables, valid trees, clear errors."""

from __future__ import annotations

from itertools import combinations

import networkx as nx
import pytest

from torchpbp import Continuous, build_junction_tree, templates
from torchpbp.errors import ArgumentError, StructureError

ALL = [
    templates.hmm,
    templates.factorial_hmm,
    templates.latent_tree,
    templates.diamond,
    templates.nested_loops,
    templates.loopy_network,
    templates.naive_bayes,
    templates.grid,
    templates.synthetic_junction_tree,
]


@pytest.mark.parametrize("template", ALL)
def test_defaults_give_valid_trees(template):
    graph = template()
    tree = build_junction_tree(graph)
    tree.validate()
    assert set(tree.leaf_of) == set(graph.observed)
    assert graph.latent


@pytest.mark.parametrize("template", ALL)
def test_numbers_of_states_are_taken(template):
    graph = template(states=7, observed_states=9)
    assert {graph.num_states(v) for v in graph.latent} == {7}
    assert {graph.num_states(v) for v in graph.observed} == {9}


@pytest.mark.parametrize("template", ALL)
def test_latents_may_have_an_unknown_number_of_states(template):
    graph = template(states=None)
    assert {graph.variables[v] for v in graph.latent} == {None}
    build_junction_tree(graph).validate()


@pytest.mark.parametrize("order", [1, 2, 3])
def test_hmm(order):
    graph = templates.hmm(5, order=order)
    assert graph.observed == tuple(f"x{t}" for t in range(1, 6))
    assert graph.latent == tuple(f"h{t}" for t in range(1, 6))
    for t in range(1, 6):
        assert graph.parents(f"h{t}") == tuple(f"h{s}" for s in range(max(1, t - order), t))
        assert graph.parents(f"x{t}") == (f"h{t}",)


def test_synthetic_junction_tree():
    tree = build_junction_tree(templates.synthetic_junction_tree(), root=("A", "C", "E"))
    assert {"".join(sorted(tree.cliques[n])) for n in tree.inner} == {"BCDE", "ACIJ", "AEKL"}
    assert tree.cliques[0] == frozenset("ACE")
    assert {"".join(sorted(tree.separators[n])) for n in tree.inner} == {"CE", "AC", "AE"}
    assert [len(tree.separators[n]) for n in tree.leaves] == [2] * 6


def test_hmm_of_one_step():
    assert templates.hmm(1).edges == (("h1", "x1"),)


def test_factorial_hmm():
    graph = templates.factorial_hmm(3, 2)
    assert graph.parents("x2") == ("h1_2", "h2_2")
    assert graph.parents("h1_3") == ("h1_2",)
    assert graph.parents("h2_1") == ()
    assert graph.observed == ("x1", "x2", "x3")


def test_latent_tree():
    graph = templates.latent_tree(2, 3, leaves=2)
    assert len(graph.latent) == 1 + 3 + 9
    assert len(graph.observed) == 18
    assert graph.parents("h12") == ("h1",)
    assert graph.parents("x12_1") == ("h12",)
    assert templates.latent_tree(0).edges == (("h", "x_1"), ("h", "x_2"))


@pytest.mark.parametrize(("depth", "branching"), [(2, 11), (3, 12), (1, 30)])
def test_latent_tree_with_many_branches_is_a_tree(depth, branching):
    graph = templates.latent_tree(depth, branching, leaves=1)
    assert len(graph.latent) == sum(branching**d for d in range(depth + 1))
    assert len(graph.observed) == branching**depth
    assert nx.is_tree(graph.to_networkx().to_undirected())


def test_diamond():
    graph = templates.diamond(leaves=2)
    assert graph.parents("D") == ("B", "C")
    assert set(graph.observed) == {f"{h}{i}" for h in "abcd" for i in (1, 2)}
    assert graph.parents("c2") == ("C",)


def test_nested_loops():
    graph = templates.nested_loops()
    assert graph.observed == tuple("abcdefg")
    assert len(nx.cycle_basis(graph.moral_graph().subgraph(graph.latent))) >= 2


def test_loopy_network_has_an_observable_with_a_child():
    graph = templates.loopy_network()
    assert set(graph.observed) == set("cdefgh")
    assert graph.children("c") == ("h",)
    assert nx.cycle_basis(graph.to_networkx().to_undirected().subgraph(graph.latent))


def test_naive_bayes():
    graph = templates.naive_bayes(3)
    assert graph.observed == ("x1", "x2", "x3")
    assert all(graph.parents(x) == ("h",) for x in graph.observed)


def test_grid():
    graph = templates.grid(2, 3)
    assert not graph.directed
    assert len(graph.latent) == len(graph.observed) == 6
    assert set(graph.neighbors("h1_2")) == {"h1_1", "h1_3", "h2_2", "x1_2"}
    assert templates.grid(1, 1).edges == (("h1_1", "x1_1"),)


def test_pen_strokes():
    graph = templates.pen_strokes(3, order=2, low=-1.0, high=1.0)
    assert graph.observed == ("x1", "y1", "x2", "y2", "x3", "y3")
    assert graph.variables["y2"] == Continuous(-1.0, 1.0)
    assert graph.variables["h2"] is None
    assert graph.parents("h3") == ("h1", "h2")
    tree = build_junction_tree(graph)
    tree.validate()
    assert set(tree.leaf_observables) - {()} == {(f"x{t}", f"y{t}") for t in (1, 2, 3)}


def test_pen_tree():
    graph = templates.pen_tree(4, leaf_states=5, states=3, classes=2)
    assert graph.observed == ("digit", "p1", "p2", "p3", "p4")
    assert graph.variables["p2"] == Continuous(0.0, 100.0, shape=(2,))
    assert {v: graph.variables[v] for v in graph.latent} == {
        **{f"h{t}": 5 for t in range(1, 5)},
        "h1_2": 3,
        "h3_4": 3,
    }
    joined = {frozenset(edge) for edge in graph.edges}
    for one, other in (("h1", "p1"), ("h1", "h2"), ("h1", "h1_2"), ("h4", "h3_4"), ("h1_2", "h3_4"), ("digit", "h3")):
        assert frozenset((one, other)) in joined
    assert frozenset(("h2", "h3")) not in joined
    with pytest.raises(ArgumentError, match="points: expected a power of two, got 6"):
        templates.pen_tree(6)


@pytest.mark.parametrize(
    ("template", "argument"),
    [
        (templates.pen_strokes, "points"),
        (templates.pen_strokes, "order"),
        (templates.hmm, "length"),
        (templates.hmm, "order"),
        (templates.factorial_hmm, "length"),
        (templates.factorial_hmm, "chains"),
        (templates.latent_tree, "branching"),
        (templates.latent_tree, "leaves"),
        (templates.diamond, "leaves"),
        (templates.naive_bayes, "features"),
        (templates.grid, "rows"),
        (templates.grid, "columns"),
    ],
)
@pytest.mark.parametrize("value", [0, 1.5])
def test_counts_must_be_positive_integers(template, argument, value):
    with pytest.raises(ArgumentError, match=f"{argument}: expected a whole number of at least 1, got {value}"):
        template(**{argument: value})


def test_depth_may_be_zero_but_not_negative():
    with pytest.raises(ArgumentError, match="depth: expected a whole number of at least 0, got -1"):
        templates.latent_tree(-1)


@pytest.mark.parametrize("template", ALL)
def test_numbers_of_states_are_checked_by_the_graph(template):
    with pytest.raises(StructureError, match="expected at least 1 state, got 0"):
        template(states=0)
    with pytest.raises(StructureError, match="expected at least 1 state, got 0"):
        template(observed_states=0)


@pytest.mark.parametrize("names", ["ab", [], 5, None])
def test_a_mixture_is_of_several_names(names):
    with pytest.raises(ArgumentError, match="names: expected a list of names, got"):
        templates.mixture(names)


def test_balanced_tree():
    domains = {f"x{i}": Continuous(shape=(2,)) for i in range(1, 8)} | {"x8": 3}
    graph = templates.balanced_tree(domains, leaf_states=4, states=5, condition={"y": 2})
    assert set(graph.observed) == {*domains, "y"}
    assert graph.variables["x8"] == 3
    assert graph.num_states("h_x3") == 4
    assert {graph.num_states(v) for v in graph.latent if not v.startswith("h_")} == {5}
    assert set(graph.neighbors("h1_2")) == {"h_x3", "h_x4", "h1_1", "h2_1", "y"}
    assert set(graph.neighbors("h2_1")) == {"h1_1", "h1_2", "h2_2", "y"}
    assert set(graph.neighbors("y")) == set(graph.latent)
    build_junction_tree(templates.balanced_tree(domains)).validate()


@pytest.mark.parametrize("count", [2, 3, 5, 6, 7, 10, 11, 16])
def test_balanced_trees_of_any_number_of_leaves(count):
    names = [f"x{i}" for i in range(count)]
    graph = templates.balanced_tree(dict.fromkeys(names, 3), leaf_states=2, states=4, condition={"y": 2})
    assert graph.observed == (*names, "y")
    assert len(graph.latent) == 2 * count - 2
    assert set(graph.neighbors("y")) == set(graph.latent)
    joined = nx.Graph(templates.balanced_tree(dict.fromkeys(names, 3)).edges)
    top = [h for h in graph.latent if joined.degree(h) == (3 if not h.startswith("h_") else 2)][-2:]
    assert joined.has_edge(*top)
    depths = {min(nx.shortest_path_length(joined, h, v) for h in top) for v in names}
    assert max(depths) - min(depths) <= 1
    build_junction_tree(templates.balanced_tree(dict.fromkeys(names, 3))).validate()


def test_leaves_of_a_balanced_tree_are_halved_in_their_order():
    graph = templates.balanced_tree(dict.fromkeys("edcba", 2))
    triangles = [("h1_1", "h_e", "h_d"), ("h2_1", "h1_1", "h_c"), ("h1_2", "h_b", "h_a")]
    inner = [{*edge} for edge in graph.edges if edge[1] in graph.latent]
    assert all({one, other} in inner for triangle in triangles for one, other in combinations(triangle, 2))
    assert {"h2_1", "h1_2"} in inner
    assert len(inner) == 3 * 3 + 1


def test_a_balanced_tree_of_one_leaf_raises():
    with pytest.raises(ArgumentError, match="leaves: expected a whole number of at least 2, got 1"):
        templates.balanced_tree({"x": 2})
