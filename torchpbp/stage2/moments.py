"""Moments of features of groups of variables: what two-stage regression needs to know of the data."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from torch import Tensor

Group = tuple[str, ...]
Question = tuple[Sequence[Group], Sequence[Tensor] | None, Sequence[Group]]
"""Groups below, their compressions, and groups of the instrument η: a third moment."""


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
    def cross(self, a: Group, b: Group) -> Tensor:
        """E[φ_a φ_bᵀ]; the groups may share variables."""

    @abstractmethod
    def instrument_scale(self, group: Group) -> Tensor:
        """(dim,) factors that bring an instrument to a common scale, on which ridge penalties are meant."""

    @abstractmethod
    def whitener(self, group: Group) -> Tensor:
        """Factors (dim,) or a matrix (dim, dim) that bring features to unit second moment."""

    @abstractmethod
    def responses(self, wanted: Sequence[Question]) -> list[Tensor]:
        """E[(⊗_k θ_k) ηᵀ] with θ_k = features_kᵀ φ_{below_k}, or θ_k = φ_{below_k} if features is None.

        Returns:
            For each question (sizes of θ…, dims of the instrument's groups, joined).
        """
