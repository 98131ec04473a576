"""Reading a table at the places of many rows, and adding rows up by place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LARGEST_INDICATOR = 24
"""Places up to which a product with a matrix of indicators is quicker than reading them one by one."""


class Lookup:
    """Places of rows among the columns of a table.

    Args:
        codes: (rows,) place of each row.
        size: number of places.
        keep: hold a matrix of indicators where that is quicker; worth it for a lookup that is used often.
    """

    def __init__(self, codes: Tensor, size: int, keep: bool = True) -> None:
        self.codes, self.size, self.rows = codes, size, codes.shape[0]
        self.indicator: Tensor | None = None
        if keep and size <= LARGEST_INDICATOR:
            zeros = codes.new_zeros(size, self.rows, dtype=torch.float64)
            self.indicator = zeros.scatter_(0, codes[None], 1.0)

    def pick(self, table: Tensor) -> Tensor:
        """(n, rows) columns of (n, size)."""
        if self.indicator is not None:
            return table @ self.indicator
        return table.gather(1, self.codes.expand(table.shape[0], -1))

    def add(self, values: Tensor) -> Tensor:
        """(n, size) sums of (n, rows) over the rows with each place."""
        if self.indicator is not None:
            return values @ self.indicator.T
        return values.new_zeros(values.shape[0], self.size).index_add_(1, self.codes, values)


class Tally:
    """Adds values up by the places of several lookups of the same rows, each in columns of its own.

    Args:
        lookups: of the rows; None has one place, which all rows share.
        rows: their number.

    Attributes:
        columns: of all lookups.
    """

    def __init__(self, lookups: Sequence[Lookup | None], rows: int) -> None:
        self.lookups, self.rows = lookups, rows
        self.sizes = [1 if lookup is None else lookup.size for lookup in lookups]
        self.columns = sum(self.sizes)
        self.indicators: Tensor | None = None
        read = [lookup for lookup in lookups if lookup is not None]
        if len(lookups) > 1 and read and all(lookup.indicator is not None for lookup in read):
            indicators = read[0].codes.new_ones(self.columns, rows, dtype=torch.float64)
            for lookup, part in zip(lookups, torch.split(indicators, self.sizes), strict=True):
                if lookup is not None and lookup.indicator is not None:
                    lookup.indicator = part.copy_(lookup.indicator)  # held once
            self.indicators = indicators

    def add(self, values: Tensor) -> Tensor:
        """(n, columns) sums of (n, rows)."""
        if self.indicators is not None:
            return values @ self.indicators.T
        parts = [values.sum(dim=1, keepdim=True) if x is None else x.add(values) for x in self.lookups]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def spread(self, values: Tensor, result: Tensor) -> None:
        """Put (n, rows) values at the places of their rows, and 0 elsewhere, into an (n · columns, rows) result."""
        whole = result.view(values.shape[0], self.columns, self.rows)
        values = values[:, None]
        if self.indicators is not None:
            torch.mul(values, self.indicators, out=whole)
            return
        for lookup, part in zip(self.lookups, torch.split(whole, self.sizes, dim=1), strict=True):
            if lookup is None:
                part.copy_(values)
            elif lookup.indicator is not None:
                torch.mul(values, lookup.indicator, out=part)
            else:
                part.zero_().scatter_(1, lookup.codes.expand(values.shape[0], 1, -1), values)
