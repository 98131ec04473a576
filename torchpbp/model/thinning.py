"""A bounded number of rows from a stream of unknown length, spread evenly over all of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from torchpbp.distributed import gather_objects, world_size


class ThinnedRows:
    """Keeps every row at first, then every second, every fourth, …, so that never more than ``most`` are held.

    Which rows are kept does not depend on how the stream is cut into tables. Data is often ordered (by time, by group):
    its first rows would not do.

    Args:
        names: columns to keep.
        most: largest number of rows held, at least 2.
    """

    def __init__(self, names: Sequence[str], most: int) -> None:
        self._kept = {v: torch.empty(0, dtype=torch.float64) for v in names}
        self._range: dict[str, tuple[float, float]] = {}
        self._most, self._stride, self._count = most, 1, 0

    def add(self, table: Mapping[str, Tensor]) -> None:
        """Take part of the rows of the next table."""
        rows = len(next(iter(table.values())))
        if rows == 0:
            return
        start = -self._count % self._stride
        for v, kept in self._kept.items():
            self._kept[v] = torch.cat([kept, table[v][start :: self._stride]])
            low, high = float(table[v].min()), float(table[v].max())
            known = self._range.get(v, (low, high))
            self._range[v] = min(known[0], low), max(known[1], high)
        self._count += rows
        while (self._count - 1) // self._stride + 1 > self._most:
            self._stride *= 2
            self._kept = {v: x[::2] for v, x in self._kept.items()}

    def gather(self) -> None:
        """Put the rows kept by all processes together."""
        if world_size() == 1:
            return
        shares = gather_objects((self._kept, self._range))
        most = max(1, self._most // world_size())
        thinned = [{v: x[:: max(1, -(-len(x) // most))] for v, x in kept.items()} for kept, _ in shares]
        self._kept = {v: torch.cat([kept[v] for kept in thinned]) for v in self._kept}
        ranges = [r for _, r in shares if r]
        self._range = {v: (min(r[v][0] for r in ranges), max(r[v][1] for r in ranges)) for v in ranges[0]}

    def values(self, name: str) -> Tensor:
        """(kept,) values of a column."""
        return self._kept[name]

    def extent(self, name: str) -> tuple[float, float]:
        """Smallest and largest value of a column, over all rows."""
        return self._range[name]
