"""Min-fill triangulation: the maximal cliques of a chordal supergraph."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

import networkx as nx


def maximal_cliques(graph: nx.Graph[str], log_states: Mapping[str, float]) -> list[frozenset[str]]:
    """Eliminate vertices by fewest fill-in edges and return the resulting maximal cliques.

    Ties go to the vertex whose clique has the smallest joint state space, then to the earlier vertex, so the result is
    deterministic. Costs are stored in a heap and updated only around removed vertices, and only when no vertex without fill-in
    is left, so that long chains and hubs with many neighbours are cheap.

    Args:
        graph: undirected graph.
        log_states: log of each vertex's number of states.

    Returns:
        Maximal cliques in the order of elimination.
    """
    adjacent: dict[str, set[str]] = {v: set(graph[v]) for v in graph}
    position = {v: i for i, v in enumerate(graph)}
    version = dict.fromkeys(graph, 0)

    def cost(v: str) -> tuple[int, float, int, int, str]:
        near = adjacent[v]
        joined = sum(len(near & adjacent[u]) for u in near) // 2  # by set intersections, since a hub has many pairs
        fill = len(near) * (len(near) - 1) // 2 - joined
        weight = log_states[v] + sum(log_states[u] for u in sorted(near, key=position.__getitem__))
        return fill, round(weight, 9), position[v], version[v], v

    heap = [cost(v) for v in graph]
    heapq.heapify(heap)
    cliques: list[frozenset[str]] = []
    containing: dict[str, list[frozenset[str]]] = {v: [] for v in graph}
    stale: dict[str, None] = {}
    while heap or stale:
        if not heap or (heap[0][0] > 0 and stale):
            for u in stale:
                if u in adjacent:
                    heapq.heappush(heap, cost(u))
            stale.clear()
            continue
        *_, stamp, v = heapq.heappop(heap)
        if v not in adjacent or stamp != version[v]:
            continue
        near = adjacent.pop(v)
        clique = frozenset(near | {v})
        if not any(clique <= other for other in containing[v]):
            cliques.append(clique)
            for u in clique:
                containing[u].append(clique)
        touched = set(near)
        for a in near:
            adjacent[a].discard(v)
            new = near - adjacent[a] - {a}
            if new:
                adjacent[a] |= new
                touched |= adjacent[a]
        for u in sorted(touched, key=position.__getitem__):
            version[u] += 1
            stale[u] = None
    return cliques
