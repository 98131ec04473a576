"""Views of a latent: groups of observables that are independent of each other given it [d-separation].

Three views determine a latent's states up to their order, two determine them up to a change of basis. Observables may be left
out of all views: a collider that nobody looks at blocks a path.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import networkx as nx

from torchpbp.graph.latent_graph import LatentGraph

MOST_CANDIDATES = 16
"""Observables, the nearest ones, of which views are made up; others join them."""


@dataclass(frozen=True)
class Views:
    """What can be seen of a latent.

    Args:
        latent: its name.
        groups: three, two or no groups of observables.
    """

    latent: str
    groups: tuple[tuple[str, ...], ...]

    @property
    def observables(self) -> tuple[str, ...]:
        """Those of all views."""
        return tuple(x for group in self.groups for x in group)

    def without(self, names: Collection[str]) -> tuple[str, ...]:
        """Observables of the views that have none of some names."""
        return tuple(x for group in self.groups if not set(group) & set(names) for x in group)


class Separation:
    """Questions of d-separation about one directed graph.

    Args:
        graph: directed.
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
        """Variables that are d-connected with one, given others; all that is not named is marginalised."""
        known = frozenset(given)
        key = (source, known)
        if key not in self._connected:
            self._connected[key] = self._reachable(source, known)
        return self._connected[key]

    def distance(self, name: str, other: str) -> int:
        """Edges between two variables, whatever their direction; a large number where they are not connected."""
        if name not in self._distance:
            self._distance[name] = dict(nx.single_source_shortest_path_length(self._skeleton, name))
        return self._distance[name].get(other, 1000)

    def _reachable(self, source: str, given: frozenset[str]) -> frozenset[str]:
        """Active paths, followed from the source: upward, from a child, or downward, from a parent."""
        above = set(given)  # what is observed, and its ancestors: colliders that are open
        waiting = list(given)
        while waiting:
            for parent in self._parents[waiting.pop()]:
                if parent not in above:
                    above.add(parent)
                    waiting.append(parent)
        seen, found, steps = set(), set(), [(source, True)]
        while steps:
            step = steps.pop()
            if step in seen:
                continue
            seen.add(step)
            name, upward = step
            if name not in given:
                found.add(name)
            if upward and name not in given:
                steps += [(p, True) for p in self._parents[name]] + [(c, False) for c in self._children[name]]
            elif not upward:
                if name not in given:
                    steps += [(c, False) for c in self._children[name]]
                if name in above:
                    steps += [(p, True) for p in self._parents[name]]
        return frozenset(found - {source})


def find_views(graph: LatentGraph, separation: Separation | None = None) -> dict[str, Views]:
    """Views of each latent: three if there are, else two, else none.

    Among triples of observables that are independent of each other given the latent the nearest are taken, together with the
    others that join them.

    Args:
        graph: directed.
        separation: of the graph, where there is one already.
    """
    known = separation or Separation(graph)
    return {h: _views_of(known, h) for h in graph.latent}


def references(separation: Separation, family: Sequence[str], views: dict[str, Views]) -> dict[str, tuple[str, ...]]:
    """Observables that stand for the latents of a family: each is independent of the rest of the family given its latent.

    Args:
        separation: of the graph.
        family: a variable and its parents.
        views: of all latents.

    Returns:
        For each latent of the family the observables of its views that stand for it. Those of different latents are independent
        of each other given the family: of two that are not, the one further away is left out.
    """
    found: dict[str, list[str]] = {}
    for u in family:
        if u in views:
            rest = set(family) - {u}
            outside = [x for x in views[u].observables if x not in family]
            found[u] = [x for x in outside if not separation.connected(x, [u]) & rest]
    for u, other in combinations(list(found), 2):
        for x in list(found[u]):
            for y in list(found[other]):
                if x in found[u] and (x == y or y in separation.connected(x, family)):
                    nearer = separation.distance(u, x) <= separation.distance(other, y)
                    if nearer:
                        found[other].remove(y)
                    else:
                        found[u].remove(x)
    return {u: tuple(names) for u, names in found.items()}


def _views_of(separation: Separation, h: str) -> Views:
    """The best triple or pair of unlinked candidates, with what joins them."""
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
    """Groups around some seeds: a candidate joins the only group that it is linked to, or else the weakest one."""
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
