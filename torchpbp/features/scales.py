"""Numerical limits of kernels: columns with a range too wide or too narrow for comparisons of their values."""

from __future__ import annotations

import torch

from torchpbp.errors import DataError

SMALLEST = 1e-150
"""Smallest range of a column: squares of smaller differences, and the variance, underflow in float64."""


def most_bandwidths(dtype: torch.dtype) -> float:
    """Largest range in bandwidths for which differences of values are exact to a hundredth of a bandwidth.

    The limit is at least 1e3, since half precision is coarser by choice.
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
    """Check that kernels can distinguish the values of a column.

    Args:
        name: name of the column.
        low, high: smallest and largest value.
        middle: median.
        width: bandwidth.
        dtype: dtype of differences.
        row: row of the value farthest from the median, if known.

    Raises:
        DataError: values so close that squares of their differences are 0, or a value so many bandwidths from the others that
            differences between these lose all digits.
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
