"""A fit with fixed networks: statistics, moments of all rows and both closed-form stages, in passes over the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from torchpbp.distributed import process_rank, shares, sum_over_processes
from torchpbp.errors import DataError
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.features.encoded import spread_of
from torchpbp.inference.leaf_features import LeafFeatures, LeafReader
from torchpbp.inference.observable import Observable
from torchpbp.inference.operator_net import EXACT_FLOOR
from torchpbp.learning.feature_fitting import Tables
from torchpbp.learning.fitting import FitResult, Fitter, clipping_floor
from torchpbp.learning.message_nets import Masking, MessageNets, NetBank, fit_banks
from torchpbp.learning.net_moments import BatchRows, ClassLayout, MomentSums, fully_observed_rows, zero_sums
from torchpbp.learning.net_stage1 import NetStage1
from torchpbp.learning.population import population_rows
from torchpbp.learning.stage1 import Penalties
from torchpbp.learning.two_stage import solve
from torchpbp.moments.class_rows import ClassRows
from torchpbp.planning.plan import Plan


class Rows(NamedTuple):
    """A batch of rows.

    Args:
        table: observable -> states or values, (rows, …).
        weights: (rows,) weights of the rows.
    """

    table: Mapping[str, Tensor]
    weights: Tensor


Batches = Callable[[], Iterator[Rows]]
"""Returns a new iterator over batches of rows."""


def penalties_of(nets: MessageNets) -> Penalties:
    """Trained ridge penalties of the networks."""
    first, second = nets.log_ridge.exp()
    return Penalties(first, second)


def random_masks(
    like: Tensor, share: float, most: float, generator: torch.Generator, place: tuple[int, int] | None = None
) -> Tensor:
    """(rows, leaves) random masks of shown leaves; in a share of the rows, one or more leaves are hidden.

    Args:
        like: (rows, leaves) tensor of any dtype.
        share: share of the rows with hidden leaves.
        most: largest share of hidden leaves in a row; their number is uniform between 1 and this limit.
        generator: random generator on the CPU.
        place: numbers of preceding rows and of all rows over several processes: the draw of a row is independent of the
            distribution over processes.
    """
    count_here, leaves = like.shape
    before, rows = (0, count_here) if place is None else place
    largest = min(leaves, max(1, round(most * leaves)))
    count = torch.randint(1, largest + 1, (rows, 1), generator=generator, device="cpu")
    count = torch.where(torch.rand(rows, 1, generator=generator, device="cpu") < share, count, 0)
    order = torch.rand(rows, leaves, generator=generator, device="cpu").argsort(dim=1).argsort(dim=1)
    return (order >= count)[before : before + count_here].to(like.device)


class NetFitter(Fitter):
    """A fit through nets of leaves, which are fixed: statistics, moments of all rows and both closed-form stages.

    Args:
        nets: trained networks of the plan.
        reader: reader of the model's leaves.
        observables: of the model, in its order.
        condition: the variable with an operator tree per class.
        classes: number of states of ``condition``; None without one.
        shrinkage: number of pseudo-rows from the pooled distribution added to each class.
    """

    several_passes = "A model with nets needs several passes over the data"
    largest_batch = 4096

    def __init__(
        self,
        nets: MessageNets,
        reader: LeafReader,
        observables: Mapping[str, Observable],
        condition: str | None,
        classes: int | None,
        shrinkage: float,
    ) -> None:
        self.nets, self.reader, self.observables = nets, reader, observables
        self.condition, self.classes, self.shrinkage = condition, classes or 1, shrinkage
        self.device: torch.device = nets.log_ridge.device

    def fit(self, tables: Tables, plans: Mapping[int, Plan]) -> FitResult:
        def batches() -> Iterator[Rows]:
            for table in tables():
                yield Rows(table, torch.ones(len(next(iter(table.values()))), dtype=torch.float64, device=self.device))

        result = self.solve(batches, self.nets.masking, self.shrinkage)
        return replace(result, floor=clipping_floor(result.rows))

    def fit_population(self, plan: Plan, network: DiscreteNetwork) -> FitResult:
        states = {v: network.states[v] for v in network.graph.observed}
        joint = population_rows(network, states, "a model with nets")
        table = dict(zip(joint.names, joint.content.unbind(dim=1), strict=True))
        # Each joint state is a single row, so a random mask would depend on the state: nothing is hidden.
        result = self.solve(lambda: iter([Rows(table, joint.counts)]), Masking(0.0, 0.0), shrinkage=0.0)
        return replace(result, rows=0)

    @torch.no_grad()
    def solve(self, batches: Batches, masking: Masking, shrinkage: float) -> FitResult:
        """Statistics of features and networks, which are stored in the model, then moments of all rows, then operators.

        Args:
            batches: the rows of this process; read three times.
            masking: rates of hidden leaves.
            shrinkage: number of pseudo-rows added to each class.
        """
        nets, reader, condition = self.nets, self.reader, self.condition

        def rows() -> Iterator[_Masked]:
            generator = torch.Generator().manual_seed(nets.seed)  # the same masks in each pass
            for batch, place in _in_step(self._labelled(batches)):
                seen = reader.seen(batch.table)
                shown = seen & random_masks(seen, masking.instruments, masking.most, generator, place)
                context = seen & random_masks(seen, masking.context, masking.most, generator, place)
                yield _Masked(batch.table, batch.weights, seen, shown, context)

        unlabelled = 0.0
        if condition is not None:
            count = sum(int((batch.table[condition] < 0).sum()) for batch in batches())
            unlabelled = float(sum(n for (n,) in shares(count)))
        total = _fit_features(reader, rows, self.device)
        if total == 0:
            raise DataError(
                "The training data is empty: expected at least one row (with a class, if there are any), got none."
            )
        fit_banks(_bank_inputs(nets, part.leaves(reader), part) for part in rows())
        sums = zero_sums(nets, self.classes, self.device)
        class_rows = torch.zeros(self.classes, dtype=torch.float64, device=self.device)
        for part in rows():
            leaves = part.leaves(reader)
            labels = None if condition is None else part.table[condition].long()
            layout = ClassLayout(labels, self.classes, len(part.seen), self.device, part.weights)
            class_rows += layout.filled.sum(dim=1)
            messages, instruments = nets.messages(leaves), nets.instrument_features(leaves, part.shown)
            sums = (
                sums + BatchRows(nets, leaves, messages, instruments, layout, fully_observed_rows(nets, leaves)).sums()
            )
        sums = MomentSums(tuple(map(sum_over_processes, sums.sums)), tuple(map(sum_over_processes, sums.counts)))
        class_rows = sum_over_processes(class_rows)
        _check_counts(nets, sums)
        stage1 = NetStage1(nets, sums.averages(shrinkage), condition is not None)
        penalties = penalties_of(nets)
        nets.set_heads(stage1.heads(penalties))
        return FitResult(
            solution=replace(solve(nets.plan, stage1, penalties), nets=nets),
            rows=total,
            floor=EXACT_FLOOR,
            observables=self.observables,
            classes=None if condition is None else ClassRows(condition, class_rows, unlabelled, shrinkage),
        )

    def _labelled(self, batches: Batches) -> Iterator[Rows]:
        """Batches of rows with a class, on the device of the networks."""
        for batch in batches():
            table = {v: x.to(self.device) for v, x in batch.table.items()}
            weights = batch.weights.to(self.device)
            if self.condition is not None and bool((table[self.condition] < 0).any()):
                labelled = table[self.condition] >= 0
                table, weights = {v: x[labelled] for v, x in table.items()}, weights[labelled]
            if len(weights):
                yield Rows(table, weights)


class _Masked(NamedTuple):
    """A batch with masks of observed leaves, and of leaves shown to instruments and to context encoders."""

    table: Mapping[str, Tensor]
    weights: Tensor
    seen: Tensor
    shown: Tensor
    context: Tensor

    def leaves(self, reader: LeafReader) -> LeafFeatures:
        return reader.features(self.table, reader.encode(self.table, self.seen, self.context), self.seen)


Passes = Callable[[], Iterator[_Masked]]


def _in_step(batches: Iterator[Rows]) -> Iterator[tuple[Rows, tuple[int, int]]]:
    """Batches of this process, each with the numbers of preceding and of all rows in the simultaneous batches of all processes.

    Raises:
        DataError: on all processes, if one of them has no rows.
    """
    first = True
    while True:
        batch = next(batches, None)
        rows = [n for (n,) in shares(0 if batch is None else len(batch.weights))]
        if first and any(rows) and not all(rows):
            raise DataError(
                f"Processes {[p for p, n in enumerate(rows) if not n]} have no rows. Share them more evenly."
            )
        first = False
        if batch is not None:
            yield batch, (sum(rows[: process_rank()]), sum(rows))
        elif not any(rows):
            return


def _check_counts(nets: MessageNets, sums: MomentSums) -> None:
    for family, counts in zip([*nets.families, None], [*sums.counts[:-1:3], sums.counts[-1]], strict=True):
        pooled = counts.sum(dim=0)
        empty = [] if family is None else [n for n, c in zip(family.nodes, pooled.tolist(), strict=True) if c == 0]
        if empty or (family is None and float(pooled) == 0):
            group = nets.needed()[empty[0] if empty else 0]
            raise DataError(
                f"No row observes all of {', '.join(group)}, which must be seen together to be learned. Give more rows."
            )


def _fit_features(reader: LeafReader, rows: Passes, device: torch.device) -> float:
    """Fit mean, spread and Gram matrix of the encoders' outputs over the rows that observe a leaf; returns the number of rows."""
    total = torch.zeros((), dtype=torch.float64, device=device)
    sums: dict[str, list[Tensor]] = {}
    for part in rows():
        total += part.weights.sum()
        for v, e in reader.encode(part.table, part.seen, part.context).items():
            seen = part.seen[:, reader.names.index(v)]
            weight = seen * part.weights
            raw = torch.cat([torch.ones_like(e.features[:, :1]), e.features], dim=1).double()
            parts = [weight.sum(), raw.mT @ (raw * weight.unsqueeze(1))]
            if not reader.context:
                parts.append(_value_sums(reader, v, part.table[v], raw, seen, weight))
            old = sums.get(v)
            sums[v] = parts if old is None else [a + b for a, b in zip(old, parts, strict=True)]
    sum_over_processes(total)
    for v, parts in sums.items():
        count, gram, *values = [sum_over_processes(p) for p in parts]
        if float(count) == 0:
            raise DataError(f"Leaf '{v}' is missing in every row, so nothing can be learned about it. Drop it.")
        gram = gram / count
        if not bool(gram.isfinite().all()):
            raise DataError(f"The encoder of '{v}' returned NaN or infinity. Check its inputs and its learning rate.")
        map, mean = reader.encoded[v], gram[0, 1:]
        map.mean.copy_(mean)
        map.spread.copy_(spread_of(gram.diagonal()[1:] - mean.square()))
        # (1, (f − mean) / spread) = change · (1, f)
        change = torch.diag(torch.cat([mean.new_ones(1), 1 / map.spread]))
        change[1:, 0] = -mean / map.spread
        map.gram.copy_(change @ gram @ change.T)
        if values:
            reader.observables[v].set_functionals(map.gram, change @ values[0] / count)
    return float(total)


def _value_sums(reader: LeafReader, name: str, values: Tensor, raw: Tensor, seen: Tensor, weight: Tensor) -> Tensor:
    """Σ (1, f) (u, u²)ᵀ of standardised values u."""
    filled = torch.where(seen.reshape(-1, *[1] * (values.ndim - 1)), values, torch.zeros_like(values))
    standard = reader.encoded[name].standard_values(filled).double()
    return raw.mT @ (torch.cat([standard, standard.square()], dim=1) * weight.unsqueeze(1))


def _bank_inputs(nets: MessageNets, leaves: LeafFeatures, part: _Masked) -> list[tuple[NetBank, Tensor, Tensor]]:
    """The banks of networks, each with its inputs and the weights of the rows."""
    full, masked = nets.common_inputs(leaves, None), nets.common_inputs(leaves, part.shown)
    pairs = [*((b, full) for b in nets.messages_), *((b, masked) for b in nets.instruments_)]
    return [(bank, inputs, part.weights) for bank, inputs in pairs if isinstance(bank, NetBank)]
