"""Numerical ranks, and incremental spans of columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

TOLERANCE = 1e-12
"""Singular values below this share of the largest count as zero."""


def numerical_rank(matrix: Tensor, tolerance: float = TOLERANCE) -> int:
    """Number of singular values above ``tolerance`` times the largest."""
    values = torch.linalg.svdvals(matrix)
    return int((values > tolerance * values.amax()).sum()) if values.numel() and float(values.amax()) > 0 else 0


@dataclass(frozen=True)
class Span:
    """The column span of a matrix, stored as a basis of its orthogonal complement.

    Args:
        complement: (rows, codimension) orthonormal basis.
        scale: largest singular value, to which the tolerance is relative.
    """

    complement: Tensor
    scale: float

    @classmethod
    def of(cls, matrix: Tensor, scale: float = 0.0) -> Span:
        """The span of a (rows, columns) matrix.

        Args:
            matrix: the columns.
            scale: lower bound of the span's scale.
        """
        if matrix.shape[1] > matrix.shape[0]:  # the same singular values and left vectors
            matrix = torch.linalg.qr(matrix.T).R.T
        basis, values, _ = torch.linalg.svd(matrix)
        scale = max(scale, float(values.amax()) if values.numel() else 0.0)
        return cls(basis[:, int((values > TOLERANCE * scale).sum()) :], scale)

    @property
    def rank(self) -> int:
        """Dimension of the span."""
        return self.complement.shape[0] - self.complement.shape[1]

    def scaled_for(self, blocks: Sequence[Tensor]) -> Span:
        """The same span, with a scale that includes blocks of further columns."""
        if not blocks:
            return self
        squares = torch.linalg.eigvalsh(sum((b @ b.T for b in blocks), blocks[0].new_zeros(())))
        return Span(self.complement, math.hypot(self.scale, math.sqrt(max(float(squares[-1]), 0.0))))

    def gain(self, columns: Tensor) -> int:
        """Number of dimensions that further columns would add."""
        return int((torch.linalg.svdvals(self.complement.T @ columns) > TOLERANCE * self.scale).sum())

    def with_columns(self, columns: Tensor) -> Span:
        """The span extended by further columns."""
        basis, values, _ = torch.linalg.svd(self.complement.T @ columns)
        return Span(self.complement @ basis[:, int((values > TOLERANCE * self.scale).sum()) :], self.scale)
