"""Training rows with missing values."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from torch import Tensor

from torchpbp.errors import DataError, DataWarning


def informative(names: Mapping[str, int], codes: Tensor) -> Tensor:
    """The rows that show something, of (variables, rows) states with -1 where missing; a column must have some value."""
    seen = codes >= 0
    for name, column in zip(names, seen, strict=True):
        if not bool(column.any()):
            raise DataError(
                f"Column '{name}': all {len(column)} values are missing. Make '{name}' a latent of the graph, or leave it out."
            )
    empty = int((~seen.any(dim=0)).sum())
    if empty:
        warnings.warn(
            f"{empty} of {codes.shape[1]} rows have no value at all. They say nothing about the model and are not counted.",
            DataWarning,
            stacklevel=4,
        )
        codes = codes[:, seen.any(dim=0)]
    return codes
