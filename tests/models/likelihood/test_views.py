"""d-separation, and the views of latents."""

from __future__ import annotations

import random

import networkx as nx
import pytest

from torchpbp import LatentGraph, templates
from torchpbp.graph.views import Separation, find_views, references


@pytest.mark.parametrize("graph", [templates.loopy_network(), templates.nested_loops(), templates.factorial_hmm()])
def test_connected_variables_are_those_of_networkx(graph: LatentGraph) -> None:
    draw, directed, separation = random.Random(0), graph.to_networkx(), Separation(graph)
    for _ in range(150):
        x, y = draw.sample(graph.names, 2)
        given = set(draw.sample([v for v in graph.names if v not in (x, y)], draw.randint(0, 3)))
        assert (y in separation.connected(x, given)) != nx.is_d_separator(directed, {x}, {y}, given)


def test_views_leave_out_colliders_and_are_independent_given_the_latent() -> None:
    views = find_views(templates.loopy_network())
    assert {frozenset(group) for group in views["A"].groups} == {frozenset("ch"), frozenset("d"), frozenset("e")}
    assert {h: len(v.groups) for h, v in views.items()} == {"A": 3, "B": 2, "D": 2, "F": 3}
    assert all(not v.groups for v in find_views(templates.factorial_hmm()).values())
    for graph in (templates.diamond(), templates.hmm(), templates.latent_tree(), templates.nested_loops()):
        separation = Separation(graph)
        for h, found in find_views(graph, separation).items():
            for i, group in enumerate(found.groups):
                others = {x for j, other in enumerate(found.groups) if j != i for x in other}
                assert not any(separation.connected(x, [h]) & others for x in group)


def test_references_stand_for_their_latents() -> None:
    graph = templates.diamond()
    separation, family = Separation(graph), ("B", "C", "D")
    found = references(separation, family, find_views(graph))
    assert found == {"B": ("b1", "b2"), "C": ("c1", "c2"), "D": ("d1", "d2")}
