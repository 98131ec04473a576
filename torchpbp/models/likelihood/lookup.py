"""Reading of table columns by the rows' places, and sums of rows by place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LARGEST_INDICATOR = 24
"""Largest number of places at which a product with a matrix of indicators is faster than indexing."""


class Lookup:
    """Places of rows among the columns of a table.

    Args:
        codes: (rows,) place of each row.
        size: number of places.
        keep: store a matrix of indicators if that is faster; pays off for repeated use.
    """

    def __init__(self, codes: Tensor, size: int, keep: bool = True) -> None:
        self.codes, self.size, self.rows = codes, size, codes.shape[0]
        self.indicator: Tensor | None = None
        if keep and size <= LARGEST_INDICATOR:
            zeros = codes.new_zeros(size, self.rows, dtype=torch.float64)
            self.indicator = zeros.scatter_(0, codes[None], 1.0)

    def pick(self, table: Tensor) -> Tensor:
        """(n, size) -> (n, rows): the column of each row's place."""
        if self.indicator is not None:
            return table @ self.indicator
        return table.gather(1, self.codes.expand(table.shape[0], -1))

    def add(self, values: Tensor) -> Tensor:
        """(n, rows) -> (n, size): sums over the rows of each place."""
        if self.indicator is not None:
            return values @ self.indicator.T
        return values.new_zeros(values.shape[0], self.size).index_add_(1, self.codes, values)


class Tally:
    """Sums values by the places of several lookups of the same rows, in separate columns.

    Args:
        lookups: of the rows; None: a single place for all rows.
        rows: number of rows.

    Attributes:
        columns: number of columns of all lookups.
    """

    def __init__(self, lookups: Sequence[Lookup | None], rows: int) -> None:
        self.lookups, self.rows = lookups, rows
        self.sizes = [1 if lookup is None else lookup.size for lookup in lookups]
        self.columns = sum(self.sizes)
        self.indicators: Tensor | None = None
        indexed = [lookup for lookup in lookups if lookup is not None]
        if len(lookups) > 1 and indexed and all(lookup.indicator is not None for lookup in indexed):
            indicators = indexed[0].codes.new_ones(self.columns, rows, dtype=torch.float64)
            for lookup, part in zip(lookups, torch.split(indicators, self.sizes), strict=True):
                if lookup is not None and lookup.indicator is not None:
                    lookup.indicator = part.copy_(lookup.indicator)  # a view, so that it is stored once
            self.indicators = indicators

    def add(self, values: Tensor) -> Tensor:
        """(n, rows) -> (n, columns): sums over the rows of each place of each lookup."""
        if self.indicators is not None:
            return values @ self.indicators.T
        parts = [values.sum(dim=1, keepdim=True) if x is None else x.add(values) for x in self.lookups]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def spread(self, values: Tensor, result: Tensor) -> None:
        """Write (n, rows) values to the places of their rows in an (n · columns, rows) result, and 0 elsewhere."""
        cells = result.view(values.shape[0], self.columns, self.rows)
        values = values[:, None]
        if self.indicators is not None:
            torch.mul(values, self.indicators, out=cells)
            return
        for lookup, part in zip(self.lookups, torch.split(cells, self.sizes, dim=1), strict=True):
            if lookup is None:
                part.copy_(values)
            elif lookup.indicator is not None:
                torch.mul(values, lookup.indicator, out=part)
            else:
                part.zero_().scatter_(1, lookup.codes.expand(values.shape[0], 1, -1), values)
