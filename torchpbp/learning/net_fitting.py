"""A fit with given nets: their statistics, moments of all rows and the two closed-form stages, in passes over the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from torchpbp.distributed import sum_over_processes
from torchpbp.errors import DataError
from torchpbp.features.encoded import spread_of
from torchpbp.inference.leaf_features import LeafReader
from torchpbp.learning.message_nets import MessageNets, NetBank
from torchpbp.learning.net_moments import ClassLayout, MomentSums, complete_rows, moment_sums, zero_sums
from torchpbp.learning.net_stage1 import NetStage1
from torchpbp.learning.stage1 import Penalties
from torchpbp.learning.two_stage import Solution, solve

Batches = Callable[[], Iterator[Mapping[str, Tensor]]]
"""Gives a fresh iterator over mini-batches of rows, leaf -> states or values."""

HIDDEN_ROWS = 0.3
"""Share of rows of which nets of instruments, and context encoders, see a part only, so that they know missing leaves."""


@dataclass(frozen=True)
class NetFit:
    """What a fit with given nets gives.

    Args:
        solution: operators.
        heads: last layers of S1A and S1B by family.
        rows: number of rows that were learned from.
        class_rows: (classes,) rows of each class; (1,) without classes.
        unlabelled: rows without a class, which were left out.
    """

    solution: Solution
    heads: list[tuple[Tensor, Tensor]]
    rows: float
    class_rows: Tensor
    unlabelled: float


def penalties_of(nets: MessageNets) -> Penalties:
    """The ridges that the nets were trained with."""
    first, second = nets.log_ridge.exp()
    return Penalties(first, second)


def random_masks(rows: int, leaves: int, share: float, most: float, generator: torch.Generator) -> Tensor:
    """(rows, leaves) which leaves are shown: in a share of the rows, one or more leaves are hidden.

    Args:
        rows: number of rows.
        leaves: number of leaves.
        share: of the rows in which leaves are hidden.
        most: share of the leaves that may be hidden in a row; the number is uniform from 1 to this.
        generator: of the draws, on the CPU.
    """
    largest = min(leaves, max(1, round(most * leaves)))
    count = torch.randint(1, largest + 1, (rows, 1), generator=generator)
    count = torch.where(torch.rand(rows, 1, generator=generator) < share, count, 0)
    order = torch.rand(rows, leaves, generator=generator).argsort(dim=1).argsort(dim=1)
    return order >= count


@torch.no_grad()
def fit_nets(
    nets: MessageNets,
    reader: LeafReader,
    batches: Batches,
    condition: str | None,
    classes: int,
    shrinkage: float,
    seed: int,
    support_share: float = HIDDEN_ROWS,
    most: float = 0.75,
) -> NetFit:
    """Statistics of features and nets, then moments of all rows, then operators. Sets the statistics in the model.

    Args:
        nets: of the plan, as trained.
        reader: of the model's leaves.
        batches: the rows of this process; read three times.
        condition: the variable with an operator tree per class.
        classes: its number of states; 1 without one.
        shrinkage: pseudo-rows from the pooled distribution that are added to each class.
        seed: of the leaves that instruments and context encoders do not see.
        support_share: share of rows of which leaves are hidden from context encoders.
        most: share of the leaves that may be hidden in a row.
    """
    nets.eval()
    device = nets.log_ridge.device

    def rows() -> Iterator[tuple[dict[str, Tensor], Tensor, Tensor, Tensor]]:
        """Table, seen, shown to instruments, shown to context encoders; the same masks in each pass."""
        generator = torch.Generator().manual_seed(seed)
        for batch in batches():
            table = {v: x.to(device) for v, x in batch.items()}
            if condition is not None:
                known = table[condition] >= 0
                if not bool(known.all()):
                    table = {v: x[known] for v, x in table.items()}
            seen = reader.seen(table)
            shapes = (len(seen), len(reader.names))
            shown = seen & random_masks(*shapes, HIDDEN_ROWS, most, generator).to(device)
            context = seen & random_masks(*shapes, support_share, most, generator).to(device)
            yield table, seen, shown, context

    unlabelled = 0.0
    if condition is not None:
        unlabelled = float(sum(int((batch[condition] < 0).sum()) for batch in batches()))
    total = _fit_features(reader, rows)
    if total == 0:
        raise DataError("The training data is empty: expected at least one row with a class, got none.")
    _fit_statistics(nets, reader, rows)
    sums = zero_sums(nets, classes, device)
    class_rows = torch.zeros(classes, dtype=torch.float64, device=device)
    for table, seen, shown, context in rows():
        encoded = reader.encode(table, seen, context)
        leaves = reader.features(table, encoded, seen)
        labels = None if condition is None else table[condition].long()
        layout = ClassLayout(labels, classes, len(seen), device)
        class_rows += layout.filled.sum(dim=1)
        sums = sums + moment_sums(
            nets,
            leaves,
            nets.messages(leaves),
            nets.instrument_features(leaves, shown),
            layout,
            complete_rows(nets, leaves),
        )
    sums = MomentSums(tuple(map(sum_over_processes, sums.sums)), tuple(map(sum_over_processes, sums.counts)))
    class_rows = sum_over_processes(class_rows)
    _check_counts(nets, sums)
    stage1 = NetStage1(nets, sums.averages(shrinkage), condition is not None)
    penalties = penalties_of(nets)
    solution = solve(nets.plan, stage1, penalties)
    return NetFit(solution, stage1.heads(penalties), total, class_rows, unlabelled)


def _check_counts(nets: MessageNets, sums: MomentSums) -> None:
    for family, counts in zip([*nets.families, None], [*sums.counts[:-1:3], sums.counts[-1]], strict=True):
        pooled = counts.sum(dim=0)
        empty = [] if family is None else [n for n, c in zip(family.nodes, pooled.tolist(), strict=True) if c == 0]
        if empty or (family is None and float(pooled) == 0):
            group = nets.needed()[empty[0] if empty else 0]
            raise DataError(
                f"No row observes all of {', '.join(group)}, which must be seen together to be learned. Give more rows."
            )


def _fit_features(
    reader: LeafReader, rows: Callable[[], Iterator[tuple[dict[str, Tensor], Tensor, Tensor, Tensor]]]
) -> float:
    """Mean, spread and gram of the encoders' outputs over the rows that observe a leaf; returns the number of rows."""
    total = torch.zeros((), dtype=torch.float64)
    sums: dict[str, list[Tensor]] = {}
    for table, seen, _, context in rows():
        total += len(seen)
        for v, e in reader.encode(table, seen, context).items():
            weight = seen[:, reader.names.index(v)].double()
            raw = torch.cat([torch.ones_like(e.features[:, :1]), e.features], dim=1).double()
            parts = [weight.sum(), raw.mT @ (raw * weight.unsqueeze(1))]
            if not reader.context:
                parts += _value_sums(reader, v, table[v], raw, seen[:, reader.names.index(v)])
            old = sums.get(v)
            sums[v] = parts if old is None else [a + b for a, b in zip(old, parts, strict=True)]
    sum_over_processes(total)
    for v, parts in sums.items():
        count, gram, *values = [sum_over_processes(p) for p in parts]
        if float(count) == 0:
            raise DataError(f"Leaf '{v}' is missing in every row, so nothing can be learned about it. Drop it.")
        gram = gram / count
        map = reader.encoded[v]
        mean = gram[0, 1:]
        if not bool(gram.isfinite().all()):
            raise DataError(f"The encoder of '{v}' returned NaN or infinity. Check its inputs and its learning rate.")
        map.mean.copy_(mean)
        map.spread.copy_(spread_of(gram.diagonal()[1:] - mean.square()))
        # (1, (f − mean) / spread) = change · (1, f)
        change = torch.diag(torch.cat([mean.new_ones(1), 1 / map.spread]))
        change[1:, 0] = -mean / map.spread
        map.gram.copy_(change @ gram @ change.T)
        if values:
            reader.observables[v].set_functionals(map.gram, change @ values[0] / count)
    return float(total)


def _value_sums(reader: LeafReader, name: str, values: Tensor, raw: Tensor, seen: Tensor) -> list[Tensor]:
    """Σ (1, f) uᵀ and Σ (1, f) (u²)ᵀ of standardised values u, side by side."""
    standard = reader.encoded[name].standard_values(
        torch.where(seen.reshape(-1, *[1] * (values.ndim - 1)), values, 0.0)
    )
    standard = standard.double() * seen.unsqueeze(1)
    return [raw.mT @ torch.cat([standard, standard.square()], dim=1)]


def _fit_statistics(
    nets: MessageNets,
    reader: LeafReader,
    rows: Callable[[], Iterator[tuple[dict[str, Tensor], Tensor, Tensor, Tensor]]],
) -> None:
    """Mean and spread of the nets' outputs."""
    banks = [b for b in (*nets.messages_, *nets.instruments_) if isinstance(b, NetBank)]
    totals: list[list[Tensor]] = []
    count = torch.zeros((), dtype=torch.float64, device=nets.log_ridge.device)
    for table, seen, shown, context in rows():
        leaves = reader.features(table, reader.encode(table, seen, context), seen)
        full, masked = nets.common_inputs(leaves, None), nets.common_inputs(leaves, shown)
        sums = []
        for i, bank in enumerate(banks):
            out = bank.raw(full if i < len(nets.messages_) else masked).double()
            sums.append([out.sum(dim=1, keepdim=True), out.square().sum(dim=1, keepdim=True)])
        totals = (
            sums
            if not totals
            else [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(totals, sums, strict=True)]
        )
        count += len(seen)
    sum_over_processes(count)
    for bank, (first, second) in zip(banks, totals, strict=True):
        mean = sum_over_processes(first) / count
        bank.mean.copy_(mean)
        bank.spread.copy_(spread_of(sum_over_processes(second) / count - mean.square()))
