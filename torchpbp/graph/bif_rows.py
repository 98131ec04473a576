"""A table of conditional probabilities, given row by row."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Table = npt.NDArray[np.float64]


class TableRows:
    """Probabilities of a variable, given row by row and stored sparsely, since a ``default`` may stand for most rows.

    Args:
        shape: (states of each parent…, states of the variable).
    """

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = tuple(shape)
        self.default: Table | None = None
        self.whole: Table | None = None
        self._seen: set[int] = set()
        self._order = array("q")
        self._values = array("d")

    @property
    def empty(self) -> bool:
        return self.whole is None and not self._seen

    def __contains__(self, place: int) -> bool:
        return self.whole is not None or place in self._seen

    def add(self, place: int, row: Table) -> None:
        self._seen.add(place)
        self._order.append(place)
        self._values.extend(row)

    def table(self) -> Table | None:
        """The whole table; None if rows are missing."""
        if self.whole is not None:
            return self.whole
        states = self.shape[-1]
        count = math.prod(self.shape[:-1])
        if self.default is None and len(self._seen) < count:
            return None
        table = np.empty((count, states))
        if self.default is not None:
            table[:] = self.default
        if self._seen:
            table[np.frombuffer(self._order, dtype=np.int64)] = np.frombuffer(self._values).reshape(-1, states)
        return table.reshape(self.shape)
