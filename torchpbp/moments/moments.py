"""Moments of features of groups of variables: what two-stage regression needs to know of the data."""

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
        whitener: (separators, core dim) or (separators, core dim, core dim), brings φ to unit second moment.
        scale: (separators, instrument dim) brings η to a common scale, on which ridge penalties are meant.
        ones: (separators, core dim) vectors c with c·φ = 1.
        rows: (separators,) rows behind the cross moments.
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
        rows: number of rows behind the moments.
    """

    dims: Mapping[str, int]
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
        """(dim,) factors that bring an instrument to a common scale, on which ridge penalties are meant."""

    @abstractmethod
    def whitener(self, group: Group) -> Tensor:
        """Factors (dim,) or a matrix (dim, dim) that bring features to unit second moment."""

    def near_dim(self, group: Group) -> int:
        """Dimensions of a group's features as part of an instrument."""
        return self.dim(group)

    @abstractmethod
    def separators(self, plans: Sequence[SeparatorPlan]) -> SeparatorMoments:
        """Moments of separators with equal dimensions of core groups and of instruments."""

    @abstractmethod
    def below(self, wanted: Sequence[Sequence[Question]]) -> list[tuple[Tensor, Tensor]]:
        """E[y] and Cov[y, η] of y = ⊗_k θ_k, for lists of questions with equal shapes.

        θ_k = features_kᵀ φ_{below_k}, or θ_k = φ_{below_k} where there are no compressions.

        Returns:
            For each list (questions, sizes of θ…) and (questions, sizes of θ…, instrument dim).
        """
