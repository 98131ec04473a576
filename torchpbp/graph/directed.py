"""Conversion of an undirected graph to a directed one."""

from __future__ import annotations

from torchpbp.graph.clique_tree import build_clique_tree
from torchpbp.graph.latent_graph import LatentGraph


def directed_graph(graph: LatentGraph) -> LatentGraph:
    """A directed graph over the same variables that can represent every distribution of ``graph``.

    An undirected graph is triangulated. Down its clique tree the parents of each variable are its predecessors in its highest
    clique, latents before observables. Cliques of three and more have a full table, which includes pairwise factors as a special
    case. A directed graph is returned unchanged.

    Args:
        graph: directed or undirected.

    Example:
        >>> square = LatentGraph([("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")], dict.fromkeys("abcd", 2), directed=False)
        >>> directed_graph(square).edges
        (('b', 'c'), ('b', 'd'), ('c', 'd'), ('b', 'a'), ('d', 'a'))
    """
    if graph.directed:
        return graph
    rank = {v: (not graph.is_latent(v), i) for i, v in enumerate(graph.names)}
    placed: dict[str, None] = {}
    edges = []
    for clique in build_clique_tree(graph).cliques:
        above = [v for v in placed if v in clique]
        for v in sorted(clique - placed.keys(), key=rank.__getitem__):
            edges += [(u, v) for u in above]
            above.append(v)
            placed[v] = None
    return LatentGraph(edges, graph.variables, graph.latent, labels=graph.labels)
