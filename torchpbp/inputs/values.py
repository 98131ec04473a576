"""Values of continuous variables: finite numbers within the declared range, or missing."""

from __future__ import annotations

import torch
from torch import Tensor

from torchpbp.errors import DataError
from torchpbp.graph.domains import Continuous, Domain, shape_of
from torchpbp.inputs.leaves import floating
from torchpbp.inputs.missing_values import observed

ROUNDING = 5e-7
"""Tolerance for values outside the declared range, as a share of its larger end: single precision may round beyond the end."""


LARGEST = 1e150
"""Largest training value: squares of larger values, summed in variances, overflow float64."""


def training_values(
    where: str, column: Tensor, domain: Domain, start: int, missing: bool
) -> tuple[Tensor, Tensor | None]:
    """Checked training values of a continuous variable.

    Args:
        where: begins errors; names the column.
        column: (rows, *shape) numbers, NaN where missing.
        domain: domain of the variable.
        start: number of the first row, for errors.
        missing: whether missing values are allowed.

    Returns:
        (rows, *shape) values, float64 (or float32 for vectors and images), and (rows,) booleans, true where missing; None if
        none is missing.

    Raises:
        DataError: values that are infinite, too large or outside the range; missing values, unless allowed.
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
    """Check that values lie in the range of a continuous variable.

    Args:
        where: begins errors.
        values: (rows, *shape) values; NaN where missing.
        domain: domain of the variable.
        expected: describes valid values, for the error about infinite ones.
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
    """Description of the position of the first wrong value, and the value."""
    row, *entry = wrong.nonzero()[0].tolist()
    return f"row {start + row}" + (f", entry {tuple(entry)}" if entry else ""), float(values[(row, *entry)])


def outside_range(values: Tensor, domain: Domain) -> Tensor:
    """Mask of values outside the declared range by more than rounding; false for NaN."""
    result = torch.zeros_like(values, dtype=torch.bool)
    if not isinstance(domain, Continuous):
        return result
    slack = ROUNDING * max(abs(domain.low or 0.0), abs(domain.high or 0.0))
    if domain.low is not None:
        result = result | (values < domain.low - slack)
    if domain.high is not None:
        result = result | (values > domain.high + slack)
    return result
