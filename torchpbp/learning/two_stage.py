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

import numpy as np
import torch
from scipy.special import gammaincc
from torch import Tensor

from torchpbp.graph.junction_tree import JunctionTree
from torchpbp.learning.compression import compress
from torchpbp.learning.least_squares import least_squares
from torchpbp.learning.ridge import ridge_factor
from torchpbp.moments.moments import Group, Moments
from torchpbp.planning.plan import SeparatorPlan, Specification

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
        predictor: (instrument dim, m) takes a covariance with the instrument to the prediction's factor space.
        predicted: (message dim without the constant, m) the prediction of θ there.
        strengths: (message dim,) canonical correlations.
        significant: dimensions of the message that the data bear out.
    """

    features: Tensor
    directions: Tensor
    predictor: Tensor
    predicted: Tensor
    strengths: Tensor
    significant: int


@dataclass(frozen=True)
class Covariances:
    """Whitened covariances of separators with equal shapes, stacked.

    Args:
        nodes: the separators' tree nodes.
        cross: (separators, core dim, instrument dim).
        gram: (separators, instrument dim, instrument dim).
        constant: (separators, core dim, 1) E[φ], whitened.
        whitener: (separators, core dim) or (separators, core dim, core dim).
        ones: (separators, core dim) vectors c with c·φ = 1.
        scale: (separators, instrument dim) of the instruments.
        rows: (separators,) rows behind them; below 2 for a population, where nothing is tested.
        rank: dimensions of the messages.
    """

    nodes: Sequence[int]
    cross: Tensor
    gram: Tensor
    constant: Tensor
    whitener: Tensor
    ones: Tensor
    scale: Tensor
    rows: Tensor
    rank: int


def covariances(plans: Sequence[SeparatorPlan], moments: Moments) -> list[Covariances]:
    """Whitened covariances of all separators, equal shapes together."""
    result = []
    shapes = {p.node: (moments.dim(p.core), sum(moments.near_dim(g) for g in p.instrument), p.rank) for p in plans}
    by_node = {p.node: p for p in plans}
    for nodes in equal(shapes, lambda shape: shape):
        found = moments.separators([by_node[n] for n in nodes])
        scale = found.scale.unsqueeze(-2)
        constant = apply_whitener(found.whitener, found.core_mean.unsqueeze(-1))
        cross = without(constant, apply_whitener(found.whitener, found.cross) * scale)
        gram = scale.mT * found.gram * scale
        rank = shapes[nodes[0]][-1]
        result.append(
            Covariances(nodes, cross, gram, constant, found.whitener, found.ones, found.scale, found.rows, rank)
        )
    return result


def compress_all(systems: Iterable[Covariances], penalty: float) -> dict[int, Stage1]:
    """Stage 1A by ridge regression on the instrument, and compression of the messages.

    Args:
        systems: covariances of all separators.
        penalty: λ.

    Returns:
        node -> its part.
    """
    result: dict[int, Stage1] = {}
    for system in systems:
        factor = ridge_factor(system.gram, penalty)
        found = compress(system.cross @ factor, system.rank - 1)
        # Rounding leaves a trace of the mean in weak directions, where it would be amplified; it is taken out again.
        directions = without(system.constant, found.directions)
        features = torch.cat([system.ones.unsqueeze(-1), apply_whitener(system.whitener, directions)], dim=-1)
        predictor = system.scale.unsqueeze(-1) * factor
        strengths = torch.cat([features.new_ones(len(features), 1), found.strengths], dim=1)
        significant = significant_ranks(system, factor, found.all_strengths)
        parts = (features, directions, predictor, found.predicted, strengths)
        for n, u, d, p, g, s, known in zip(system.nodes, *(x.unbind() for x in parts), significant, strict=True):
            result[n] = Stage1(u, d, p, g, s, known)
    return result


def significant_ranks(system: Covariances, factor: Tensor, strengths: Tensor) -> list[int]:
    """Dimensions, the constant included, that the data tell from noise: Bartlett's test of the remaining correlations.

    Args:
        system: covariances of separators.
        factor: (separators, instrument dim, instrument dim) of the ridge regression on their instruments.
        strengths: (separators, correlations) all canonical correlations, largest first.
    """
    most, found = system.rank, strengths.numpy()  # these arrays are tiny, and numpy is several times as fast on them
    if float(system.rows[0]) < 2:
        return [min(most, 1 + int(n)) for n in (found > 1e-8).sum(axis=1)]
    tested = min(most - 1, found.shape[1])
    if not tested:
        return [most] * len(found)
    inside = (np.abs(system.cross.numpy()).max(axis=2) > 0).sum(
        axis=1, keepdims=True
    ) - 1  # dimensions that vary at all
    outside = (np.abs(factor.numpy()).max(axis=1) > 0).sum(axis=1, keepdims=True)
    rest = np.cumsum(found[:, ::-1] ** 2, axis=1)[:, ::-1][:, :tested] * system.rows.numpy()[:, None]
    k = np.arange(tested)
    freedom = np.maximum(np.maximum(inside, 1) - k, 1) * np.maximum(np.maximum(outside, 1) - k, 1)
    noise = gammaincc(freedom / 2, rest / 2) > SIGNIFICANCE  # the chance of χ² this large
    return [most if not row.any() else int(row.argmax()) + 1 for row in noise]


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
    """Operators with modes (message, sizes below…), node by node."""
    operators: dict[int, Tensor] = {}
    for nodes in equal(systems, lambda s: (s.mean.shape, s.predicted.shape)):
        mean = torch.stack([systems[n].mean for n in nodes])
        predictions = torch.stack([systems[n].predictions for n in nodes])
        predicted = torch.stack([systems[n].predicted for n in nodes])
        operators |= zip(nodes, solve(mean, predictions, predicted, penalty), strict=True)
    return operators


def solve(mean: Tensor, predictions: Tensor, predicted: Tensor, penalty: float) -> tuple[Tensor, ...]:
    """Operators of separators with equal shapes, see :class:`System`; the constant predicts the mean."""
    weights = least_squares(predictions, predicted, penalty).mT.reshape(len(mean), -1, *mean.shape[1:])
    return torch.cat([mean.unsqueeze(1), weights], dim=1).unbind()


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
