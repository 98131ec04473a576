"""Moments of features of groups of variables: the sufficient statistics of two-stage regression."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from torchpbp.planning.plan import Group, SeparatorPlan

Question = tuple[Sequence[Group], Sequence[Tensor] | None, Sequence[Group]]
"""Groups below, their compressions, and groups of the instrument η: a third moment."""


@dataclass(frozen=True)
class SeparatorMoments:
    """First and second moments of separators with equal shapes, stacked: of core features φ and instruments η.

    Args:
        core_mean: (separators, core dim) E[φ].
        near_mean: (separators, instrument dim) E[η].
        cross: (separators, core dim, instrument dim) Cov[φ, η].
        gram: (separators, instrument dim, instrument dim) Cov[η].
        whitener: (separators, core dim) or (separators, core dim, core dim) matrices that give φ unit second moment.
        scale: (separators, instrument dim) factors that bring η to the scale of ridge penalties.
        ones: (separators, core dim) vectors c with c·φ = 1.
        rows: (separators,) numbers of rows in the cross moments.
    """

    core_mean: Tensor
    near_mean: Tensor
    cross: Tensor
    gram: Tensor
    whitener: Tensor
    scale: Tensor
    ones: Tensor
    rows: Tensor


class Moments(ABC):
    """First, second and third moments of group features φ_g, the outer products of their variables' features.

    Attributes:
        dims: feature dimensions of each variable.
        near_dims: feature dimensions of each variable in instruments.
        rows: number of rows in the moments.
    """

    dims: Mapping[str, int]
    near_dims: Mapping[str, int]
    rows: float

    def dim(self, group: Group) -> int:
        """Dimensions of a group's features."""
        return math.prod(self.dims[v] for v in group)

    @abstractmethod
    def ones(self, group: Group) -> Tensor:
        """(dim,) vector c with c·φ = 1."""

    @abstractmethod
    def mean(self, group: Group) -> Tensor:
        """E[φ_g]."""

    @abstractmethod
    def instrument_scale(self, group: Group) -> Tensor:
        """(dim,) factors that bring an instrument to the scale of ridge penalties."""

    @abstractmethod
    def whitener(self, group: Group) -> Tensor:
        """Factors (dim,) or a matrix (dim, dim) that give features unit second moment."""

    @abstractmethod
    def separators(self, plans: Sequence[SeparatorPlan]) -> SeparatorMoments:
        """Moments of separators with equal dimensions of core groups and of instruments."""

    @abstractmethod
    def below(self, wanted: Sequence[Sequence[Question]]) -> list[tuple[Tensor, Tensor]]:
        """E[y] and Cov[y, η] of y = ⊗_k θ_k, for lists of questions with equal shapes.

        θ_k = features_kᵀ φ_{below_k}, or θ_k = φ_{below_k} without compressions.

        Returns:
            For each list a (questions, sizes of θ…) and a (questions, sizes of θ…, instrument dim) tensor.
        """
