"""Two-stage regression with linear stage 1: from moments to operators [PBP Steps 3-6]."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from torchpbp.graph.junction_tree import JunctionTree
from torchpbp.learning.least_squares import least_squares
from torchpbp.learning.ridge import ridge_factor
from torchpbp.learning.two_stage import (
    Learned,
    Stage1,
    assemble,
    compress_all,
    compressions,
    covariances,
    equal,
    solve,
    targets,
)
from torchpbp.moments.moments import Group, Moments, Question
from torchpbp.planning.plan import Specification


def required_pairs(specification: Specification) -> list[tuple[Group, Group]]:
    """Pairs of groups whose second moments learning needs."""
    pairs: dict[tuple[Group, Group], None] = {}
    for plan in specification.plans:
        pairs[plan.core, plan.core] = None
        for i, group in enumerate(plan.instrument):
            pairs[plan.core, group] = None
            for other in plan.instrument[i:]:
                if (other, group) not in pairs:
                    pairs[group, other] = None
    return list(pairs)


def required_scopes(tree: JunctionTree, specification: Specification) -> list[Group]:
    """Groups of variables whose joint tables learning needs, where all variables are discrete."""
    scopes = {tuple(dict.fromkeys((*a, *b))): None for a, b in required_pairs(specification)}
    for plan in specification.plans:
        below = [v for g in targets(tree, specification, plan.node) for v in g]
        for group in plan.instrument:
            scopes[(*below, *group)] = None
    scopes[tuple(v for g in targets(tree, specification, 0) for v in g)] = None
    return list(scopes)


def learn(
    tree: JunctionTree,
    specification: Specification,
    moments: Moments,
    stage1: float,
    stage2: float,
    compressed: bool = True,
) -> Learned:
    """Solve every separator.

    Args:
        tree: junction tree.
        specification: core groups, instruments and ranks.
        moments: of the features involved.
        stage1: ridge penalty λ of S1A and S1B.
        stage2: ridge penalty λ of S2.
        compressed: whether messages are compressed to their rank; otherwise they are the core groups' features
            themselves, as printed in [PBP].
    """
    if not compressed:
        return _learn_uncompressed(tree, specification, moments, stage1, stage2)
    stages = compress_all(covariances(specification.plans, moments), stage1)
    asked: dict[int, Question] = {
        n: (
            targets(tree, specification, n),
            compressions(tree, stages, n),
            specification.plan(n).instrument if n else (),
        )
        for n in range(len(tree))
    }
    groups = [[0], *equal({n: _shape(asked[n], stages[n], moments) for n in stages}, lambda shape: shape)]
    (root, _), *found = moments.below([[asked[n] for n in nodes] for nodes in groups])
    operators: dict[int, Tensor] = {}
    for nodes, (mean, centred) in zip(groups[1:], found, strict=True):
        predictions = centred.flatten(1, -2) @ torch.stack([stages[n].predictor for n in nodes])
        predicted = torch.stack([stages[n].predicted for n in nodes])
        operators |= zip(nodes, solve(mean, predictions, predicted, stage2), strict=True)
    return assemble(tree, operators, root.squeeze(0), stages)


def _shape(question: Question, stage: Stage1, moments: Moments) -> tuple[Hashable, ...]:
    """What must be equal in separators that are solved together."""
    below, features, _ = question
    raw = tuple(moments.dim(g) for g in below)
    return (
        raw,
        None if features is None else tuple(f.shape for f in features),
        stage.predictor.shape,
        stage.predicted.shape,
    )


def _learn_uncompressed(
    tree: JunctionTree, specification: Specification, moments: Moments, stage1: float, stage2: float
) -> Learned:
    """No compression, no centring, no scaling: θ = φ, and a leaf's message is its own feature."""
    predicted: dict[int, Tensor] = {}
    factors: dict[int, Tensor] = {}
    for plan in specification.plans:
        gram = torch.cat([torch.cat([moments.cross(a, b) for b in plan.instrument], dim=1) for a in plan.instrument])
        factors[plan.node] = ridge_factor(gram, stage1)
        cross = torch.cat([moments.cross(plan.core, g) for g in plan.instrument], dim=1)
        predicted[plan.node] = cross @ factors[plan.node]
    inner = [p for p in specification.plans if not tree.leaf_observables[p.node]]
    questions: list[Question] = [(targets(tree, specification, p.node), None, p.instrument) for p in inner]
    *crosses, root = moments.responses([*questions, (targets(tree, specification, 0), None, [()])])
    operators: list[Tensor] = [torch.empty(0)] * len(tree)
    systems = {
        p.node: (cross, cross.flatten(0, -2) @ factors[p.node], predicted[p.node])
        for p, cross in zip(inner, crosses, strict=True)
    }
    for nodes in equal(systems, lambda s: (s[0].shape, s[2].shape)):
        weights = least_squares(
            torch.stack([systems[n][1] for n in nodes]), torch.stack([systems[n][2] for n in nodes]), stage2
        )
        for i, n in enumerate(nodes):
            operators[n] = weights[i].T.reshape(-1, *systems[n][0].shape[:-1])
    strengths = [torch.empty(0)]
    for node in range(1, len(tree)):
        leaf = tree.leaf_observables[node]
        if leaf:
            operators[node] = torch.eye(moments.dim(leaf), dtype=torch.float64).reshape(
                -1, *[moments.dims[v] for v in leaf]
            )
        found = torch.linalg.svdvals(predicted[node])
        strengths.append(torch.cat([found, found.new_zeros(len(predicted[node]) - len(found))]))
    significant = [0] + [int((s > 1e-8).sum()) for s in strengths[1:]]
    return Learned(tuple(operators), root.squeeze(-1), tuple(strengths), tuple(significant))
