"""Directed graphs for undirected ones: they hold the same distributions."""

from __future__ import annotations

import pytest
import torch

from tests.models.structures import STRUCTURES
from torchpbp import DiscreteNetwork, templates
from torchpbp.graph.clique_tree import directed_graph


@pytest.mark.parametrize("name", ["undirected grid", "undirected cycle"])
def test_every_distribution_has_tables_in_the_directed_graph(name):
    """Conditionals of the joint distribution, taken along the new edges, give the distribution back."""
    truth = DiscreteNetwork.random(STRUCTURES[name], seed=2)
    graph = directed_graph(truth.graph)
    assert graph.directed
    assert graph.variables == truth.graph.variables
    assert set(graph.latent) == set(truth.graph.latent)
    assert not any(graph.is_latent(child) and not graph.is_latent(parent) for parent, child in graph.edges)
    cpts = {}
    for v in graph.names:
        joint = truth.joint((*graph.parents(v), v))
        cpts[v] = joint / joint.sum(dim=-1, keepdim=True)
    rows = truth.sample(50, seed=1)
    assert torch.allclose(DiscreteNetwork(graph, cpts).log_evidence(rows), truth.log_evidence(rows), atol=1e-10)


def test_a_directed_graph_stays():
    graph = templates.diamond()
    assert directed_graph(graph) is graph
