"""Reading a table at the places of many rows, and adding rows up by place."""

from __future__ import annotations

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
        self.codes, self.size = codes, size
        self.indicator: Tensor | None = None
        if keep and size <= LARGEST_INDICATOR:
            zeros = codes.new_zeros(size, len(codes), dtype=torch.float64)
            self.indicator = zeros.scatter_(0, codes[None], 1.0)

    def __len__(self) -> int:
        return len(self.codes)

    def pick(self, table: Tensor) -> Tensor:
        """(…, rows) columns of (…, size)."""
        if self.indicator is not None:
            return (table.reshape(-1, self.size) @ self.indicator).reshape(*table.shape[:-1], len(self))
        return table.gather(-1, self.codes.expand(*table.shape[:-1], -1))

    def add(self, values: Tensor) -> Tensor:
        """(…, size) sums of (…, rows) over the rows with each place."""
        flat = values.reshape(-1, len(self))
        if self.indicator is not None:
            total = flat @ self.indicator.T
        else:
            total = flat.new_zeros(len(flat), self.size).index_add_(1, self.codes, flat)
        return total.reshape(*values.shape[:-1], self.size)

    def at(self, chosen: Tensor) -> Lookup:
        """The lookup of some of the rows."""
        return Lookup(self.codes[chosen], self.size, keep=False)
