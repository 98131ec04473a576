"""Numerical ranks, and spans of columns that grow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

TOLERANCE = 1e-12
"""Singular values below this part of the largest count as zero."""


def numerical_rank(matrix: Tensor, tolerance: float = TOLERANCE) -> int:
    """Number of singular values above ``tolerance`` times the largest."""
    values = torch.linalg.svdvals(matrix)
    return int((values > tolerance * values.amax()).sum()) if values.numel() and float(values.amax()) > 0 else 0


@dataclass(frozen=True)
class Span:
    """What the columns of a matrix span, kept as its orthogonal complement: what further columns add is a small matrix.

    Args:
        complement: (rows, codimension) orthonormal basis.
        scale: largest singular value, by which others count as zero.
    """

    complement: Tensor
    scale: float

    @classmethod
    def of(cls, matrix: Tensor, scale: float = 0.0) -> Span:
        """The span of a (rows, columns) matrix.

        Args:
            matrix: the columns.
            scale: as above, if it is larger than that of the columns.
        """
        if matrix.shape[1] > matrix.shape[0]:  # the same singular values and left vectors
            matrix = torch.linalg.qr(matrix.T).R.T
        basis, values, _ = torch.linalg.svd(matrix)
        scale = max(scale, float(values.amax()) if values.numel() else 0.0)
        return cls(basis[:, int((values > TOLERANCE * scale).sum()) :], scale)

    @property
    def rank(self) -> int:
        """Its dimension."""
        return self.complement.shape[0] - self.complement.shape[1]

    def scaled_for(self, blocks: Sequence[Tensor]) -> Span:
        """The same span, with the scale of blocks of columns that it is to be compared with."""
        if not blocks:
            return self
        squares = torch.linalg.eigvalsh(sum((b @ b.T for b in blocks), blocks[0].new_zeros(())))
        return Span(self.complement, math.hypot(self.scale, math.sqrt(max(float(squares[-1]), 0.0))))

    def gain(self, columns: Tensor) -> int:
        """How many dimensions further columns would add."""
        return int((torch.linalg.svdvals(self.complement.T @ columns) > TOLERANCE * self.scale).sum())

    def with_columns(self, columns: Tensor) -> Span:
        """The span of these and further columns."""
        basis, values, _ = torch.linalg.svd(self.complement.T @ columns)
        return Span(self.complement @ basis[:, int((values > TOLERANCE * self.scale).sum()) :], self.scale)
