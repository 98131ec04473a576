"""Conversion of networks and columns to plain arrays and back."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.implementation import Array, Tables
from torchpbp import DiscreteNetwork, LatentGraph


def tables_of(network: DiscreteNetwork) -> Tables:
    """A network as plain arrays."""
    parents = {v: tuple(network.graph.parents(v)) for v in network.graph.names}
    return Tables(dict(network.states), parents, {v: t.numpy() for v, t in network.cpts.items()})


def network_of(tables: Tables, latent: tuple[str, ...] = ()) -> DiscreteNetwork:
    """A network from plain arrays."""
    return DiscreteNetwork(LatentGraph(tables.edges, tables.states, list(latent)), tables.cpts)


def tensors(columns: dict[str, Array]) -> dict[str, torch.Tensor]:
    return {v: torch.from_numpy(np.ascontiguousarray(x)) for v, x in columns.items()}
