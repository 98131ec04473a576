"""A bounded number of values, evenly spread over a stream of unknown length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from torchpbp.distributed import gather_objects, world_size
from torchpbp.inputs.missing_values import observed


class ThinnedRows:
    """Stores every value at first, then every second, every fourth, …, such that at most ``most`` values are stored.

    The selection is independent of the division of the stream into tables. The first rows alone would not represent ordered
    data (by time, by group). Missing values are skipped.

    Args:
        names: columns to store.
        most: largest number of stored values per column, at least 2.

    Attributes:
        incomplete: columns with missing values.
    """

    def __init__(self, names: Sequence[str], most: int) -> None:
        self._columns = {v: _Column(most) for v in names}
        self._most = most
        self.incomplete: set[str] = set()

    def add(self, table: Mapping[str, Tensor]) -> None:
        """Select values of the next table; missing values are -1 in states and NaN in numbers."""
        for v, column in self._columns.items():
            values, seen = table[v].double(), observed(table[v])
            if not bool(seen.all()):
                self.incomplete.add(v)
                values = values[seen]
            column.add(values)

    def gather(self) -> None:
        """Combine the stored values of all processes."""
        if world_size() == 1:
            return
        device = next(iter(self._columns.values())).stored.device
        for column in self._columns.values():
            column.stored = column.stored.cpu()  # device indices differ between processes
        shares = gather_objects((self._columns, self.incomplete))
        most = max(1, self._most // world_size())
        for v in self._columns:
            theirs = [columns[v] for columns, _ in shares]
            self._columns[v] = _Column(self._most)
            self._columns[v].stored = torch.cat([c.stored[:: max(1, -(-len(c.stored) // most))] for c in theirs]).to(
                device
            )
            self._columns[v].low, self._columns[v].high = min(c.low for c in theirs), max(c.high for c in theirs)
        self.incomplete = set().union(*(columns for _, columns in shares))

    def values(self, name: str) -> Tensor:
        """(n,) stored values of a column, as float64."""
        return self._columns[name].stored

    def extent(self, name: str) -> tuple[float, float]:
        """Smallest and largest value of a column, over all rows."""
        return self._columns[name].low, self._columns[name].high


class _Column:
    """A single thinned column."""

    def __init__(self, most: int) -> None:
        self.stored = torch.empty(0, dtype=torch.float64, device="cpu")
        self.low, self.high = float("inf"), float("-inf")
        self._most, self._stride, self._count = most, 1, 0

    def add(self, values: Tensor) -> None:
        if len(values) == 0:
            return
        self.stored = torch.cat([self.stored.to(values.device), values[-self._count % self._stride :: self._stride]])
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))
        self._count += len(values)
        while (self._count - 1) // self._stride + 1 > self._most:
            self._stride *= 2
            self.stored = self.stored[::2]
