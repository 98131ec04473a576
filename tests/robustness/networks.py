"""Random networks for property tests: any graph, and tables that are smooth, sharp, full of zeros or short of rank."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.graph.strategies import latent_graphs
from torchpbp import DiscreteNetwork, LatentGraph

KINDS = ("smooth", "sharp", "zeros", "deterministic", "deficient", "uniform")
"""How tables are drawn; see :func:`make_table`."""


def make_table(shape: tuple[int, ...], kind: str, rng: np.random.Generator) -> np.ndarray:
    """A table whose last dimension sums to 1.

    Args:
        shape: numbers of states, the variable's own last.
        kind: "smooth" (Dirichlet), "sharp" (nearly deterministic), "zeros" (a third of the entries are 0), "deterministic"
            (only 0 and 1), "deficient" (all rows but the first are the same), or "uniform".
        rng: source of the numbers.
    """
    table = rng.gamma(0.05 if kind == "sharp" else 1.0, size=shape) + 1e-12
    if kind == "zeros":
        drop = rng.random(shape) < 1 / 3
        drop[..., 0] &= ~drop.all(axis=-1)
        table = np.where(drop, 0.0, table)
    elif kind == "deterministic":
        table = (table == table.max(axis=-1, keepdims=True)).astype(float)
    elif kind == "deficient":
        flat = table.reshape(-1, shape[-1])
        flat[1:] = flat[-1]
    elif kind == "uniform":
        table = np.ones(shape)
    return table / table.sum(axis=-1, keepdims=True)


def make_network(graph: LatentGraph, kind: str, seed: int) -> DiscreteNetwork:
    """A network with tables of one kind; an undirected one has a factor on each edge and variable.

    Raises:
        StructureError: factors full of zeros that rule out everything.
    """
    rng = np.random.default_rng(seed)

    def table(scope: tuple[str, ...]) -> np.ndarray:
        return make_table(tuple(graph.num_states(v) for v in scope), kind, rng)

    if graph.directed:
        return DiscreteNetwork(graph, {v: table((*graph.parents(v), v)) for v in graph.names})
    scopes = [*((v,) for v in graph.names), *graph.edges]
    return DiscreteNetwork.from_factors(graph, {scope: table(scope) for scope in scopes})


@st.composite
def graphs(draw: st.DrawFn) -> LatentGraph:
    """Up to 12 variables of up to 4 states: forests, sparse and dense graphs, latents anywhere."""
    return draw(latent_graphs(12, 4, max_parents=draw(st.integers(1, 3))))
