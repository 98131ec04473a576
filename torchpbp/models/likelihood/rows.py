"""Training rows for learners of tables: each distinct row once, with its weight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchpbp.distributed import gather_objects
from torchpbp.errors import DataError
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.inputs.arrays import require_device
from torchpbp.inputs.columns import ColumnReader, DataLike
from torchpbp.inputs.distinct_rows import distinct_cluster_rows, numbered
from torchpbp.inputs.missing_values import MissingValues
from torchpbp.inputs.partitioned import partitioned
from torchpbp.learning.fitting import check_labels


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
        weights: (rows,) non-negative numbers; each row counts as 1 by default.
        who: begins errors.
        distinct: put equal rows together, so that memory is bounded by the number of different ones.
        device: where the rows go in the end; None: they stay where the columns are.

    Raises:
        DataError: a column without any value, weights that are negative, not finite, or not one per row, or a process that
            has no row with a value.
        DeviceError: mini-batches or weights on different devices.
    """
    states = {v: graph.num_states(v) for v in graph.observed}
    given = None if weights is None else checked_weights(weights)
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
    for codes in reader.batches(data):
        count = codes.shape[1]
        if parts:
            require_device(f"{who}: a mini-batch", codes, parts[0][0].device, "the mini-batches before")
        if given is None:
            share = codes.new_ones(count, dtype=torch.float64)
        else:
            if isinstance(weights, Tensor):
                require_device("weights", weights, codes.device, "the rows")
            share = given[start : start + count].to(codes.device)
        start += count
        if given is not None and start > len(given):
            raise DataError(f"weights: expected one per row, got {len(given)} for at least {start} rows.")
        keep = (codes >= 0).any(dim=0) & (share > 0)
        part = (codes, share) if bool(keep.all()) else (codes[:, keep], share[keep])
        parts.append(_compacted([part], distinct))
        pending += parts[-1][0].shape[1]
        if distinct and len(parts) > 1 and pending > 2 * parts[0][0].shape[1]:
            parts = [_compacted(parts, distinct)]
            pending = parts[0][0].shape[1]
    if given is not None and start != len(given):
        raise DataError(f"weights: expected one per row, got {len(given)} for {start} rows.")
    missing: MissingValues = reader.missing_values.over_processes()
    missing.check(stacklevel=4)
    codes, total = (x.to(device) for x in (parts[0] if len(parts) == 1 else _compacted(parts, distinct)))
    check_labels(reader.labels)
    empty = [rank for rank, rows in enumerate(gather_objects(codes.shape[1])) if not rows]
    if empty:  # said in all processes: one that waits for the others would wait for ever
        where = f"processes {empty} hold" if len(gather_objects(0)) > 1 else "there is"
        raise DataError(f"{who}: {where} no row with a value and a positive weight. Give each process some rows.")
    return WeightedRows(dict(zip(states, codes, strict=True)), total, reader.labels, missing.shares)


def checked_weights(weights: Any) -> Tensor:
    """(rows,) float64 weights.

    Raises:
        DataError: negative or not finite, or not a sequence of numbers.
    """
    try:
        values = weights.detach() if isinstance(weights, Tensor) else torch.from_numpy(np.array(weights, dtype=float))
        values = values.to(torch.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"weights: expected one non-negative number per row; {error}.") from None
    if values.ndim != 1:
        raise DataError(f"weights: expected one non-negative number per row, got shape {tuple(values.shape)}.")
    bad = ~(values >= 0) | values.isinf()
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise DataError(f"weights, row {row}: expected a finite non-negative number, got {float(values[row])}.")
    return values


def _compacted(parts: Iterable[tuple[Tensor, Tensor]], distinct: bool) -> tuple[Tensor, Tensor]:
    """(variables, rows) states and (rows,) weights of several parts, equal rows once."""
    held = list(parts)
    codes, weights = held[0]
    if len(held) > 1:
        codes = torch.cat([c for c, _ in held], dim=1)
        weights = torch.cat([w for _, w in held])
    if not distinct or not codes.shape[1]:
        return codes, weights
    numbers, firsts = numbered(list(codes if bool((codes >= 0).all()) else codes + 1))  # -1 is a missing value
    return codes[:, firsts], weights.new_zeros(len(firsts)).index_add_(0, numbers, weights)


def distinct_rows(table: Mapping[str, Tensor], weights: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """The distinct rows of a table, with the sums of their weights."""
    codes, total = _compacted([(torch.stack(list(table.values())), weights)], distinct=True)
    return dict(zip(table, codes, strict=True)), total
