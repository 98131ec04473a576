"""Simultaneous reading of many arrays of joint counts, such as covariance matrices of all separators."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import scipy.sparse
import torch
from torch import Tensor

from torchpbp.graph.domains import Scope
from torchpbp.moments.table_layout import TableLayout

Cells = npt.NDArray[np.int64]
"""Numbers of cells; cell 0 is always 0."""
CellsOf = Callable[[Sequence[Scope], Sequence[int]], npt.NDArray[Any]]
"""Function of scopes and of the leading states to read: numbers of the cells of joint tables, or their values for a direct reading."""

KEPT_INDICES = 1 << 20
"""Largest number of indices of a cached reading: 8 MB."""
KEPT_READINGS = 256
"""Largest number of cached readings per layout."""
LARGE_TABLES = 1 << 14
"""Mean number of cells per table above which direct reading is faster."""


class Reading:
    """Arrays whose entries are sums of a layout's cells, computed in two steps: sums, then copies.

    Args:
        layout: layout of the counts.
        make: function of :meth:`numbers` that returns the arrays of cell numbers.
    """

    def __init__(self, layout: TableLayout, make: Callable[[CellsOf], Sequence[npt.NDArray[Any]]]) -> None:
        self._layout = layout
        self._first: dict[tuple[int, ...], dict[Scope, int]] = {}  # sizes -> table -> number of its first cell
        self._sources: list[Cells] = []
        self._targets: list[Cells] = []
        self._size = 1  # cell 0 stays 0
        arrays = make(self.numbers)
        self._shapes = [a.shape for a in arrays]
        none = np.zeros(0, dtype=np.int64)
        source, target = np.concatenate([none, *self._sources]), np.concatenate([none, *self._targets])
        self._sums = scipy.sparse.csr_matrix(
            (np.ones(len(source)), (target, source)), shape=(self._size, layout.cells), dtype=np.float64
        )
        self._copied = np.concatenate([none, *(a.reshape(-1) for a in arrays)])
        self._on_device: dict[torch.device, tuple[Tensor, Tensor, Tensor]] = {}
        self._lengths = [a.size for a in arrays]
        del self._first, self._sources, self._targets

    @property
    def indices(self) -> int:
        """Number of stored indices, a measure of memory."""
        return 2 * self._sums.nnz + len(self._copied)

    def __call__(self, counts: Tensor) -> list[Tensor]:
        """The arrays of (cells of the layout,) counts; counts (cells, replicates) add replicates as second dimension."""
        cells = self._cells(counts) if counts.device.type == "cpu" else self._gathered(counts)
        parts = zip(torch.split(cells, self._lengths), self._shapes, strict=True)
        if counts.ndim == 1:
            return [part.reshape(shape) for part, shape in parts]
        return [part.reshape(*shape, -1).movedim(-1, 1).contiguous() for part, shape in parts]

    def _cells(self, counts: Tensor) -> Tensor:
        """(entries of all arrays,) values on the CPU."""
        return torch.from_numpy((self._sums @ counts.numpy()).take(self._copied, axis=0))

    def _gathered(self, counts: Tensor) -> Tensor:
        """(entries of all arrays,) values on another device, with cached indices."""
        if counts.device not in self._on_device:
            index = (np.repeat(np.arange(self._size), np.diff(self._sums.indptr)), self._sums.indices, self._copied)
            target, source, copied = (torch.as_tensor(x, dtype=torch.int64, device=counts.device) for x in index)
            self._on_device[counts.device] = target, source, copied
        target, source, copied = self._on_device[counts.device]
        sums = counts.new_zeros(self._size, *counts.shape[1:]).index_add_(0, target, counts.index_select(0, source))
        return sums.index_select(0, copied)

    def numbers(self, scopes: Sequence[Scope], sizes: Sequence[int]) -> Cells:
        """(tables, *sizes) numbers of the cells of joint tables, with dimensions in the order of the scopes.

        Args:
            scopes: variables of each table.
            sizes: number of leading states of each variable to read; the same for all tables.
        """
        first = self._first.setdefault(tuple(sizes), {})
        new = [scope for scope in dict.fromkeys(scopes) if scope not in first]
        layout, cells = self._layout, math.prod(sizes)
        alike: dict[tuple[Any, ...], tuple[list[int], list[Scope]]] = {}
        for scope in new:
            offset, steps = layout.steps(scope)
            table_strides = tuple([steps[v][1] for v in scope])
            rest = () if len(steps) == len(scope) else tuple([step for v, step in steps.items() if v not in scope])
            offsets, members = alike.setdefault((table_strides, rest), ([], []))
            offsets.append(offset)
            members.append(scope)
        for (table_strides, rest), (offsets, members) in alike.items():
            source = np.array(offsets, dtype=np.int64)
            for size, step in (*zip(sizes, table_strides, strict=True), *rest):
                source = (source[:, None] + np.arange(size) * step).reshape(-1)
            numbers = np.arange(self._size, self._size + len(members) * cells)
            self._sources.append(source)
            self._targets.append(np.repeat(numbers, math.prod(size for size, _ in rest)))
            first.update((scope, self._size + i * cells) for i, scope in enumerate(members))
            self._size += len(numbers)
        start = np.array([first[scope] for scope in scopes], dtype=np.int64)
        return (start[:, None] + np.arange(cells)).reshape(len(scopes), *sizes)


class DirectReading:
    """A :class:`Reading` of few large tables, which sums and copies cells without numbering them.

    Args:
        layout: layout of the counts.
        make: as for :class:`Reading`.
    """

    def __init__(self, layout: TableLayout, make: Callable[[CellsOf], Sequence[npt.NDArray[Any]]]) -> None:
        self._layout, self._make = layout, make

    def __call__(self, counts: Tensor) -> list[Tensor]:
        """The arrays; counts with replicates or on other devices are read by :class:`Reading`."""
        if counts.ndim > 1 or counts.device.type != "cpu":
            return Reading(self._layout, self._make)(counts)

        def values(scopes: Sequence[Scope], sizes: Sequence[int]) -> npt.NDArray[Any]:
            wanted = tuple(slice(size) for size in sizes)
            return np.stack([self._layout.marginal(counts, scope)[wanted].numpy() for scope in scopes])

        return [torch.from_numpy(array) for array in self._make(values)]


_CACHE: WeakKeyDictionary[TableLayout, dict[Hashable, Reading]] = WeakKeyDictionary()


def reading(
    layout: TableLayout, key: Hashable, make: Callable[[CellsOf], Sequence[npt.NDArray[Any]]]
) -> Reading | DirectReading:
    """A reading, cached by key unless it is very large.

    Args:
        layout: layout of the counts.
        key: identifies a reading of the layout.
        make: as for :class:`Reading`.
    """
    if layout.cells > LARGE_TABLES * len(layout.scopes):
        return DirectReading(layout, make)
    cached = _CACHE.setdefault(layout, {})
    if key in cached:
        return cached[key]
    made = Reading(layout, make)
    if made.indices <= KEPT_INDICES and len(cached) < KEPT_READINGS:
        cached[key] = made
    return made
