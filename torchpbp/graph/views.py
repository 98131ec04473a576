"""Views of a latent: groups of observables that are independent of each other given it [d-separation].

Three views determine a latent's states up to their order, two determine them up to a change of basis. Observables may be excluded
from all views: an unobserved collider blocks a path.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import networkx as nx

from torchpbp.graph.latent_graph import LatentGraph

MOST_CANDIDATES = 16
"""Number of nearest observables from which views are started; other observables are added to them."""


@dataclass(frozen=True)
class Views:
    """Views of a latent.

    Args:
        latent: name of the latent.
        groups: three, two or no groups of observables.
    """

    latent: str
    groups: tuple[tuple[str, ...], ...]

    @property
    def observables(self) -> tuple[str, ...]:
        """Observables of all views."""
        return tuple(x for group in self.groups for x in group)

    def without(self, names: Collection[str]) -> tuple[str, ...]:
        """Observables of the views without any of these names."""
        return tuple(x for group in self.groups if not set(group) & set(names) for x in group)


class Separation:
    """D-separation in a directed graph.

    Args:
        graph: directed graph.
    """

    def __init__(self, graph: LatentGraph) -> None:
        self.graph = graph
        self._parents = {v: graph.parents(v) for v in graph.names}
        self._children = {v: graph.children(v) for v in graph.names}
        self._skeleton = nx.Graph(graph.edges)
        self._skeleton.add_nodes_from(graph.names)
        self._distance: dict[str, dict[str, int]] = {}
        self._connected: dict[tuple[str, frozenset[str]], frozenset[str]] = {}

    def connected(self, source: str, given: Iterable[str] = ()) -> frozenset[str]:
        """Variables that are d-connected with ``source`` given others; all other variables are marginalised."""
        evidence = frozenset(given)
        key = (source, evidence)
        if key not in self._connected:
            self._connected[key] = self._reachable(source, evidence)
        return self._connected[key]

    def distance(self, name: str, other: str) -> int:
        """Number of edges between two variables, in any direction; a large number if they are not connected."""
        if name not in self._distance:
            self._distance[name] = dict(nx.single_source_shortest_path_length(self._skeleton, name))
        return self._distance[name].get(other, 1000)

    def _reachable(self, source: str, evidence: frozenset[str]) -> frozenset[str]:
        """Active paths, followed from the source: upward, from a child, or downward, from a parent."""
        above = set(evidence)  # observed variables and their ancestors: open colliders
        waiting = list(evidence)
        while waiting:
            for parent in self._parents[waiting.pop()]:
                if parent not in above:
                    above.add(parent)
                    waiting.append(parent)
        seen, reachable, steps = set(), set(), [(source, True)]
        while steps:
            step = steps.pop()
            if step in seen:
                continue
            seen.add(step)
            name, upward = step
            if name not in evidence:
                reachable.add(name)
            if upward and name not in evidence:
                steps += [(p, True) for p in self._parents[name]] + [(c, False) for c in self._children[name]]
            elif not upward:
                if name not in evidence:
                    steps += [(c, False) for c in self._children[name]]
                if name in above:
                    steps += [(p, True) for p in self._parents[name]]
        return frozenset(reachable - {source})


def find_views(graph: LatentGraph, separation: Separation | None = None) -> dict[str, Views]:
    """Views of each latent: three if possible, otherwise two or none.

    The views start from the nearest triple of observables that are independent of each other given the latent, and include the
    observables that depend on one of them.

    Args:
        graph: directed graph.
        separation: an existing :class:`Separation` of the graph.
    """
    separation = separation or Separation(graph)
    return {h: _views_of(separation, h) for h in graph.latent}


def references(separation: Separation, family: Sequence[str], views: dict[str, Views]) -> dict[str, tuple[str, ...]]:
    """Observables that represent the latents of a family: each is independent of the rest of the family given its latent.

    Args:
        separation: d-separation in the graph.
        family: a variable and its parents.
        views: views of all latents.

    Returns:
        For each latent of the family the observables of its views that represent it. Observables of different latents are
        independent of each other given the family: of two dependent ones, the more distant one is dropped.
    """
    chosen: dict[str, list[str]] = {}
    for u in family:
        if u in views:
            rest = set(family) - {u}
            outside = [x for x in views[u].observables if x not in family]
            chosen[u] = [x for x in outside if not separation.connected(x, [u]) & rest]
    for u, other in combinations(list(chosen), 2):
        for x in list(chosen[u]):
            for y in list(chosen[other]):
                if x in chosen[u] and (x == y or y in separation.connected(x, family)):
                    nearer = separation.distance(u, x) <= separation.distance(other, y)
                    if nearer:
                        chosen[other].remove(y)
                    else:
                        chosen[u].remove(x)
    return {u: tuple(names) for u, names in chosen.items()}


def _views_of(separation: Separation, h: str) -> Views:
    """The best triple or pair of unlinked candidates, with the candidates linked to them."""
    near = separation.connected(h)
    candidates = [x for x in separation.graph.observed if x in near]
    candidates.sort(key=lambda x: separation.distance(h, x))  # the order of the graph among equals
    weight = {x: 2.0 ** -separation.distance(h, x) for x in candidates}
    linked = {x: separation.connected(x, [h]) & set(candidates) for x in candidates}
    for count in (3, 2):
        best: tuple[float, tuple[tuple[str, ...], ...]] | None = None
        for seeds in combinations(candidates[:MOST_CANDIDATES], count):
            if any(b in linked[a] for a, b in combinations(seeds, 2)):
                continue
            groups = _grown(seeds, candidates, linked, weight)
            sums = [sum(weight[x] for x in group) for group in groups]
            score = sum(sums) + min(sums)
            if best is None or score > best[0] + 1e-12:
                best = score, groups
        if best is not None:
            return Views(h, best[1])
    return Views(h, ())


def _grown(
    seeds: Sequence[str], candidates: Sequence[str], linked: dict[str, frozenset[str]], weight: dict[str, float]
) -> tuple[tuple[str, ...], ...]:
    """Groups around some seeds: a candidate is added to the only group it is linked to; unlinked ones to the weakest group."""
    groups = [[x] for x in seeds]
    for x in candidates:
        if x in seeds:
            continue
        near = [group for group in groups if linked[x] & set(group)]
        if len(near) == 1:
            near[0].append(x)
        elif not near:
            min(groups, key=lambda group: sum(weight[y] for y in group)).append(x)
    return tuple(tuple(group) for group in groups)
