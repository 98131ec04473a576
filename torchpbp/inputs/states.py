"""States of discrete variables: whole numbers of any type, read exactly or not at all.

Shared by training data, evidence and the layer, so that a number out of range is never taken for another one.
"""

from __future__ import annotations

import torch
from torch import Tensor

EXACT = 2.0**53
"""Whole floating-point numbers of this size and beyond each stand for several whole numbers."""

WIDENED = {torch.bool: torch.uint8, torch.uint16: torch.int32, torch.uint32: torch.int64}
"""Dtypes that torch knows few operations for, and what holds all their values."""

OUTSIDE = torch.iinfo(torch.int64).max
"""What stands for numbers beyond int64: it is out of range of every variable, as they are."""

UNSIGNED = {torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64}
"""Dtypes without a -1 for missing values; a conversion to int64 that yields one has wrapped around."""


def comparable(column: Tensor) -> Tensor:
    """The same states in a dtype that torch compares.

    Args:
        column: whole numbers or booleans. Numbers beyond int64 become ``OUTSIDE``.
    """
    if column.dtype == torch.uint64:
        signed = column.to(torch.int64)
        return signed.masked_fill(signed < 0, OUTSIDE)
    return column.to(WIDENED.get(column.dtype, column.dtype))


def whole_numbers(column: Tensor) -> tuple[Tensor, Tensor]:
    """States that come as floating-point numbers.

    Args:
        column: (rows,) numbers, NaN where missing.

    Returns:
        (rows,) int64 states, -1 where missing, and (rows,) booleans, true where a number is not whole or too large to be an
        exact whole number; the states of these rows mean nothing.
    """
    filled = torch.where(column.isnan(), -1.0, column.detach().to(torch.float64))
    bad = (filled != filled.round()) | ~(filled.abs() < EXACT)
    return filled.masked_fill(bad, -1.0).to(torch.int64), bad
