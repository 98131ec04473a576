"""Fixed matrices between variables and their product space [NG eq. 30–31].

States of the product space are numbered in row-major order: the last variable varies fastest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torchpbp.errors import StructureError


def from_product(sizes: Sequence[int]) -> list[Tensor]:
    """P(X_j | X_1 … X_D) for each j: a joint state determines each of its members [NG eq. 30].

    Args:
        sizes: number of states of each variable.

    Returns:
        D matrices of shape (∏ sizes, sizes[j]), one 1 in each row.
    """
    _check(sizes)
    result = []
    for j, size in enumerate(sizes):
        before, after = math.prod(sizes[:j]), math.prod(sizes[j + 1 :])
        identity = torch.eye(size, dtype=torch.float64)
        # 1 ⊗ I ⊗ 1: repeat each row for the faster variables, then the whole for the slower ones.
        result.append(identity.repeat_interleave(after, dim=0).repeat(before, 1))
    return result


def to_product(sizes: Sequence[int]) -> list[Tensor]:
    """P(X_1 … X_D | X_j) for each j, uniform over the joint states with X_j [NG eq. 31].

    Args:
        sizes: number of states of each variable.

    Returns:
        D matrices of shape (sizes[j], ∏ sizes), each row with ∏ sizes / sizes[j] equal entries.
    """
    total = math.prod(sizes)
    return [matrix.T * (size / total) for matrix, size in zip(from_product(sizes), sizes, strict=True)]


def log_constant(sizes: Sequence[int]) -> float:
    """Logarithm of the factor by which matrices (31) around one diverter shrink a joint probability: ∏_j sizes[j]/∏ sizes."""
    total = math.prod(sizes)
    return sum(math.log(size / total) for size in sizes)


def _check(sizes: Sequence[int]) -> None:
    if not sizes or any(size < 1 for size in sizes):
        raise StructureError(
            f"Product space: expected one or more numbers of states, each at least 1, got {list(sizes)}."
        )
