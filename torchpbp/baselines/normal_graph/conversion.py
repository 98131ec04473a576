"""Conversion of a directed graph of variables to its normal graph [NG 2.1], with product spaces of parents [NG eq. 30–31].

States of a product space are numbered in row-major order: the last variable varies fastest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import networkx as nx
import torch
from torch import Tensor

from torchpbp.baselines.normal_graph.structure import Block, Diverter, NormalGraph
from torchpbp.errors import StructureError
from torchpbp.graph.latent_graph import LatentGraph, require_states


@dataclass(frozen=True)
class Converted:
    """A normal graph, with the branches of the original graph's variables.

    Args:
        graph: normal graph, with a block P(variable | parents) named after each variable.
        entry: observable -> branch with a free end, where its evidence enters.
        branch: variable -> branch of its posterior.
    """

    graph: NormalGraph
    entry: dict[str, str]
    branch: dict[str, str]


def convert(graph: LatentGraph) -> Converted:
    """Build the normal graph of a directed graph without loops.

    A variable with several outgoing branches (to children, and to its evidence) has a diverter. The input of a variable with
    several parents is their product space, connected by fixed blocks.

    Args:
        graph: directed, discrete graph without undirected loops, with a number of states for each variable.

    Raises:
        StructureError: any other graph.
    """
    check_structure(graph)
    states = {v: graph.num_states(v) for v in graph.names}
    blocks: list[Block] = []
    diverters: list[Diverter] = []
    entry: dict[str, str] = {}
    ports: dict[tuple[str, str], str] = {}  # (parent, child) -> branch that carries the parent to the child
    constant = 0.0
    hidden = set(graph.latent)
    for v in graph.names:
        readers = list(graph.children(v)) if v in hidden else [*graph.children(v), ""]
        replicas = [v]
        if len(readers) > 1:
            replicas = [_branch(states, f"{v}({i})", states[v]) for i in range(1, len(readers) + 1)]
            diverters.append(Diverter((v,), tuple(replicas)))
        for reader, replica in zip(readers, replicas, strict=False):  # a childless latent has no reader
            if reader:
                ports[v, reader] = replica
            else:
                entry[v] = replica
    for v in graph.names:
        parents = graph.parents(v)
        if len(parents) == 1:
            source = ports[parents[0], v]
        elif not parents:
            source = _branch(states, f"1>{v}", 1)
        else:
            sizes = [graph.num_states(p) for p in parents]
            source = _branch(states, f"({' '.join(parents)})>{v}", math.prod(sizes))
            replicas = [_branch(states, f"{source}({i})", states[source]) for i in range(1, len(parents) + 1)]
            for parent, replica, matrix in zip(parents, replicas, to_product(sizes), strict=True):
                blocks.append(Block(f"{parent}>{replica}", ports[parent, v], replica, fixed=matrix))
            diverters.append(Diverter(tuple(replicas), (source,)))
            constant += log_constant(sizes)
        blocks.append(Block(v, source, v))
    return Converted(NormalGraph(states, blocks, diverters, constant), entry, {v: v for v in graph.names})


def _branch(states: dict[str, int], name: str, size: int) -> str:
    """Add a branch with a unique name."""
    while name in states:
        name += "'"
    states[name] = size
    return name


def check_structure(graph: LatentGraph) -> None:
    """Raise a StructureError for graphs whose normal graph has loops, or with variables without a number of states."""
    if not graph.directed:
        raise StructureError(
            "Normal graph: expected a directed graph, whose blocks are conditional probabilities, got an undirected one. "
            "Give its edges directions, or use torchpbp.PBP."
        )
    require_states(graph, "Normal graph", " torchpbp.PBP takes such graphs.")
    skeleton: nx.Graph[str] = nx.Graph()
    skeleton.add_nodes_from(graph.names)
    skeleton.add_edges_from(graph.edges)
    loops = nx.cycle_basis(skeleton)
    if loops:
        raise StructureError(
            f"Normal graph: the graph has a loop through {', '.join(sorted(loops[0]))}; messages are exact without loops only. "
            "Join some of these variables into one, or use torchpbp.PBP or torchpbp.EM."
        )


def from_product(sizes: Sequence[int]) -> list[Tensor]:
    """P(X_j | X_1 … X_D) for each j: a joint state determines each of its members [NG eq. 30].

    Args:
        sizes: number of states of each variable.

    Returns:
        D matrices of shape (∏ sizes, sizes[j]), one 1 in each row.
    """
    result = []
    for j, size in enumerate(sizes):
        before, after = math.prod(sizes[:j]), math.prod(sizes[j + 1 :])
        identity = torch.eye(size, dtype=torch.float64)
        # 1 ⊗ I ⊗ 1: repeat each row for the faster variables, then the whole for the slower ones.
        result.append(identity.repeat_interleave(after, dim=0).repeat(before, 1))
    return result


def to_product(sizes: Sequence[int]) -> list[Tensor]:
    """P(X_1 … X_D | X_j) for each j, uniform over the joint states with X_j [NG eq. 31].

    Args:
        sizes: number of states of each variable.

    Returns:
        D matrices of shape (sizes[j], ∏ sizes), each row with ∏ sizes / sizes[j] equal entries.
    """
    total = math.prod(sizes)
    return [matrix.T * (size / total) for matrix, size in zip(from_product(sizes), sizes, strict=True)]


def log_constant(sizes: Sequence[int]) -> float:
    """Logarithm of the factor by which matrices (31) around one diverter shrink a joint probability: ∏_j sizes[j]/∏ sizes."""
    total = math.prod(sizes)
    return sum(math.log(size / total) for size in sizes)


def thetas_from_tables(graph: LatentGraph, tables: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Matrices (parents' joint states, states) of tables (states of each parent…, states)."""
    return {v: torch.as_tensor(tables[v]).reshape(-1, graph.num_states(v)) for v in graph.names}


def tables_from_thetas(graph: LatentGraph, thetas: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Inverse of :func:`thetas_from_tables`."""
    return {
        v: thetas[v].reshape(*(graph.num_states(p) for p in graph.parents(v)), graph.num_states(v)) for v in graph.names
    }
