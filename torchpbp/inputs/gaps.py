"""Missing values in training rows: how many there are, and what is done where a column or a row has nothing else."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchpbp.distributed import sum_over_processes
from torchpbp.errors import DataError, DataWarning

EMPTY_SHARE = 0.01
"""Share of rows without any value from which on a warning is given: where much is missing, a few such rows are no surprise."""


def observed(column: Tensor) -> Tensor:
    """Where a column of int64 states (-1: missing) or of values (NaN: missing) has a value, (rows,) booleans."""
    return ~column.isnan() if column.is_floating_point() else column >= 0


@dataclass
class MissingValues:
    """How much is missing in the rows read so far.

    Args:
        rows: number of rows.
        empty: rows without any value.
        counts: missing values of each column.
    """

    rows: int = 0
    empty: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, rows: int, gaps: Mapping[str, Tensor | None]) -> None:
        """Count a table.

        Args:
            rows: its number of rows.
            gaps: name -> (rows,) booleans, true where missing; None for a column without gaps.
        """
        self.rows += rows
        everywhere: Tensor | None = None
        complete = not gaps
        for name, gap in gaps.items():
            self.counts[name] = self.counts.get(name, 0) + (0 if gap is None else int(gap.sum()))
            if gap is None:
                complete = True  # no row of this table can be empty
            elif not complete:
                everywhere = gap if everywhere is None else everywhere & gap
        if not complete and everywhere is not None:
            self.empty += int(everywhere.sum())

    @property
    def any(self) -> bool:
        """Whether some value is missing."""
        return any(self.counts.values())

    @property
    def shares(self) -> dict[str, float]:
        """Share of missing values of each column."""
        return {v: n / max(self.rows, 1) for v, n in self.counts.items()}

    def over_processes(self) -> MissingValues:
        """The count of all processes together."""
        names = list(self.counts)
        total = sum_over_processes(torch.tensor([self.rows, self.empty, *self.counts.values()]))
        rows, empty, *counts = total.tolist()
        return MissingValues(rows, empty, dict(zip(names, counts, strict=True)))

    def check(self, stacklevel: int = 3) -> None:
        """Refuse columns without any value; warn of rows without any, if they are more than a few.

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
    """The rows that show something, of (variables, rows) states with -1 where missing.

    A column must have some value, be it in the rows of another process.
    """
    gaps = codes < 0
    found = MissingValues()
    found.add(codes.shape[1], dict(zip(names, gaps, strict=True)))
    found.over_processes().check(stacklevel)
    return codes[:, ~gaps.all(dim=0)] if found.empty else codes
