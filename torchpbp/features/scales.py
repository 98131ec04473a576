"""Numerical limits of kernels: columns whose range is too wide, or too narrow, to compare their values."""

from __future__ import annotations

import torch

from torchpbp.errors import DataError

SMALLEST = 1e-150
"""The squares of smaller differences underflow in float64, and with them the variance."""


def most_bandwidths(dtype: torch.dtype) -> float:
    """How many bandwidths values may be apart for all their differences to be exact to a hundredth of a bandwidth.

    Half precision is coarser by choice and gets 1e3.
    """
    return max(0.02 / torch.finfo(dtype).eps, 1e3)


def check_span(
    name: str,
    low: float,
    high: float,
    middle: float,
    width: float,
    dtype: torch.dtype,
    row: int | None = None,
) -> None:
    """Check that kernels can tell the values of a column apart.

    Args:
        name: of the column.
        low, high: its smallest and largest value.
        middle: its median.
        width: bandwidth.
        dtype: in which differences are taken.
        row: of the value farthest from the median, if known.

    Raises:
        DataError: values so near to each other that the squares of their differences are 0, or one so many bandwidths from the
            others that its distance leaves no digits for theirs.
    """
    if 0 < high - low < SMALLEST:
        raise DataError(
            f"Column '{name}': all values lie within {high - low} of each other, and the squares of such differences underflow in "
            "float64. Scale the column."
        )
    far = low if middle - low > high - middle else high
    apart, most = abs(far - middle) / width, most_bandwidths(dtype)
    if apart > most:
        place = "" if row is None else f", row {row}"
        remedy = ", or dtype=torch.float64" if most < apart <= most_bandwidths(torch.float64) else ""
        raise DataError(
            f"Column '{name}'{place}: value {far} lies {apart:.3g} bandwidths of {width:.3g} from the median {middle:.6g}. Kernels "
            f"compare values by their differences in bandwidths, and beyond {most:.2g} of them "
            f"{str(dtype).removeprefix('torch.')} has no digits left for the other rows. Drop or clip such outliers, transform the "
            f"column (by a logarithm, say), or give a larger bandwidth{remedy}."
        )
