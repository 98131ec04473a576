"""A tree depends on the graph alone: not on names, and so not on the order of sets of names.

Python orders a set of strings anew in each process. Processes that share their rows must agree on the tree.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given

from tests.graph.strategies import SMALL, latent_graphs
from torchpbp import LatentGraph, build_junction_tree
from torchpbp.graph import build_clique_tree


def renamed(graph: LatentGraph, names: dict[str, str]) -> LatentGraph:
    return LatentGraph(
        [(names[a], names[b]) for a, b in graph.edges],
        {names[v]: d for v, d in graph.variables.items()},
        [names[v] for v in graph.latent],
        graph.directed,
    )


def assert_names_do_not_matter(graph: LatentGraph) -> None:
    tree, plain = build_junction_tree(graph), build_clique_tree(graph)
    for seed in range(4):
        draw = random.Random(seed)
        names = {v: f"{draw.getrandbits(64):016x}" for v in graph.names}
        back = {new: old for old, new in names.items()}
        other, other_plain = (build(renamed(graph, names)) for build in (build_junction_tree, build_clique_tree))
        for one, two in ((tree, other), (plain, other_plain)):
            assert one.cliques == tuple(frozenset(back[v] for v in clique) for clique in two.cliques)
            assert one.parent == two.parent
        assert tree.leaf_observables == tuple(tuple(back[v] for v in group) for group in other.leaf_observables)
        assert tree.pruned == tuple((frozenset(back[v] for v in clique), above) for clique, above in other.pruned)


@pytest.mark.parametrize("sizes", [(3, 7, 11), (2, 3, 7, 11), (3, 5, 7, 11, 13)])
@pytest.mark.parametrize("order", [2, 3, 4])
def test_chains_full_of_ties(order: int, sizes: Sequence[int]) -> None:
    """Many cliques have as many states as others, a sum of the same logarithms in another order."""
    hidden = [f"h{t}" for t in range(30)]
    edges = [(hidden[t - k], h) for t, h in enumerate(hidden) for k in range(order, 0, -1) if t >= k]
    edges += [(h, f"x{h}") for h in hidden]
    states = {h: sizes[t % len(sizes)] for t, h in enumerate(hidden)} | {f"x{h}": 5 for h in hidden}
    assert_names_do_not_matter(LatentGraph(edges, states, hidden))


@pytest.mark.parametrize("name", SMALL)
def test_named_graphs(name: str) -> None:
    assert_names_do_not_matter(SMALL[name]())


@given(graph=latent_graphs(max_variables=12, max_states=11))
def test_random_graphs(graph: LatentGraph) -> None:
    assert_names_do_not_matter(graph)
