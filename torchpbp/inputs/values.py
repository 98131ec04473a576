"""Values of continuous variables: numbers, finite and within the declared range, or missing."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchpbp.errors import DataError
from torchpbp.graph.latent_graph import Continuous, Domain
from torchpbp.inputs.labels import object_numbers, unmasked

ROUNDING = 5e-7
"""How far outside the declared range a value may be, as a share of the range's larger end: single precision can put it there."""


LARGEST = 1e150
"""Values to learn from may not be larger: their squares, of which variances are made, would leave the range of float64."""


def read_values(
    name: str, column: Tensor | np.ndarray, domain: Domain, where: str, start: int, missing: bool
) -> tuple[Tensor, Tensor | None]:
    """Values of a continuous variable in training data.

    Args:
        name: of the column.
        column: (rows,) numbers; NaN, None and pandas NA are missing ones.
        domain: of the variable.
        where: begins error messages.
        start: number of the first row, for error messages.
        missing: let missing values through, as NaN; otherwise they are refused.

    Returns:
        (rows,) float64 values, and (rows,) booleans, true where missing; None if none is.

    Raises:
        DataError: no numbers, infinite, too large or outside the range, missing though not allowed.
    """
    if column.dtype.is_complex if isinstance(column, Tensor) else column.dtype.kind == "c":
        raise DataError(f"{where}column '{name}' is continuous: expected real numbers, got complex ones.")
    if isinstance(column, np.ndarray):
        column = torch.from_numpy(_numbers(name, column, where, start))
    values = column.to(torch.float64)
    gaps = values.isnan()
    if not bool(gaps.any()):
        found = None
    elif missing:
        found = gaps
    else:
        row = int(gaps.nonzero()[0])
        raise DataError(
            f"{where}column '{name}', row {start + row}: expected a finite number, got nan. {int(gaps.sum())} of {len(gaps)} "
            "values are missing, and this learner needs complete rows: drop rows with gaps, or fill them in."
        )
    check_values(f"{where}column '{name}'", values, domain, "a finite number", "Drop such rows.", start)
    large = values.detach().abs() > LARGEST
    if bool(large.any()):
        row = int(large.nonzero()[0])
        raise DataError(
            f"{where}column '{name}', row {start + row}: value {float(values[row])} is too large: its square, of which variances "
            "are made, leaves the range of float64. Drop or clip such outliers, or scale the column."
        )
    return values, found


def check_values(where: str, values: Tensor, domain: Domain, expected: str, remedy: str, start: int = 0) -> None:
    """Refuse values that a continuous variable cannot take.

    Args:
        where: begins error messages.
        values: (rows,) values; NaN where missing.
        domain: of the variable.
        expected: what an infinite value is no case of.
        remedy: ends error messages.
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


def _numbers(name: str, column: np.ndarray, where: str, start: int) -> np.ndarray:
    """float64 copy of an array that may hold None or pandas NA."""
    column = unmasked(column)
    if column.dtype.kind not in "biufOUS":
        raise DataError(
            f"{where}column '{name}' is continuous: expected numbers, got {column.dtype} values. Turn them into numbers first, "
            "dates into days, say."
        )
    if column.dtype.kind in "OUS":
        return object_numbers(f"{where}column '{name}'", column.astype(object), start, remark=" is continuous")
    return np.array(column, dtype=np.float64)
