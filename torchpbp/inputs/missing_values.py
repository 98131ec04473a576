"""Missing values in training rows: counts per column, and checks for empty columns and rows."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchpbp.distributed import sum_over_processes
from torchpbp.errors import DataError, DataWarning

EMPTY_SHARE = 0.01
"""Share of empty rows above which a warning is issued: data with many missing values has a few such rows."""


def observed(column: Tensor) -> Tensor:
    """(rows,) booleans, true where a column has a value.

    Args:
        column: (rows,) states as int64, -1 where missing, or (rows, *shape) values; NaN, in all entries of a vector or image,
            where missing.
    """
    if not column.is_floating_point():
        return column >= 0
    return ~column.isnan() if column.ndim == 1 else ~column.isnan().flatten(1).all(dim=1)


@dataclass
class MissingValues:
    """Counts of missing values in the rows read so far.

    Args:
        rows: number of rows.
        empty: number of rows without any value.
        counts: number of missing values of each column.
    """

    rows: int = 0
    empty: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, rows: int, absent: Mapping[str, Tensor | None]) -> None:
        """Count a table.

        Args:
            rows: number of rows of the table.
            absent: name -> (rows,) booleans, true where missing; None for a complete column.
        """
        self.rows += rows
        for name, column in absent.items():
            self.counts[name] = self.counts.get(name, 0) + (0 if column is None else int(column.sum()))
        columns = [column for column in absent.values() if column is not None]
        if columns and len(columns) == len(absent):  # a complete column leaves no row empty
            self.empty += int(torch.stack(columns).all(dim=0).sum())

    def merge(self, other: MissingValues) -> None:
        """Add the counts of other rows."""
        self.rows, self.empty = self.rows + other.rows, self.empty + other.empty
        names = dict.fromkeys((*self.counts, *other.counts))
        self.counts = {v: self.counts.get(v, 0) + other.counts.get(v, 0) for v in names}

    @property
    def any(self) -> bool:
        """Whether some value is missing."""
        return any(self.counts.values())

    @property
    def shares(self) -> dict[str, float]:
        """Share of missing values of each column."""
        return {v: n / max(self.rows, 1) for v, n in self.counts.items()}

    def over_processes(self) -> MissingValues:
        """The summed counts of all processes."""
        names = list(self.counts)
        total = sum_over_processes(torch.tensor([self.rows, self.empty, *self.counts.values()], device="cpu"))
        rows, empty, *counts = total.tolist()
        return MissingValues(rows, empty, dict(zip(names, counts, strict=True)))

    def check(self, stacklevel: int = 3) -> None:
        """Check that each column has a value; warn if more than a few rows are empty.

        Raises:
            DataError: a column in which all values are missing.
        """
        for name, count in self.counts.items():
            if self.rows and count == self.rows:
                raise DataError(
                    f"Column '{name}': all {count} values are missing. Make '{name}' a latent of the graph, or leave it out."
                )
        if self.empty > EMPTY_SHARE * self.rows:
            warnings.warn(
                f"{self.empty} of {self.rows} rows have no value at all. They say nothing about the model.",
                DataWarning,
                stacklevel=stacklevel,
            )

    def __str__(self) -> str:
        most = sorted((v for v, n in self.counts.items() if n), key=lambda v: -self.counts[v])
        if not most:
            return f"none in {self.rows:,} rows"
        total = sum(self.counts.values()) / (max(self.rows, 1) * len(self.counts))
        named = ", ".join(f"{v} {self.shares[v]:.1%}" for v in most[:8]) + (", …" if len(most) > 8 else "")
        return f"{total:.1%} of the values in {self.rows:,} rows ({named})"


def informative(names: Iterable[str], codes: Tensor, stacklevel: int = 4) -> Tensor:
    """The non-empty rows of (variables, rows) states, which are -1 where missing.

    Raises:
        DataError: a column without any value in the rows of all processes.
    """
    absent = codes < 0
    missing = MissingValues()
    missing.add(codes.shape[1], dict(zip(names, absent, strict=True)))
    missing.over_processes().check(stacklevel)
    return codes[:, ~absent.all(dim=0)] if missing.empty else codes
