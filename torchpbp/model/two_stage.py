"""What all stage-1 methods share: compression of what was predicted, and stage 2 for all separators.

The first dimension of every compressed message is the constant 1, and the others are centred: ridge penalties then
never touch total probability, and a subtree without evidence drops out exactly. Separators whose matrices have equal
shapes are solved together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
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

    @classmethod
    def of(cls, plan: SeparatorPlan, moments: Moments) -> Covariances:
        """From moments of the instrument's groups."""
        whitener = moments.whitener(plan.core)
        scale = torch.cat([moments.instrument_scale(g) for g in plan.instrument])
        mean = torch.cat([moments.mean(g) for g in plan.instrument])
        cross = torch.cat([moments.cross(plan.core, g) for g in plan.instrument], dim=1)
        gram = torch.cat([torch.cat([moments.cross(a, b) for b in plan.instrument], dim=1) for a in plan.instrument])
        constant = apply_whitener(whitener, moments.mean(plan.core).unsqueeze(1))
        cross = apply_whitener(whitener, cross - torch.outer(moments.mean(plan.core), mean)) * scale
        gram = scale.unsqueeze(1) * (gram - torch.outer(mean, mean)) * scale
        ones = moments.ones(plan.core)
        return cls(without(constant, cross), gram, constant, whitener, ones, scale, mean, plan.rank)

    def message_features(self, directions: Tensor) -> Tensor:
        """U with θ = Uᵀφ: the constant, then the directions given, (core dim, rank)."""
        return torch.cat([self.ones.unsqueeze(1), apply_whitener(self.whitener, directions)], dim=1)


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
        factor = ridge_factor(torch.stack([m.gram for m in stacked]), penalty)
        found = compress(torch.stack([m.cross for m in stacked]) @ factor, stacked[0].rank - 1)
        for i, n in enumerate(nodes):
            system = systems[n]
            # Rounding leaves a trace of the mean in weak directions, where it would be amplified; it is taken out again.
            directions = without(system.constant, found.directions[i])
            strengths = torch.cat([torch.ones(1, dtype=torch.float64), found.strengths[i]])
            result[n] = Stage1(
                system.message_features(directions),
                directions,
                system.instrument_scale.unsqueeze(1) * factor[i],
                found.predicted[i],
                system.instrument_mean,
                strengths,
                significant_rank(found.all_strengths[i], _effective(system.cross, factor[i]), rows, system.rank),
            )
    return result


def significant_rank(strengths: Tensor, dims: tuple[int, int], rows: float, most: int) -> int:
    """Dimensions, the constant included, that the data tell from noise: Bartlett's test of the remaining correlations.

    Args:
        strengths: all canonical correlations, largest first.
        dims: degrees of freedom of core group and instrument.
        rows: sample size.
        most: the message's rank.
    """
    if rows < 2:
        return min(most, 1 + int((strengths > 1e-8).sum()))
    rest = strengths.square().flip(0).cumsum(0).flip(0) * rows
    for k in range(min(most - 1, len(strengths))):
        freedom = max(1, dims[0] - k) * max(1, dims[1] - k)
        chance = torch.special.gammaincc(rest.new_tensor(freedom / 2), rest[k] / 2)  # of χ² this large
        if float(chance) > SIGNIFICANCE:
            return k + 1
    return most


def _effective(cross: Tensor, factor: Tensor) -> tuple[int, int]:
    """Dimensions in which core group and instrument vary at all."""
    inside = int((cross.abs().amax(dim=1) > 0).sum()) - 1
    return max(1, inside), max(1, int((factor.abs().amax(dim=0) > 0).sum()))


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
    """Whitener, diagonal or full, times a matrix."""
    return whitener.unsqueeze(1) * matrix if whitener.ndim == 1 else whitener @ matrix


def without(direction: Tensor, matrix: Tensor) -> Tensor:
    """Columns of a matrix made orthogonal to a direction."""
    return matrix - direction @ (direction.T @ matrix) / (direction.T @ direction)


def equal(items: Mapping[int, T], key: Callable[[T], Hashable]) -> Iterable[list[int]]:
    """Nodes grouped by the key of their item."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for node, item in items.items():
        groups[key(item)].append(node)
    return groups.values()
