"""Distinct rows of a table and their counts, which are sufficient for a likelihood of discrete variables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchpbp.errors import DataError
from torchpbp.inputs.clusters import PartitionedTable, PartitionReader
from torchpbp.inputs.columns import ColumnReader
from torchpbp.inputs.missing_values import MissingValues

FEW_CODES = 8
"""Largest number of joint states per row for which a lookup table is used instead of sorting."""


@dataclass(frozen=True)
class DistinctRows:
    """Distinct rows in lexicographic order, independent of the order and partition of the data.

    Args:
        states: (variables, distinct rows) int32 states, -1 where missing.
        counts: (distinct rows,) int64 numbers of occurrences.
        missing: counts of missing values in all rows.
    """

    states: Tensor
    counts: Tensor
    missing: MissingValues


def distinct_cluster_rows(table: PartitionedTable, reader: ColumnReader) -> tuple[Tensor, Tensor]:
    """Distinct rows of all partitions, computed by the workers and merged in a tree.

    Args:
        table: the rows.
        reader: reader of discrete variables, whose labels and missing values are set as if it had read the rows.

    Returns:
        (variables, distinct rows) int64 states in lexicographic order, -1 where missing, and (distinct rows,) float64 counts.

    Raises:
        DataError: no rows, or rows that cannot be read.
    """
    parts = PartitionReader.of(table, reader.states, reader.labels)
    result = table.map_reduce(_Finder(parts), merge_distinct, list(reader.states), "distinct rows")
    if not result.missing.rows:
        raise DataError("The training data is empty: expected at least one row, got none.")
    reader.labels, reader.missing_values = parts.labels, result.missing
    return result.states.long(), result.counts.double()


@dataclass(frozen=True)
class _Finder:
    """Computes the distinct rows of one partition."""

    reader: PartitionReader

    def __call__(self, partition: Any) -> DistinctRows:
        tables, missing = self.reader.tables(partition)
        result = DistinctRows(
            torch.empty(len(self.reader.states), 0, dtype=torch.int32),
            torch.empty(0, dtype=torch.int64),
            MissingValues(),
        )
        for table in tables:
            states = torch.stack(list(table.values())).int()
            new = DistinctRows(states, torch.ones(states.shape[1], dtype=torch.int64), MissingValues())
            result = merge_distinct([result, new])
        return DistinctRows(result.states, result.counts, missing)


def merge_distinct(parts: Sequence[DistinctRows]) -> DistinctRows:
    """Distinct rows of several sets of rows; the parts are not modified."""
    missing = MissingValues()
    for part in parts:
        missing.merge(part.missing)
    filled = [part for part in parts if len(part.counts)]
    if not filled:
        return DistinctRows(parts[0].states, parts[0].counts, missing)
    states, counts = torch.cat([p.states for p in filled], dim=1), torch.cat([p.counts for p in filled])
    states, counts = counted_rows(list(states.long()), counts)
    return DistinctRows(states.int(), counts, missing)


def counted_rows(columns: Sequence[Tensor], weights: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct rows of a table, in lexicographic order, and their total weights.

    Args:
        columns: (rows,) int64 states each, -1 where missing.
        weights: (rows,) non-negative numbers; distinct rows of total weight 0 are dropped.

    Returns:
        (columns, distinct rows) states and (distinct rows,) weights.
    """
    ends = [torch.aminmax(column) for column in columns]
    lows = [min(int(low), 0) for low, _ in ends]
    widths = [int(high) - low + 1 for low, (_, high) in zip(lows, ends, strict=True)]
    if math.prod(widths) > FEW_CODES * len(weights):
        number, firsts = numbered([column - low for column, low in zip(columns, lows, strict=True)])
        total = weights.new_zeros(len(firsts)).index_add_(0, number, weights)
        occurring = (total > 0).nonzero().flatten()
        return torch.stack([column[firsts[occurring]] for column in columns]), total[occurring]
    code = torch.zeros_like(columns[0])
    for column, low, width in zip(columns, lows, widths, strict=True):
        code.mul_(width).add_(column)
        if low:
            code.sub_(low)
    total = weights.new_zeros(math.prod(widths)).scatter_add_(0, code, weights)
    occurring = total.nonzero().flatten()
    states, rest = [], occurring
    for low, width in zip(reversed(lows), reversed(widths), strict=True):
        states.append(rest.remainder(width) + low)
        rest = rest.div(width, rounding_mode="floor")
    return torch.stack(states[::-1]), total[occurring]


def numbered(columns: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Number the distinct rows of a table in lexicographic order; far faster than ``torch.unique`` along a dimension.

    Args:
        columns: (rows,) non-negative integers each.

    Returns:
        (rows,) number of each row, and (distinct rows,) index of a row with each number.
    """
    code, size = columns[0], int(columns[0].max()) + 1
    for column in columns[1:]:
        width = int(column.max()) + 1
        if size * width >= 1 << 62:  # dense numbers first
            values, code = torch.unique(code, return_inverse=True)
            size = len(values)
        code, size = code * width + column, size * width
    if size <= FEW_CODES * len(code):
        seen = torch.zeros(size, dtype=torch.bool, device=code.device)
        seen[code] = True
        code = (seen.cumsum(0) - 1)[code]
        count = int(seen.sum())
    else:
        values, code = torch.unique(code, return_inverse=True)
        count = len(values)
    rows = torch.arange(len(code), device=code.device)
    return code, torch.zeros(count, dtype=torch.int64, device=code.device).scatter_(0, code, rows)
