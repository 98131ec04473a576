"""Training rows for learners of tables: each distinct row once, with its weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchpbp.distributed import gather_objects
from torchpbp.errors import DataError
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.inputs.arrays import as_tensor, require_device
from torchpbp.inputs.clusters import partitioned
from torchpbp.inputs.columns import ColumnReader, DataLike
from torchpbp.inputs.missing_values import MissingValues
from torchpbp.lazy import is_frame, is_series
from torchpbp.learning.fitting import check_labels
from torchpbp.moments.distinct_rows import counted_rows, distinct_cluster_rows


@dataclass(frozen=True)
class WeightedRows:
    """The distinct rows of a data set with their weights.

    Args:
        table: name -> (rows,) states; -1 where missing.
        weights: (rows,) weights of the rows.
        labels: variable -> labels of its states, for variables given by label.
        missing: share of missing values of each column.
    """

    table: dict[str, Tensor]
    weights: Tensor
    labels: Mapping[str, tuple[Any, ...]]
    missing: Mapping[str, float]


def read_rows(
    graph: LatentGraph,
    data: DataLike,
    weights: Any = None,
    who: str = "EM",
    distinct: bool = True,
    device: torch.device | None = None,
) -> WeightedRows:
    """Read a table, in parts, without rows of missing values only.

    Args:
        graph: discrete.
        data: as for :meth:`torchpbp.PBP.fit`; with several processes, this process's share.
        weights: (rows,) non-negative numbers; 1 by default. A Series is aligned by index with a DataFrame, or with Series of
            the same index.
        who: prefix of errors.
        distinct: merge equal rows, so that memory is bounded by the number of distinct rows.
        device: of the result; None: the device of the columns.

    Raises:
        DataError: a column without any value; weights that are negative, not finite, missing, not one per row, or of
            another index than the data; or a process without a row with a value.
        DeviceError: mini-batches or weights on different devices.
    """
    states = {v: graph.num_states(v) for v in graph.observed}
    row_weights = None if weights is None else checked_weights(aligned_weights(weights, data))
    reader = ColumnReader(states, graph.labels, missing=True, device=None)
    if (cluster := partitioned(data)) is not None:
        if row_weights is not None or not distinct:
            raise DataError(
                f"{who}: a table on a cluster is reduced to its distinct rows there, without weights or mini-batches of rows. Use "
                "EM or MaximumLikelihood without weights, or rows in this process."
            )
        codes, total = (x.to(device) for x in distinct_cluster_rows(cluster, reader))
        reader.missing_values.check(stacklevel=4)
        observed = (codes >= 0).any(dim=0)
        table = dict(zip(states, codes[:, observed], strict=True))
        return WeightedRows(table, total[observed], reader.labels, reader.missing_values.shares)
    parts: list[tuple[Tensor, Tensor]] = []
    start = 0
    pending = 0
    for columns in reader.tables(data):
        first = next(iter(columns.values()))
        count = len(first)
        if parts:
            require_device(f"{who}: a mini-batch", first, parts[0][0].device, "the mini-batches before")
        if row_weights is None:
            share = first.new_ones(count, dtype=torch.float64)
        else:
            if isinstance(weights, Tensor):
                require_device("weights", weights, first.device, "the rows")
            share = row_weights[start : start + count].to(first.device)
        start += count
        if row_weights is not None and start > len(row_weights):
            raise DataError(f"weights: expected one per row, got {len(row_weights)} for at least {start} rows.")
        part = counted_rows(list(columns.values()), share) if distinct else (torch.stack(list(columns.values())), share)
        used = (part[0] >= 0).any(dim=0) & (part[1] > 0)
        parts.append(part if bool(used.all()) else (part[0][:, used], part[1][used]))
        pending += parts[-1][0].shape[1]
        if distinct and len(parts) > 1 and pending > 2 * parts[0][0].shape[1]:
            parts = [_joined(parts, distinct)]
            pending = parts[0][0].shape[1]
    if row_weights is not None and start != len(row_weights):
        raise DataError(f"weights: expected one per row, got {len(row_weights)} for {start} rows.")
    missing: MissingValues = reader.missing_values.over_processes()
    missing.check(stacklevel=4)
    codes, total = (x.to(device) for x in _joined(parts, distinct))
    check_labels(reader.labels)
    empty = [rank for rank, rows in enumerate(gather_objects(codes.shape[1])) if not rows]
    if empty:  # raised in all processes, none of which may wait for the others
        where = f"processes {empty} hold" if len(gather_objects(0)) > 1 else "there is"
        raise DataError(f"{who}: {where} no row with a value and a positive weight. Give each process some rows.")
    return WeightedRows(dict(zip(states, codes, strict=True)), total, reader.labels, missing.shares)


def aligned_weights(weights: Any, data: Any) -> Any:
    """Weights in the order of the rows: a Series is aligned by index if the data has one, others are used by position.

    Raises:
        DataError: a Series with another index than the data.
    """
    if not is_series(weights):
        return weights
    columns = data.values() if isinstance(data, Mapping) else (data,)
    index = next((column.index for column in columns if is_series(column) or is_frame(column)), None)
    if index is None or weights.index.equals(index):
        return weights
    absent = index.difference(weights.index)
    if len(absent) or len(weights) != len(index) or not weights.index.is_unique:
        reason = f"row {absent[0]!r} has no weight" if len(absent) else f"{len(weights)} weights for {len(index)} rows"
        raise DataError(
            f"weights: expected a Series with the index of the data, got one with another index ({reason}). Reindex it, or pass "
            "an array (to_numpy()) to have weights taken by position."
        )
    return weights.reindex(index)


def checked_weights(weights: Any) -> Tensor:
    """(rows,) float64 weights.

    Raises:
        DataError: negative, not finite or missing, or not a sequence of numbers.
    """
    values = as_tensor("weights", weights, "one non-negative number per row").detach().to(torch.float64)
    if values.ndim != 1:
        raise DataError(f"weights: expected one non-negative number per row, got shape {tuple(values.shape)}.")
    bad = ~(values >= 0) | values.isinf()
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise DataError(f"weights, row {row}: expected a finite non-negative number, got {float(values[row])}.")
    return values


def _joined(parts: Sequence[tuple[Tensor, Tensor]], distinct: bool) -> tuple[Tensor, Tensor]:
    """(variables, rows) states and (rows,) weights of several parts; equal rows are merged if ``distinct``."""
    if len(parts) == 1:
        return parts[0]
    codes, weights = torch.cat([c for c, _ in parts], dim=1), torch.cat([w for _, w in parts])
    return counted_rows(list(codes), weights) if distinct and codes.shape[1] else (codes, weights)


def distinct_rows(table: Mapping[str, Tensor], weights: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """The distinct rows of a table, with the sums of their weights."""
    codes, total = counted_rows(list(table.values()), weights)
    return dict(zip(table, codes, strict=True)), total
