"""What all stage-1 methods share: compression of what was predicted, and stage 2 for all separators.

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
from torchpbp.stage2.moments import Group, Moments

T = TypeVar("T")

SIGNIFICANCE = 1e-3
"""Level of the test for dimensions of a message that the data bear out."""


@dataclass(frozen=True)
class Learned:
    """Operators of a fitted tree.

    Args:
        operators: per node (index 0 unused) a tensor with modes (message, children's messages…) or, at a leaf,
            (message, features of the leaf's observables…).
        root: tensor with one mode per child of the root.
        strengths: per node the canonical correlations of the message's dimensions.
        significant: per node how many dimensions of the message, the constant included, the data bear out.
    """

    operators: tuple[Tensor, ...]
    root: Tensor
    strengths: tuple[Tensor, ...]
    significant: tuple[int, ...]


@dataclass(frozen=True)
class Stage1:
    """Result of stage 1A and compression at one separator.

    Args:
        features: (core dim, message dim) U with θ = Uᵀφ.
        directions: (core dim, message dim without the constant) the same before whitening.
        predictor: (instrument dim, m) takes a cross moment with the instrument to the prediction's factor space.
        predicted: (message dim without the constant, m) the prediction of θ there.
        instrument_mean: (instrument dim,).
        strengths: (message dim,) canonical correlations.
        significant: dimensions of the message that the data bear out.
    """

    features: Tensor
    directions: Tensor
    predictor: Tensor
    predicted: Tensor
    instrument_mean: Tensor
    strengths: Tensor
    significant: int


@dataclass(frozen=True)
class Covariances:
    """Whitened covariances of one separator.

    Args:
        cross: (core dim, instrument dim).
        gram: (instrument dim, instrument dim).
        constant: (core dim, 1) E[φ], whitened.
        whitener: (core dim,) or (core dim, core dim).
        ones: (core dim,) vector c with c·φ = 1.
        instrument_scale: (instrument dim,).
        instrument_mean: (instrument dim,).
        rank: dimensions of the message.
    """

    cross: Tensor
    gram: Tensor
    constant: Tensor
    whitener: Tensor
    ones: Tensor
    instrument_scale: Tensor
    instrument_mean: Tensor
    rank: int


def covariances(plans: Sequence[SeparatorPlan], moments: Moments) -> dict[int, Covariances]:
    """Whitened covariances of all separators from moments of the instruments' groups, equal shapes together."""
    result: dict[int, Covariances] = {}
    shapes = {p.node: (moments.dim(p.core), tuple(moments.dim(g) for g in p.instrument)) for p in plans}
    by_node = {p.node: p for p in plans}
    for nodes in equal(shapes, lambda shape: shape):
        group = [by_node[n] for n in nodes]
        whitener = torch.stack([moments.whitener(p.core) for p in group])
        core_mean = torch.stack([moments.mean(p.core) for p in group]).unsqueeze(-1)
        scale = torch.stack([torch.cat([moments.instrument_scale(g) for g in p.instrument]) for p in group])
        mean = torch.stack([torch.cat([moments.mean(g) for g in p.instrument]) for p in group])
        cross, gram = _second_moments(group, shapes[nodes[0]][1], moments)
        constant = apply_whitener(whitener, core_mean)
        cross = apply_whitener(whitener, cross - core_mean * mean.unsqueeze(-2)) * scale.unsqueeze(-2)
        cross = without(constant, cross)
        gram = scale.unsqueeze(-1) * (gram - mean.unsqueeze(-1) * mean.unsqueeze(-2)) * scale.unsqueeze(-2)
        for i, p in enumerate(group):
            ones = moments.ones(p.core)
            result[p.node] = Covariances(cross[i], gram[i], constant[i], whitener[i], ones, scale[i], mean[i], p.rank)
    return result


def _second_moments(group: Sequence[SeparatorPlan], dims: tuple[int, ...], moments: Moments) -> tuple[Tensor, Tensor]:
    """E[φηᵀ] (separators, core dim, instrument dim) and E[ηηᵀ] (separators, instrument dim, instrument dim)."""
    near = [p.instrument for p in group]
    crosses = [moments.cross(p.core, g) for p in group for g in p.instrument]
    grams = [moments.cross(a, b) for groups in near for a in groups for b in groups]
    count, parts = len(group), len(dims)
    if len(set(dims)) == 1:  # blocks of one size: one copy
        cross = torch.stack(crosses).reshape(count, parts, -1, dims[0]).transpose(1, 2).flatten(2)
        gram = torch.stack(grams).reshape(count, parts, parts, dims[0], dims[0]).transpose(2, 3)
        return cross, gram.reshape(count, parts * dims[0], parts * dims[0])
    rows = [torch.cat(grams[i : i + parts], dim=1) for i in range(0, len(grams), parts)]
    gram = torch.stack([torch.cat(rows[i : i + parts]) for i in range(0, len(rows), parts)])
    return torch.stack([torch.cat(crosses[i : i + parts], dim=1) for i in range(0, len(crosses), parts)]), gram


def compress_all(systems: Mapping[int, Covariances], penalty: float, rows: float) -> dict[int, Stage1]:
    """Stage 1A by ridge regression on the instrument, and compression of the messages.

    Args:
        systems: node -> covariances.
        penalty: λ.
        rows: behind the covariances; below 2 for a population, where no test is made.
    """
    result: dict[int, Stage1] = {}
    for nodes in equal(systems, lambda m: (m.cross.shape, m.rank)):
        stacked = [systems[n] for n in nodes]
        rank = stacked[0].rank
        factor = ridge_factor(torch.stack([m.gram for m in stacked]), penalty)
        cross = torch.stack([m.cross for m in stacked])
        found = compress(cross @ factor, rank - 1)
        # Rounding leaves a trace of the mean in weak directions, where it would be amplified; it is taken out again.
        directions = without(torch.stack([m.constant for m in stacked]), found.directions)
        whitened = apply_whitener(torch.stack([m.whitener for m in stacked]), directions)
        features = torch.cat([torch.stack([m.ones for m in stacked]).unsqueeze(-1), whitened], dim=-1)
        predictor = torch.stack([m.instrument_scale for m in stacked]).unsqueeze(-1) * factor
        strengths = torch.cat([torch.ones_like(found.strengths[:, :1]), found.strengths], dim=1)
        if rank == 1:
            strengths = features.new_ones(len(nodes), 1)
        significant = significant_ranks(found.all_strengths, *_effective(cross, factor), rows, rank)
        for i, n in enumerate(nodes):
            result[n] = Stage1(
                features[i],
                directions[i],
                predictor[i],
                found.predicted[i],
                stacked[i].instrument_mean,
                strengths[i],
                significant[i],
            )
    return result


def significant_ranks(strengths: Tensor, inside: Tensor, outside: Tensor, rows: float, most: int) -> list[int]:
    """Dimensions, the constant included, that the data tell from noise: Bartlett's test of the remaining correlations.

    Args:
        strengths: (separators, correlations) all canonical correlations, largest first.
        inside: (separators,) degrees of freedom of the core groups.
        outside: (separators,) degrees of freedom of the instruments.
        rows: sample size.
        most: the messages' rank.
    """
    if rows < 2:
        return [min(most, 1 + n) for n in (strengths > 1e-8).sum(dim=1).tolist()]
    tested = min(most - 1, strengths.shape[1])
    if not tested:
        return [most] * len(strengths)
    rest = strengths.square().flip(1).cumsum(1).flip(1)[:, :tested] * rows
    k = torch.arange(tested)
    freedom = (inside.unsqueeze(1) - k).clamp(min=1) * (outside.unsqueeze(1) - k).clamp(min=1)
    chance = torch.special.gammaincc(freedom.to(rest) / 2, rest / 2)  # of χ² this large
    noise = torch.cat([chance > SIGNIFICANCE, torch.ones(len(strengths), 1, dtype=torch.bool)], dim=1)
    first = noise.int().argmax(dim=1).tolist()
    return [most if f == tested else f + 1 for f in first]


def _effective(cross: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """(separators,) dimensions in which core groups and instruments vary at all."""
    inside = (cross.abs().amax(dim=2) > 0).sum(dim=1) - 1
    return inside.clamp(min=1), (factor.abs().amax(dim=1) > 0).sum(dim=1).clamp(min=1)


def targets(tree: JunctionTree, specification: Specification, node: int) -> list[Group]:
    """Groups whose joint features an operator predicts: the children's core groups, or the leaf's own observables."""
    if tree.leaf_observables[node]:
        return [(v,) for v in tree.leaf_observables[node]]
    return [specification.plan(child).core for child in tree.children[node]]


def compressions(tree: JunctionTree, stages: Mapping[int, Stage1], node: int) -> list[Tensor] | None:
    """U of each of a node's children; None at a leaf, whose features are taken as they are."""
    if tree.leaf_observables[node]:
        return None
    return [stages[c].features for c in tree.children[node]]


@dataclass(frozen=True)
class System:
    """Stage 2 at one separator: find W with predictions ≈ W · predicted.

    Args:
        mean: (sizes below…) E[y].
        predictions: (∏ sizes below, m).
        predicted: (message dim without the constant, m).
    """

    mean: Tensor
    predictions: Tensor
    predicted: Tensor


def solve_all(systems: Mapping[int, System], penalty: float) -> dict[int, Tensor]:
    """Operators with modes (message, sizes below…), node by node; the constant predicts the mean."""
    operators: dict[int, Tensor] = {}
    for nodes in equal(systems, lambda s: (s.mean.shape, s.predicted.shape)):
        predictions = torch.stack([systems[n].predictions for n in nodes])
        weights = least_squares(predictions, torch.stack([systems[n].predicted for n in nodes]), penalty)
        for i, n in enumerate(nodes):
            mean = systems[n].mean
            operators[n] = torch.cat([mean.unsqueeze(0), weights[i].T.reshape(-1, *mean.shape)])
    return operators


def assemble(
    tree: JunctionTree, operators: Mapping[int, Tensor], root: Tensor, stages: Mapping[int, Stage1]
) -> Learned:
    """All results in the order of the tree's nodes."""
    nodes = range(1, len(tree))
    return Learned(
        (torch.empty(0), *(operators[n] for n in nodes)),
        root,
        (torch.empty(0), *(stages[n].strengths for n in nodes)),
        (0, *(stages[n].significant for n in nodes)),
    )


def apply_whitener(whitener: Tensor, matrix: Tensor) -> Tensor:
    """Whiteners, diagonal (…, d) or full (…, d, d), times matrices (…, d, m)."""
    return whitener.unsqueeze(-1) * matrix if whitener.ndim == matrix.ndim - 1 else whitener @ matrix


def without(direction: Tensor, matrix: Tensor) -> Tensor:
    """Columns of (…, d, m) matrices made orthogonal to (…, d, 1) directions."""
    return matrix - direction @ (direction.mT @ matrix) / (direction.mT @ direction)


def equal(items: Mapping[int, T], key: Callable[[T], Hashable]) -> Iterable[list[int]]:
    """Nodes grouped by the key of their item."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for node, item in items.items():
        groups[key(item)].append(node)
    return groups.values()
