"""Networks, rows and evidence of the benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.work import Array, Tables
from torchpbp import DiscreteNetwork, LatentGraph

SHOWN = 0.3
"""Share of variables that a row observes."""


def loopy_eight(states: int = 2, observed_states: int = 4) -> LatentGraph:
    """The loop A -> {B, C} -> D of latents, each with one observable."""
    edges = [("A", "B"), ("A", "C"), ("B", "D"), ("C", "D"), *((h, h.lower()) for h in "ABCD")]
    return LatentGraph(edges, dict.fromkeys("ABCD", states) | dict.fromkeys("abcd", observed_states), list("ABCD"))


def example_network(name: str) -> Tables:
    """A network of the bnlearn repository, with states by number, read from a file included in pgmpy."""
    spec = find_spec("pgmpy")
    assert spec is not None
    file = Path(str(spec.origin)).parent / "utils" / "example_models" / f"{name}.bif.gz"
    return tables_of(DiscreteNetwork.from_bif(file))


def tables_of(network: DiscreteNetwork) -> Tables:
    """A network as plain arrays."""
    parents = {v: tuple(network.graph.parents(v)) for v in network.graph.names}
    return Tables(dict(network.states), parents, {v: t.numpy() for v, t in network.cpts.items()})


def graph_of(tables: Tables, latent: tuple[str, ...] = ()) -> LatentGraph:
    """The graph of a network given as plain arrays."""
    return LatentGraph(tables.edges, tables.states, list(latent))


def network_of(tables: Tables, latent: tuple[str, ...] = ()) -> DiscreteNetwork:
    """A network from plain arrays."""
    return DiscreteNetwork(graph_of(tables, latent), tables.cpts)


def arrays(columns: Mapping[str, Tensor]) -> dict[str, Array]:
    """Columns as arrays, which every library's process can load."""
    return {v: x.numpy() for v, x in columns.items()}


def tensors(columns: Mapping[str, Array]) -> dict[str, Tensor]:
    return {v: torch.from_numpy(np.ascontiguousarray(x)) for v, x in columns.items()}


def renamed(graph: LatentGraph, prefix: str) -> LatentGraph:
    """The same graph with other names of its variables, for which no plan is cached."""
    edges = [(prefix + a, prefix + b) for a, b in graph.edges]
    variables = {prefix + v: domain for v, domain in graph.variables.items()}
    return LatentGraph(edges, variables, [prefix + v for v in graph.latent], graph.directed)


def draw_evidence(network: DiscreteNetwork, rows: int, seed: int = 0) -> dict[str, Array]:
    """name -> (rows,) states of observables, -1 where a row does not observe them; at least one is unobserved."""
    rng = np.random.default_rng(seed)
    tables, drawn = tables_of(network), {}
    while len(drawn) < len(tables.states):  # forward sampling: memory is independent of the sizes of cliques
        for v, parents in tables.parents.items():
            if v not in drawn and all(p in drawn for p in parents):
                cumulative = tables.cpts[v].cumsum(axis=-1)[tuple(drawn[p] for p in parents)]
                drawn[v] = (rng.random((rows, 1)) * cumulative[..., -1:] >= cumulative).sum(axis=-1)
    shown = rng.random((len(network.graph.observed), rows)) < SHOWN
    shown[0] &= ~shown.all(axis=0)
    return {v: np.where(s, drawn[v], -1) for v, s in zip(network.graph.observed, shown, strict=True)}


def posterior_arrays(result: Mapping[str, Any], evidence: Mapping[str, Array]) -> dict[str, Array]:
    """Posteriors as arrays, NaN where a row observes the variable: other libraries return nothing there."""
    answer = {v: p.detach().numpy().copy() for v, p in result.items()}
    for v in answer.keys() & evidence.keys():
        answer[v][evidence[v] >= 0] = np.nan
    return answer
