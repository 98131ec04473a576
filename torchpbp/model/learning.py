"""Two-stage regression over a whole junction tree: from moments to operators [PBP Steps 3-6].

The first dimension of every compressed message is the constant 1, and the others are centred: ridge penalties then
never touch total probability, and a subtree without evidence drops out exactly. Separators whose matrices have equal
shapes are solved together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from torchpbp.graph.junction_tree import JunctionTree
from torchpbp.specification.specification import SeparatorPlan, Specification
from torchpbp.stage1.ridge import ridge_factor
from torchpbp.stage2.compression import compress
from torchpbp.stage2.least_squares import least_squares
from torchpbp.stage2.moments import FeatureMoments, Group, Moments

T = TypeVar("T")


@dataclass(frozen=True)
class Learned:
    """Operators of a fitted tree.

    Args:
        operators: per node (index 0 unused) a tensor with modes (message, children's messages…) or, at a leaf,
            (message, features of the leaf's observables…).
        root: tensor with one mode per child of the root.
        strengths: per node the canonical correlations of the message's dimensions.
    """

    operators: tuple[Tensor, ...]
    root: Tensor
    strengths: tuple[Tensor, ...]


def targets(tree: JunctionTree, specification: Specification, node: int) -> list[Group]:
    """Groups whose joint features an operator predicts: the children's core groups, or the leaf's own observables."""
    if tree.leaf_observables[node]:
        return [(v,) for v in tree.leaf_observables[node]]
    return [specification.plan(child).core for child in tree.children[node]]


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
    first = _compressed_stage1 if compressed else _plain_stage1
    stages = first(specification, moments, stage1)
    wanted = [(targets(tree, specification, p.node), p) for p in specification.plans]
    inner = [
        None if tree.leaf_observables[p.node] else [stages[c].features for c in tree.children[p.node]]
        for _, p in wanted
    ]
    Question = tuple[Sequence[Group], Sequence[Tensor] | None, Sequence[Group]]
    questions: list[Question] = [(below, f, p.instrument) for (below, p), f in zip(wanted, inner, strict=True)]
    questions += [(below, f, [()]) for (below, _), f in zip(wanted, inner, strict=True)]
    questions += [(targets(tree, specification, 0), [stages[c].features for c in tree.children[0]], [()])]
    answers = _responses(moments, questions)
    crosses, means, root = answers[: len(wanted)], answers[len(wanted) : -1], answers[-1].squeeze(-1)

    operators: list[Tensor] = [torch.empty(0)] * len(tree)
    systems = {p.node: (crosses[i], means[i].squeeze(-1)) for i, p in enumerate(specification.plans)}
    for nodes in _equal(systems, lambda s: s[0].shape):
        for same in _equal({n: stages[n] for n in nodes}, lambda s: s.predicted.shape):
            raw = torch.stack([systems[n][0] for n in same])
            predictors = torch.stack([stages[n].predictor for n in same])
            if compressed:
                mean = torch.stack([systems[n][1] for n in same])
                raw = raw - mean.unsqueeze(-1) * torch.stack([stages[n].instrument_mean for n in same]).reshape(
                    len(same), *[1] * (mean.ndim - 1), -1
                )
            predictions = raw.reshape(len(same), -1, raw.shape[-1]) @ predictors
            weights = least_squares(predictions, torch.stack([stages[n].predicted for n in same]), stage2)
            for i, n in enumerate(same):
                weight = weights[i].T.reshape(-1, *raw.shape[1:-1])
                operators[n] = torch.cat([systems[n][1].unsqueeze(0), weight]) if compressed else weight
    if not compressed:  # a leaf's message is its own feature: nothing to learn
        for leaf in tree.leaves:
            sizes = [moments.dims[v] for v in tree.leaf_observables[leaf]]
            operators[leaf] = torch.eye(moments.dim(tree.leaf_observables[leaf]), dtype=torch.float64).reshape(
                -1, *sizes
            )
    strengths = [torch.empty(0)] + [stages[n].strengths for n in range(1, len(tree))]
    return Learned(tuple(operators), root, tuple(strengths))


@dataclass(frozen=True)
class _Stage1:
    """Result of stage 1A and compression at one separator.

    Args:
        features: (core dim, message dim) U with θ = Uᵀφ.
        predictor: (instrument dim, m) takes a cross moment with the instrument to the prediction's factor space.
        predicted: (message dim without the constant, m) the prediction of θ there.
        instrument_mean: (instrument dim,).
        strengths: (message dim,) canonical correlations.
    """

    features: Tensor
    predictor: Tensor
    predicted: Tensor
    instrument_mean: Tensor
    strengths: Tensor


def _compressed_stage1(specification: Specification, moments: Moments, penalty: float) -> dict[int, _Stage1]:
    result: dict[int, _Stage1] = {}
    systems = {p.node: _Covariances.of(p, moments) for p in specification.plans}
    for nodes in _equal(systems, lambda m: (m.cross.shape, m.rank)):
        stacked = [systems[n] for n in nodes]
        factor = ridge_factor(torch.stack([m.gram for m in stacked]), penalty)
        found = compress(torch.stack([m.cross for m in stacked]) @ factor, stacked[0].rank - 1)
        for i, n in enumerate(nodes):
            system = systems[n]
            result[n] = _Stage1(
                system.message_features(found.directions[i]),
                system.instrument_scale.unsqueeze(1) * factor[i],
                found.predicted[i],
                system.instrument_mean,
                torch.cat([torch.ones(1, dtype=torch.float64), found.strengths[i]]),
            )
    return result


def _plain_stage1(specification: Specification, moments: Moments, penalty: float) -> dict[int, _Stage1]:
    """No compression, no centring, no scaling: θ = φ."""
    result = {}
    for plan in specification.plans:
        gram = torch.cat([torch.cat([moments.cross(a, b) for b in plan.instrument], dim=1) for a in plan.instrument])
        factor = ridge_factor(gram, penalty)
        predicted = torch.cat([moments.cross(plan.core, g) for g in plan.instrument], dim=1) @ factor
        eye = torch.eye(len(predicted), dtype=torch.float64)
        strengths = torch.zeros(len(predicted), dtype=torch.float64)
        found = torch.linalg.svdvals(predicted)
        strengths[: len(found)] = found
        result[plan.node] = _Stage1(eye, factor, predicted, torch.zeros(len(gram), dtype=torch.float64), strengths)
    return result


@dataclass(frozen=True)
class _Covariances:
    """Whitened covariances of one separator."""

    cross: Tensor  # (core dim, instrument dim)
    gram: Tensor  # (instrument dim, instrument dim)
    constant: Tensor  # (core dim, 1): E[φ], whitened
    whitener: Tensor
    ones: Tensor
    instrument_scale: Tensor
    instrument_mean: Tensor
    rank: int

    @classmethod
    def of(cls, plan: SeparatorPlan, moments: Moments) -> _Covariances:
        whitener = moments.whitener(plan.core)
        scale = torch.cat([moments.instrument_scale(g) for g in plan.instrument])
        mean = torch.cat([moments.mean(g) for g in plan.instrument])
        cross = torch.cat([moments.cross(plan.core, g) for g in plan.instrument], dim=1)
        gram = torch.cat([torch.cat([moments.cross(a, b) for b in plan.instrument], dim=1) for a in plan.instrument])
        constant = _apply(whitener, moments.mean(plan.core).unsqueeze(1))
        cross = _apply(whitener, cross - torch.outer(moments.mean(plan.core), mean)) * scale
        gram = scale.unsqueeze(1) * (gram - torch.outer(mean, mean)) * scale
        ones = moments.ones(plan.core)
        return cls(_without(constant, cross), gram, constant, whitener, ones, scale, mean, plan.rank)

    def message_features(self, directions: Tensor) -> Tensor:
        """U with θ = Uᵀφ: the constant, then the directions given, (core dim, rank).

        Rounding leaves a trace of the mean in weak directions, where it would be amplified; it is taken out again.
        """
        return torch.cat([self.ones.unsqueeze(1), _apply(self.whitener, _without(self.constant, directions))], dim=1)


def _responses(
    moments: Moments, wanted: Sequence[tuple[Sequence[Group], Sequence[Tensor] | None, Sequence[Group]]]
) -> list[Tensor]:
    if isinstance(moments, FeatureMoments):
        return moments.responses(wanted)
    return [torch.cat([moments.response(below, f, g) for g in near], dim=-1) for below, f, near in wanted]


def _apply(whitener: Tensor, matrix: Tensor) -> Tensor:
    """Whitener, diagonal or full, times a matrix."""
    return whitener.unsqueeze(1) * matrix if whitener.ndim == 1 else whitener @ matrix


def _without(direction: Tensor, matrix: Tensor) -> Tensor:
    """Columns of a matrix made orthogonal to a direction."""
    return matrix - direction @ (direction.T @ matrix) / (direction.T @ direction)


def _equal(items: Mapping[int, T], key: Callable[[T], Hashable]) -> Iterable[list[int]]:
    """Nodes grouped by the key of their item."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for node, item in items.items():
        groups[key(item)].append(node)
    return groups.values()
