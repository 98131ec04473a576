"""Rooted clique trees, for exact inference and predictive belief propagation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import networkx as nx

from torchpbp.errors import StructureError
from torchpbp.graph.latent_graph import Continuous, LatentGraph
from torchpbp.graph.triangulation import maximal_cliques
from torchpbp.grouping import grouped, holders

NOMINAL_STATES = 8
"""Nominal number of states of continuous and unknown variables, in comparisons of sizes."""


def log_states(graph: LatentGraph) -> dict[str, float]:
    """Log number of states of each variable, with a nominal value for continuous and unknown ones."""
    return {
        v: math.log(NOMINAL_STATES if d is None or isinstance(d, Continuous) else d) for v, d in graph.variables.items()
    }


def log_size(names: Iterable[str], weights: Mapping[str, float]) -> float:
    """Log number of joint states, summed exactly, so that the result does not depend on the order of a set.

    Python's sets have a different order in each process, and cooperating processes must have the same tree.
    """
    return math.fsum(weights[v] for v in names)


@dataclass(frozen=True)
class CliqueTree:
    """Cliques connected in a rooted tree.

    Nodes are numbered so that a parent comes before its children; node 0 is the root. The separator above node ``i``
    is ``cliques[i] & cliques[parent[i]]`` and is also called separator ``i``.

    Args:
        cliques: the variables of each clique.
        parent: each node's parent; -1 for the root.
    """

    cliques: tuple[frozenset[str], ...]
    parent: tuple[int, ...]

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Children of each node, in ascending order."""
        result: list[list[int]] = [[] for _ in self.cliques]
        for node, above in enumerate(self.parent):
            if above >= 0:
                result[above].append(node)
        return tuple(tuple(c) for c in result)

    @cached_property
    def separators(self) -> tuple[frozenset[str], ...]:
        """Separator above each node; the root's is empty."""
        return tuple(self.cliques[i] & self.cliques[p] if p >= 0 else frozenset() for i, p in enumerate(self.parent))

    @cached_property
    def depth(self) -> tuple[int, ...]:
        """Number of edges between each node and the root."""
        result: list[int] = []
        for above in self.parent:
            result.append(0 if above < 0 else result[above] + 1)
        return tuple(result)

    def __len__(self) -> int:
        return len(self.cliques)

    def check_running_intersection(self) -> None:
        """Raise a StructureError unless the cliques with any given variable are connected in the tree."""
        tops: dict[str, int] = {}
        for node, clique in enumerate(self.cliques):
            for v in clique - self.separators[node]:
                if v in tops:
                    raise StructureError(
                        f"Running intersection fails: cliques {braces(self.cliques[tops[v]])} and {braces(clique)} both hold "
                        f"'{v}' but the path between them does not."
                    )
                tops[v] = node

    def check_families(self, graph: LatentGraph) -> None:
        """Raise a StructureError unless each family (child and parents, or undirected edge) lies inside some clique."""
        places = holders(self.cliques)
        for scope in factor_scopes(graph):
            near = min((places.get(v, []) for v in scope), key=len)
            if not any(scope <= self.cliques[i] for i in near):
                raise StructureError(f"Family preservation fails: no clique holds {braces(scope)}.")


def factor_scopes(graph: LatentGraph) -> list[frozenset[str]]:
    """Sets of variables that share a factor."""
    if graph.directed:
        return [frozenset((v, *graph.parents(v))) for v in graph.names]
    return [frozenset((v,)) for v in graph.names] + [frozenset(e) for e in graph.edges]


def spanning_edges(
    cliques: Sequence[frozenset[str]], weights: Mapping[str, float], chained: bool = False
) -> list[tuple[int, int]]:
    """Edges of a maximum-weight spanning tree by separator size [MP 17].

    Among equally large separators the one with fewer joint states is preferred. Components without common variables are
    connected by edges with an empty separator.

    Args:
        cliques: maximal cliques of a chordal graph.
        weights: log number of states of each variable.
        chained: connect cliques with equal separators in a chain, for few neighbours, instead of in a star, for a shallow
            tree.
    """
    places = holders(cliques)
    # Cliques with the same variables in common with the rest are connected at once and represented by one of them: a hub with
    # 1,000 leaves would otherwise need 10^6 pairs.
    alike = grouped(range(len(cliques)), lambda i: frozenset(v for v in cliques[i] if len(places[v]) > 1))
    forest = nx.utils.UnionFind(range(len(cliques)))
    edges = []
    for shared, group in alike.items():
        if shared:
            for i, j in zip(group if chained else group[:1] * len(group), group[1:], strict=False):
                forest.union(i, j)
                edges.append((i, j))
    first = {group[0] for group in alike.values()}
    pairs = {
        (i, j)
        for group in ([i for i in holder if i in first] for holder in places.values())
        for a, i in enumerate(group)
        for j in group[a + 1 :]
    }

    def preference(pair: tuple[int, int]) -> tuple[int, float, int, tuple[int, int]]:
        shared = cliques[pair[0]] & cliques[pair[1]]
        return -len(shared), round(log_size(shared, weights), 9), chained * (pair[1] - pair[0]), pair

    for i, j in sorted(pairs, key=preference):
        if forest[i] != forest[j]:
            forest.union(i, j)
            edges.append((i, j))
    for i in range(1, len(cliques)):
        if forest[i] != forest[0]:
            forest.union(0, i)
            edges.append((0, i))
    return edges


def rooted(
    cliques: Sequence[frozenset[str]], edges: Iterable[tuple[int, int]], root: int
) -> tuple[CliqueTree, list[int]]:
    """Number the nodes breadth-first from ``root``.

    Returns:
        The tree, and for each new node its old number.
    """
    near: list[list[int]] = [[] for _ in cliques]
    for i, j in edges:
        near[i].append(j)
        near[j].append(i)
    order, parent, seen = [root], [-1], {root}
    for new, old in enumerate(order):  # a queue, extended during iteration
        for other in sorted(near[old]):
            if other not in seen:
                seen.add(other)
                order.append(other)
                parent.append(new)
    if len(order) != len(cliques):
        raise StructureError(f"The clique tree is not connected: reached {len(order)} of {len(cliques)} cliques.")
    return CliqueTree(tuple(cliques[i] for i in order), tuple(parent)), order


def build_clique_tree(graph: LatentGraph) -> CliqueTree:
    """Moralise, triangulate, take maximal cliques and a maximum spanning tree [MP 17]; rooted near its centre."""
    weights = log_states(graph)
    cliques = maximal_cliques(graph.moral_graph(), weights)
    edges = spanning_edges(cliques, weights, chained=True)
    tree, _ = rooted(cliques, edges, tree_centre(len(cliques), edges))
    return tree


def tree_centre(count: int, edges: Iterable[tuple[int, int]]) -> int:
    """Node in the middle of a longest path, which makes the rooted tree as shallow as possible."""
    tree: nx.Graph[int] = nx.Graph()
    tree.add_nodes_from(range(count))
    tree.add_edges_from(edges)
    far = list(nx.bfs_tree(tree, 0))[-1]
    above = dict(nx.bfs_predecessors(tree, far))
    path = [list(above)[-1] if above else far]
    while path[-1] != far:
        path.append(above[path[-1]])
    return path[len(path) // 2]


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


def braces(names: Iterable[str]) -> str:
    """A set of names, formatted for messages."""
    return "{" + ", ".join(sorted(map(str, names))) + "}"
