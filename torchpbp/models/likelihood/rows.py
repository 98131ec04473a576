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
from torchpbp.inputs.arrays import as_array, dense_tensor, number_tensor, require_device
from torchpbp.inputs.clusters import partitioned
from torchpbp.inputs.columns import ColumnReader, DataLike
from torchpbp.inputs.missing_values import MissingValues
from torchpbp.lazy import is_frame, is_series
from torchpbp.learning.fitting import check_labels
from torchpbp.moments.distinct_rows import counted_rows, distinct_cluster_rows


@dataclass(frozen=True)
class WeightedRows:
    """What a learner of tables takes from its data.

    Args:
        table: name -> (rows,) states; -1 where missing.
        weights: (rows,) how much each counts.
        labels: of variables that came by label.
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
    """Read a table, in parts, and keep its rows that have some value.

    Args:
        graph: discrete.
        data: as for :meth:`torchpbp.PBP.fit`; in several processes, this one's share.
        weights: (rows,) non-negative numbers; each row counts as 1 by default. A Series goes by its index where the data is a
            DataFrame, or Series with one index.
        who: begins errors.
        distinct: put equal rows together, so that memory is bounded by the number of different ones.
        device: where the rows go in the end; None: they stay where the columns are.

    Raises:
        DataError: a column without any value, weights that are negative, not finite, missing, or not one per row, or that
            have another index than the data; or a process that has no row with a value.
        DeviceError: mini-batches or weights on different devices.
    """
    states = {v: graph.num_states(v) for v in graph.observed}
    given = None if weights is None else checked_weights(aligned_weights(weights, data))
    reader = ColumnReader(states, graph.labels, missing=True, device=None)
    if (cluster := partitioned(data)) is not None:
        if given is not None or not distinct:
            raise DataError(
                f"{who}: a table on a cluster is reduced to its distinct rows there, without weights or mini-batches of rows. Use "
                "EM or MaximumLikelihood without weights, or rows in this process."
            )
        codes, total = (x.to(device) for x in distinct_cluster_rows(cluster, reader))
        reader.missing_values.check(stacklevel=4)
        known = (codes >= 0).any(dim=0)
        table = dict(zip(states, codes[:, known], strict=True))
        return WeightedRows(table, total[known], reader.labels, reader.missing_values.shares)
    parts: list[tuple[Tensor, Tensor]] = []
    start = 0
    pending = 0
    for columns in reader.tables(data):
        first = next(iter(columns.values()))
        count = len(first)
        if parts:
            require_device(f"{who}: a mini-batch", first, parts[0][0].device, "the mini-batches before")
        if given is None:
            share = first.new_ones(count, dtype=torch.float64)
        else:
            if isinstance(weights, Tensor):
                require_device("weights", weights, first.device, "the rows")
            share = given[start : start + count].to(first.device)
        start += count
        if given is not None and start > len(given):
            raise DataError(f"weights: expected one per row, got {len(given)} for at least {start} rows.")
        part = counted_rows(list(columns.values()), share) if distinct else (torch.stack(list(columns.values())), share)
        known = (part[0] >= 0).any(dim=0) & (part[1] > 0)
        parts.append(part if bool(known.all()) else (part[0][:, known], part[1][known]))
        pending += parts[-1][0].shape[1]
        if distinct and len(parts) > 1 and pending > 2 * parts[0][0].shape[1]:
            parts = [_joined(parts, distinct)]
            pending = parts[0][0].shape[1]
    if given is not None and start != len(given):
        raise DataError(f"weights: expected one per row, got {len(given)} for {start} rows.")
    missing: MissingValues = reader.missing_values.over_processes()
    missing.check(stacklevel=4)
    codes, total = (x.to(device) for x in _joined(parts, distinct))
    check_labels(reader.labels)
    empty = [rank for rank, rows in enumerate(gather_objects(codes.shape[1])) if not rows]
    if empty:  # said in all processes: one that waits for the others would wait for ever
        where = f"processes {empty} hold" if len(gather_objects(0)) > 1 else "there is"
        raise DataError(f"{who}: {where} no row with a value and a positive weight. Give each process some rows.")
    return WeightedRows(dict(zip(states, codes, strict=True)), total, reader.labels, missing.shares)


def aligned_weights(weights: Any, data: Any) -> Any:
    """Weights in the order of the rows: a Series by its index where the data has one, anything else by position.

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
    expected = "one non-negative number per row"
    if isinstance(weights, Tensor):
        values = dense_tensor("weights", weights.detach()).to(torch.float64)
    else:
        array = as_array("weights", weights.array if is_series(weights) else weights, expected)
        values = number_tensor("weights", array, expected).to(torch.float64)
    if values.ndim != 1:
        raise DataError(f"weights: expected one non-negative number per row, got shape {tuple(values.shape)}.")
    bad = ~(values >= 0) | values.isinf()
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise DataError(f"weights, row {row}: expected a finite non-negative number, got {float(values[row])}.")
    return values


def _joined(parts: Sequence[tuple[Tensor, Tensor]], distinct: bool) -> tuple[Tensor, Tensor]:
    """(variables, rows) states and (rows,) weights of several parts, equal rows once."""
    if len(parts) == 1:
        return parts[0]
    codes, weights = torch.cat([c for c, _ in parts], dim=1), torch.cat([w for _, w in parts])
    return counted_rows(list(codes), weights) if distinct and codes.shape[1] else (codes, weights)


def distinct_rows(table: Mapping[str, Tensor], weights: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """The distinct rows of a table, with the sums of their weights."""
    codes, total = counted_rows(list(table.values()), weights)
    return dict(zip(table, codes, strict=True)), total
