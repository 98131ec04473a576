"""Values of continuous variables: numbers, finite and within the declared range, or missing."""

from __future__ import annotations

import torch
from torch import Tensor

from torchpbp.errors import DataError
from torchpbp.graph.domains import Continuous, Domain, shape_of
from torchpbp.inputs.leaves import floating
from torchpbp.inputs.missing_values import observed

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
        column: (rows, *shape) numbers, NaN where missing.
        domain: of the variable.
        start: number of the first row, for errors.
        missing: whether missing values are allowed.

    Returns:
        (rows, *shape) values, float64 unless vectors or images are float32, and (rows,) booleans, true where missing; None if
        no value is.

    Raises:
        DataError: infinite values, too large ones or values outside the range; missing values, unless allowed.
    """
    values = floating(column) if shape_of(domain) else column.to(torch.float64)
    absent = ~observed(values)
    some_absent = bool(absent.any())
    expected, remedy = "a finite number", "Drop such rows."
    if shape_of(domain):
        expected, remedy = "finite numbers", "Make the whole value NaN, drop such rows, or scale the column."
    if some_absent and not missing:
        row = int(absent.nonzero()[0])
        raise DataError(
            f"{where}, row {start + row}: expected {expected}, got nan. {int(absent.sum())} of {len(absent)} values are "
            "missing, and this learner needs complete rows: drop rows with missing values, or fill them in."
        )
    check_values(where, values, domain, expected, remedy, start)
    large = values.detach().abs() > LARGEST
    if bool(large.any()):
        place, value = _first(large, values, start)
        raise DataError(
            f"{where}, {place}: value {value} is too large: its square, of which variances are made, leaves "
            "the range of float64. Drop or clip such outliers, or scale the column."
        )
    return values, absent if some_absent else None


def check_values(where: str, values: Tensor, domain: Domain, expected: str, remedy: str, start: int = 0) -> None:
    """Check that a continuous variable can take some values.

    Args:
        where: begins errors.
        values: (rows, *shape) values; NaN where missing.
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
        place, value = _first(infinite, values, start)
        raise DataError(f"{where}, {place}: expected {expected}, got {value}. {remedy}")
    outside = outside_range(values, domain)
    if bool(outside.any()):
        place, value = _first(outside, values, start)
        assert isinstance(domain, Continuous)
        raise DataError(
            f"{where}, {place}: value {value} lies outside the declared range [{domain.low}, {domain.high}]. {remedy}"
        )


def _first(wrong: Tensor, values: Tensor, start: int) -> tuple[str, float]:
    """Where the first wrong value is, in words, and the value."""
    row, *entry = wrong.nonzero()[0].tolist()
    return f"row {start + row}" + (f", entry {tuple(entry)}" if entry else ""), float(values[(row, *entry)])


def outside_range(values: Tensor, domain: Domain) -> Tensor:
    """Which values lie outside the declared range by more than rounding; false where they are NaN."""
    result = torch.zeros_like(values, dtype=torch.bool)
    if not isinstance(domain, Continuous):
        return result
    slack = ROUNDING * max(abs(domain.low or 0.0), abs(domain.high or 0.0))
    if domain.low is not None:
        result = result | (values < domain.low - slack)
    if domain.high is not None:
        result = result | (values > domain.high + slack)
    return result
