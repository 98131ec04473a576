"""Columns of continuous variables: numbers, finite and within the declared range, or missing."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from torchpbp.errors import DataError
from torchpbp.graph.latent_graph import Continuous, Domain
from torchpbp.inputs.labels import unmasked


def read_values(
    name: str, column: Tensor | np.ndarray, domain: Domain, where: str, start: int, missing: bool
) -> tuple[Tensor, Tensor | None]:
    """Values of a continuous variable.

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
        DataError: no numbers, infinite or outside the range, missing though not allowed.
    """
    if column.dtype.is_complex if isinstance(column, Tensor) else column.dtype.kind == "c":
        raise DataError(f"{where}column '{name}' is continuous: expected real numbers, got complex ones.")
    if isinstance(column, np.ndarray):
        column = torch.from_numpy(_numbers(name, column, where))
    values = column.to(torch.float64)
    gaps = values.isnan()
    infinite = values.isinf()
    if bool(infinite.any()):
        row = int(infinite.nonzero()[0])
        raise DataError(
            f"{where}column '{name}', row {start + row}: expected a finite number, got {float(values[row])}. Drop such rows."
        )
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
    low, high = (domain.low, domain.high) if isinstance(domain, Continuous) else (None, None)
    outside = torch.zeros_like(gaps)
    if low is not None:
        outside |= values < low
    if high is not None:
        outside |= values > high
    if bool(outside.any()):
        row = int(outside.nonzero()[0])
        raise DataError(
            f"{where}column '{name}', row {start + row}: value {float(values[row])} lies outside the declared range "
            f"[{low}, {high}]."
        )
    return values, found


def _numbers(name: str, column: np.ndarray, where: str) -> np.ndarray:
    """float64 copy of an array that may hold None or pandas NA."""
    column = unmasked(column)
    if column.dtype.kind not in "biufOUS":
        raise DataError(
            f"{where}column '{name}' is continuous: expected numbers, got {column.dtype} values. Turn them into numbers first, "
            "dates into days, say."
        )
    missing = pd.isna(column) if column.dtype == object else np.zeros(column.shape, dtype=bool)
    try:
        if column.dtype != object:
            return np.array(column, dtype=np.float64)
        numbers = np.full(column.shape, np.nan)
        numbers[~missing] = column[~missing].astype(np.float64)
    except (TypeError, ValueError):
        raise DataError(
            f"{where}column '{name}' is continuous: expected numbers, got {column[~missing][0]!r}."
        ) from None
    return numbers
