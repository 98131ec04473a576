"""Values of continuous variables: numbers, finite and within the declared range, or missing."""

from __future__ import annotations

import torch
from torch import Tensor

from torchpbp.errors import DataError
from torchpbp.graph.latent_graph import Continuous, Domain

ROUNDING = 5e-7
"""How far outside the declared range a value may be, as a share of the range's larger end: single precision can put it there."""


LARGEST = 1e150
"""Values to learn from may not be larger: their squares, of which variances are made, would leave the range of float64."""


def training_values(
    where: str, column: Tensor, domain: Domain, start: int, missing: bool
) -> tuple[Tensor, Tensor | None]:
    """Values of a continuous variable to learn from.

    Args:
        where: begins errors; names the column.
        column: (rows,) numbers, NaN where missing.
        domain: of the variable.
        start: number of the first row, for errors.
        missing: whether missing values are allowed.

    Returns:
        (rows,) float64 values, and (rows,) booleans, true where missing; None if no value is.

    Raises:
        DataError: infinite values, too large ones or values outside the range; missing values, unless allowed.
    """
    values = column.to(torch.float64)
    absent = values.isnan()
    some_absent = bool(absent.any())
    if some_absent and not missing:
        row = int(absent.nonzero()[0])
        raise DataError(
            f"{where}, row {start + row}: expected a finite number, got nan. {int(absent.sum())} of {len(absent)} values are "
            "missing, and this learner needs complete rows: drop rows with missing values, or fill them in."
        )
    check_values(where, values, domain, "a finite number", "Drop such rows.", start)
    large = values.detach().abs() > LARGEST
    if bool(large.any()):
        row = int(large.nonzero()[0])
        raise DataError(
            f"{where}, row {start + row}: value {float(values[row])} is too large: its square, of which variances are made, leaves "
            "the range of float64. Drop or clip such outliers, or scale the column."
        )
    return values, absent if some_absent else None


def check_values(where: str, values: Tensor, domain: Domain, expected: str, remedy: str, start: int = 0) -> None:
    """Check that a continuous variable can take some values.

    Args:
        where: begins errors.
        values: (rows,) values; NaN where missing.
        domain: of the variable.
        expected: in place of an infinite value.
        remedy: ends errors.
        start: number of the first row.

    Raises:
        DataError: infinite values, or values outside the declared range.
    """
    values = values.detach()
    infinite = values.isinf()
    if bool(infinite.any()):
        row = int(infinite.nonzero()[0])
        raise DataError(f"{where}, row {start + row}: expected {expected}, got {float(values[row])}. {remedy}")
    outside = outside_range(values, domain)
    if bool(outside.any()):
        row = int(outside.nonzero()[0])
        assert isinstance(domain, Continuous)
        raise DataError(
            f"{where}, row {start + row}: value {float(values[row])} lies outside the declared range "
            f"[{domain.low}, {domain.high}]. {remedy}"
        )


def outside_range(values: Tensor, domain: Domain) -> Tensor:
    """Which values lie outside the declared range by more than rounding; false where they are NaN."""
    result = torch.zeros_like(values, dtype=torch.bool)
    if not isinstance(domain, Continuous):
        return result
    ends = [abs(end) for end in (domain.low, domain.high) if end is not None]
    slack = ROUNDING * max(ends, default=0.0)
    if domain.low is not None:
        result = result | (values < domain.low - slack)
    if domain.high is not None:
        result = result | (values > domain.high + slack)
    return result
