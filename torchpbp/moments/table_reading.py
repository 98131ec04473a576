"""Reading many arrays of joint counts at once: covariance matrices of all separators instead of table after table."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import scipy.sparse
import torch
from torch import Tensor

from torchpbp.errors import StructureError
from torchpbp.moments.table_layout import Scope, TableLayout, strides

Cells = npt.NDArray[np.int64]
"""Numbers of cells; 0 stands for a cell that is always 0."""
Number = Callable[..., Cells]
"""Numbers the cells of a joint table, see :meth:`Reading.number`."""

KEPT_INDICES = 1 << 20
"""Size of a reading that is kept for the next fit: 8 MB."""
KEPT_READINGS = 256
"""Readings kept for one layout."""


class Reading:
    """Arrays whose entries are sums of a layout's cells, all read in two steps: sums, then copies.

    Args:
        layout: of the counts to read from.
        make: given a function that numbers the cells of a table (see :meth:`number`), gives the arrays.
    """

    def __init__(self, layout: TableLayout, make: Callable[[Number], Sequence[Cells]]) -> None:
        self._layout = layout
        self._known: dict[tuple[Scope, tuple[int, ...]], Cells] = {}
        self._sources: list[Cells] = []
        self._targets: list[Cells] = []
        self._size = 1  # cell 0 stays 0
        arrays = make(self.number)
        self._shapes = [a.shape for a in arrays]
        none = np.zeros(0, dtype=np.int64)
        source, target = np.concatenate([none, *self._sources]), np.concatenate([none, *self._targets])
        self._sums = scipy.sparse.csr_matrix(
            (np.ones(len(source)), (target, source)), shape=(self._size, layout.cells), dtype=np.float64
        )
        self._copied = np.concatenate([none, *(a.reshape(-1) for a in arrays)])
        self._on_device: dict[torch.device, tuple[Tensor, Tensor, Tensor]] = {}
        self._lengths = [a.size for a in arrays]
        del self._known, self._sources, self._targets

    @property
    def indices(self) -> int:
        """Numbers held, a measure of its memory."""
        return 2 * self._sums.nnz + len(self._copied)

    def __call__(self, counts: Tensor) -> list[Tensor]:
        """The arrays, given (cells of the layout,) counts; (cells, replicates) give arrays with replicates as second dimension."""
        cells = self._cells(counts) if counts.device.type == "cpu" else self._gathered(counts)
        parts = zip(torch.split(cells, self._lengths), self._shapes, strict=True)
        if counts.ndim == 1:
            return [part.reshape(shape) for part, shape in parts]
        return [part.reshape(*shape, -1).movedim(-1, 1).contiguous() for part, shape in parts]

    def _cells(self, counts: Tensor) -> Tensor:
        """(entries of all arrays,) on the CPU."""
        return torch.from_numpy((self._sums @ counts.numpy()).take(self._copied, axis=0))

    def _gathered(self, counts: Tensor) -> Tensor:
        """The same on any device, where the indices are kept."""
        if counts.device not in self._on_device:
            index = (np.repeat(np.arange(self._size), np.diff(self._sums.indptr)), self._sums.indices, self._copied)
            target, source, copied = (torch.as_tensor(x, dtype=torch.int64, device=counts.device) for x in index)
            self._on_device[counts.device] = target, source, copied
        target, source, copied = self._on_device[counts.device]
        sums = counts.new_zeros(self._size, *counts.shape[1:]).index_add_(0, target, counts[source])
        return sums[copied]

    def number(self, variables: Sequence[str], sizes: Sequence[int] | None = None) -> Cells:
        """Numbers of the cells of a joint table, its dimensions in the order asked for.

        Args:
            variables: of the table.
            sizes: states of each that are wanted, the first ones; all by default.
        """
        layout = self._layout
        states = [layout.states[v] for v in variables] if sizes is None else list(sizes)
        key = tuple(variables), tuple(states)
        if key not in self._known:
            best = layout.holder(variables) if variables else 0  # the sum of all cells of any table
            if best is None:
                raise StructureError(f"No table holds the variables {tuple(variables)}.")
            scope = layout.scopes[best]
            stride = dict(zip(scope, strides([layout.states[v] for v in scope]), strict=True))
            rest = [v for v in scope if v not in variables]
            source = np.full((1,), layout.offsets[best], dtype=np.int64)
            for v, size in [*zip(variables, states, strict=True), *((v, layout.states[v]) for v in rest)]:
                source = (source[:, None] + np.arange(size) * stride[v]).reshape(-1)
            cells = np.arange(self._size, self._size + math.prod(states))
            self._sources.append(source)
            self._targets.append(np.repeat(cells, math.prod(layout.states[v] for v in rest)))
            self._size += len(cells)
            self._known[key] = cells.reshape(states)
        return self._known[key]


_KEPT: WeakKeyDictionary[TableLayout, dict[Hashable, Reading]] = WeakKeyDictionary()


def reading(layout: TableLayout, key: Hashable, make: Callable[[Number], Sequence[Cells]]) -> Reading:
    """A reading, made once for each key unless it is very large.

    Args:
        layout: of the counts to read from.
        key: tells readings of one layout apart.
        make: gives its arrays.
    """
    kept = _KEPT.setdefault(layout, {})
    if key in kept:
        return kept[key]
    made = Reading(layout, make)
    if made.indices <= KEPT_INDICES and len(kept) < KEPT_READINGS:
        kept[key] = made
    return made
