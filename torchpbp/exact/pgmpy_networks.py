"""Conversion of a network's tables from and to models of pgmpy."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchpbp.graph.domains import Scope
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.graph.pgmpy_models import make_pgmpy, read_pgmpy


def read_network(
    model: Any, latent: Iterable[str] | None = None
) -> tuple[LatentGraph, dict[Any, Tensor], dict[str, tuple[Any, ...]]]:
    """Graph, tables by scope, and labels of states.

    Args:
        model: a DiscreteBayesianNetwork or DiscreteMarkovNetwork of pgmpy, with all its tables.
        latent: names of variables to treat as hidden; ``model.latents`` by default.

    Returns:
        The tables of a Bayesian network have the parents in the order of the graph, followed by the variable.
    """
    read = read_pgmpy(model)
    read.require_tables()
    graph = LatentGraph.from_pgmpy(model, latent=latent)
    tables: dict[Any, Tensor] = {}
    for scope, values in read.tables.items():
        order = (*graph.parents(scope[-1]), scope[-1]) if graph.directed else scope
        tables[order] = torch.from_numpy(values).permute([scope.index(v) for v in order])
    return graph, tables, read.labels


def make_network(
    graph: LatentGraph, states: Mapping[str, Sequence[Hashable]], factors: Iterable[tuple[Scope, Tensor]]
) -> Any:
    """A model of pgmpy.

    Args:
        graph: the structure; a directed one gives a DiscreteBayesianNetwork.
        states: name -> labels of its states.
        factors: (scope, table) pairs, in which a variable follows its parents.
    """
    tables = [(scope, table.detach().cpu().numpy()) for scope, table in factors]
    if graph.directed:
        return make_pgmpy(graph.edges, states, graph.latent, tables, directed=True)
    joint = {v for scope, _ in tables if len(scope) > 1 for v in scope}
    tables = [(s, t) for s, t in tables if len(s) > 1 or s[0] not in joint or (t != 1).any()]  # drop redundant ones
    return make_pgmpy(graph.edges, states, graph.latent, tables, directed=False)
