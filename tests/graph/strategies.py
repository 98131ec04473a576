"""Random latent graphs for property tests, and a list of named small ones."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from torchpbp import LatentGraph, templates

SMALL: dict[str, Callable[[], LatentGraph]] = {
    "hmm": lambda: templates.hmm(4, 2, 3),
    "hmm_order_2": lambda: templates.hmm(4, 2, 2, order=2),
    "hmm_order_3": lambda: templates.hmm(5, 2, 2, order=3),
    "factorial_hmm": lambda: templates.factorial_hmm(2, 2, 2, 4),
    "latent_tree": lambda: templates.latent_tree(1, 2, 2, 3),
    "latent_tree_deep": lambda: templates.latent_tree(2, 2, 2, 2, leaves=1),
    "diamond": lambda: templates.diamond(2, 3, 1),
    "diamond_two_leaves": lambda: templates.diamond(2, 2, 2),
    "nested_loops": lambda: templates.nested_loops(2, 2),
    "loopy_network": lambda: templates.loopy_network(2, 3),
    "naive_bayes": lambda: templates.naive_bayes(4, 3, 4),
    "grid": lambda: templates.grid(2, 3, 2, 2),
    "observed_parent": lambda: LatentGraph(
        [("x", "h"), ("h", "y"), ("x", "y"), ("y", "k"), ("k", "z"), ("k", "w")],
        {"x": 3, "h": 2, "y": 4, "k": 3, "z": 3, "w": 2},
        ["h", "k"],
    ),
    "disconnected": lambda: LatentGraph(
        [("h", "x"), ("h", "y"), ("k", "z"), ("k", "w")],
        {"h": 2, "x": 3, "y": 3, "k": 3, "z": 2, "w": 4, "alone": 3},
        ["h", "k"],
    ),
    "no_latent": lambda: LatentGraph(
        [("a", "b"), ("b", "c"), ("a", "c"), ("c", "d")], {"a": 2, "b": 3, "c": 2, "d": 3}
    ),
    "one_variable": lambda: LatentGraph([], {"x": 3}),
    "barren_latents": lambda: LatentGraph(
        [("h", "x"), ("h", "k"), ("k", "l"), ("h", "y")], {"h": 2, "x": 3, "k": 3, "l": 2, "y": 2}, ["h", "k", "l"]
    ),
    "undirected_loop": lambda: LatentGraph(
        [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a"), ("a", "x"), ("b", "y"), ("c", "z"), ("d", "w")],
        {"a": 2, "b": 3, "c": 2, "d": 2, "x": 2, "y": 3, "z": 2, "w": 3},
        ["a", "b", "c", "d"],
        directed=False,
    ),
}
"""Graphs small enough to enumerate, by name."""


@st.composite
def latent_graphs(
    draw: st.DrawFn, max_variables: int = 8, max_states: int = 3, directed: bool | None = None, max_parents: int = 3
) -> LatentGraph:
    """Directed and undirected graphs, sparse and dense, connected or not, with some latents."""
    count = draw(st.integers(1, max_variables))
    order = draw(st.permutations([f"v{i}" for i in range(count)]))
    directed = draw(st.booleans()) if directed is None else directed
    edges = []
    for i in range(1, count):
        near = draw(st.lists(st.sampled_from(range(i)), max_size=max_parents, unique=True))
        edges += [(order[j], order[i]) for j in near]
    names = sorted(order)
    states = {v: draw(st.integers(1, max_states)) for v in names}
    observed = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    return LatentGraph(edges, states, [v for v in names if v not in observed], directed=directed)
