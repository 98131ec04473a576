"""The first draft of a junction tree: a skeleton of the variables that connect cliques, and leaves with the observables."""

from __future__ import annotations

from collections.abc import Mapping

from torchpbp.graph.clique_tree import log_size, spanning_edges
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.graph.tree_draft import Draft
from torchpbp.graph.triangulation import maximal_cliques
from torchpbp.grouping import holders


def skeleton_with_leaves(graph: LatentGraph, weights: Mapping[str, float]) -> Draft:
    """Steps 1 and 2: a skeleton of the variables that connect cliques, and leaves with the observables.

    Args:
        graph: the model's structure.
        weights: log number of states of each variable.
    """
    cliques = maximal_cliques(graph.moral_graph(), weights)
    membership: dict[str, int] = {}
    for clique in cliques:
        for v in clique:
            membership[v] = membership.get(v, 0) + 1
    place = {v: i for i, v in enumerate(graph.observed) if membership[v] == 1}
    exclusive = [tuple(sorted((v for v in c if v in place), key=place.__getitem__)) for c in cliques]
    remainders = dict.fromkeys(c - set(e) for c, e in zip(cliques, exclusive, strict=True))
    # Remainders contained in other cliques of the skeleton are dropped; only cliques with a common variable are compared.
    parts = [s for s in remainders if s]
    near = holders(parts)
    skeleton = [s for s in parts if not any(s < parts[i] for i in near[min(s)])] or [frozenset[str]()]

    draft = Draft()
    for clique in skeleton:
        draft.add(clique)
    for a, b in spanning_edges(skeleton, weights):
        draft.join(a, b)
    hosts = holders(skeleton)

    chosen: dict[frozenset[str], int] = {}  # leaves with equal separators share a host, so that a split can group them

    def host(separator: frozenset[str]) -> int:
        if separator not in chosen:
            near = hosts[min(separator)] if separator else range(len(skeleton))
            fitting = [i for i in near if separator <= skeleton[i]]
            chosen[separator] = min(fitting, key=lambda i: (len(draft.near[i]), log_size(skeleton[i], weights), i))
        return chosen[separator]

    for clique, group in zip(cliques, exclusive, strict=True):
        if group:
            above = host(clique - set(group))
            draft.join(draft.add(clique, group), above)
    for v in graph.observed:
        if membership[v] > 1:
            above = host(frozenset((v,)))
            draft.join(draft.add(frozenset((v,)), (v,)), above)
    return draft
