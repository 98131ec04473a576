"""Two-stage regression as printed in [PBP], without compression, centring or scaling: an oracle for the library's own.

Messages are the core groups' features themselves, θ = φ, and all moments are taken from dense features of the rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torchpbp import PBP, LatentGraph
from torchpbp.inference.operator_tree import OperatorTree
from torchpbp.learning.compression import ridge_factor
from torchpbp.learning.fitting import clipping_floor
from torchpbp.learning.least_squares import least_squares
from torchpbp.planning import Plan


def fit_uncompressed(
    graph: LatentGraph, data: dict[str, Tensor], ridge: tuple[float, float] = (1.0, 10.0), **settings: Any
) -> PBP:
    """A model whose operators act on uncompressed messages.

    Args:
        graph: the structure.
        data: name -> (rows,) states or values, none missing.
        ridge: penalties of the stages, in pseudo-rows.
        **settings: of :class:`~torchpbp.PBP`.
    """
    model = PBP(graph, ridge=ridge, **settings).fit(data)  # for the feature maps
    tree, dims = model.tree, model.dims
    rows = len(next(iter(data.values())))
    single = {v: o.map.features(data[v]).detach() for v, o in model.observables.items()}

    def features(group: tuple[str, ...]) -> Tensor:
        result = torch.ones(rows, 1, dtype=torch.float64)
        for v in group:
            result = (result.unsqueeze(2) * single[v].unsqueeze(1)).flatten(1)
        return result

    def size(group: tuple[str, ...]) -> int:
        return features(group).shape[1]

    plan = Plan(tree, tuple(replace(s, rank=size(s.core)) for s in model.plan.separators))
    operators = [torch.empty(0)]
    for s in plan.separators:
        leaf = tree.leaf_observables[s.node]
        if leaf:
            operators.append(torch.eye(size(leaf), dtype=torch.float64).reshape(-1, *[dims[v] for v in leaf]))
            continue
        eta = torch.cat([features(g) for g in s.instrument], dim=1)
        factor = ridge_factor(eta.T @ eta / rows, ridge[0] / rows)
        predicted = features(s.core).T @ eta / rows @ factor
        cores = [plan[c].core for c in tree.children[s.node]]
        predictions = features(tuple(v for g in cores for v in g)).T @ eta / rows @ factor
        weight = least_squares(predictions, predicted, ridge[1] / rows)
        operators.append(weight.T.reshape(-1, *[size(g) for g in cores]))
    cores = [plan[c].core for c in tree.children[0]]
    root = features(tuple(v for g in cores for v in g)).mean(dim=0).reshape([size(g) for g in cores])
    with torch.no_grad():
        model.operators.set_tree(OperatorTree(plan, operators, root))
        model.operators.floor.fill_(clipping_floor(rows))
        model.operators.set_marginals()
    return model
