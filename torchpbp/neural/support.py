"""The closed-form half of a training step: moments of the support rows, and the operators solved from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchpbp.distributed import shared_sums
from torchpbp.features.encoded import Encoded
from torchpbp.inference.leaf_features import LeafFeatures, LeafReader, Statistics
from torchpbp.inference.operator_tree import OperatorTree
from torchpbp.learning.net_fitting import penalties_of
from torchpbp.learning.net_moments import BatchRows, ClassLayout, MomentSums, complete_rows, zero_sums
from torchpbp.learning.net_stage1 import NetStage1
from torchpbp.learning.stage1 import Penalties
from torchpbp.learning.two_stage import solve
from torchpbp.models.pbp import PBP
from torchpbp.precision import full_precision


class Solved(NamedTuple):
    """What questions are answered with.

    Args:
        tree: operators, with a class dimension where the model has a condition variable.
        statistics: by which outputs of encoders are standardised.
        grams: C of each encoded leaf.
        prior: (classes,) shares of the classes.
        error: of stage 1, by which nets of instruments are trained.
    """

    tree: OperatorTree
    statistics: Statistics
    grams: dict[str, Tensor]
    prior: Tensor
    error: Tensor


class Support(nn.Module):
    """Moments of the support rows and the stages solved from them.

    Args:
        model: with nets; it is not part of this module's state.
        remember: keep running averages of moments over steps, with the gradient of the present batch.
    """

    model: PBP

    def __init__(self, model: PBP, remember: bool = False) -> None:
        super().__init__()
        self.__dict__["model"] = model
        self.remember = remember
        if not remember:
            return
        empty = zero_sums(model.nets, model.classes)
        for i, (total, count) in enumerate(zip(empty.sums, empty.counts, strict=True)):
            self.register_buffer(f"sum{i}", total)
            self.register_buffer(f"count{i}", count)
        self.moments = len(empty.sums)
        reader = model.leaf_reader()
        for i, names in enumerate(reader.equal_sizes()):
            self.register_buffer(f"gram{i}", torch.stack([torch.zeros_like(reader.encoded[v].gram) for v in names]))
            self.register_buffer(f"gram_count{i}", torch.zeros(len(names), dtype=torch.float64))

    def forward(
        self,
        table: Mapping[str, Tensor],
        seen: Tensor,
        shown: Tensor,
        context: Tensor,
        rate: float,
        through: bool = True,
    ) -> Solved:
        """Solve both stages.

        Args:
            table: the support rows.
            seen: (rows, leaves) what they observe.
            shown: (rows, leaves) what nets of instruments see.
            context: (rows, leaves) what context encoders see of other leaves.
            rate: of the running averages.
            through: let gradients pass; otherwise operators are constants.
        """
        encoded = self.model.leaf_reader().encode(table, seen, context)
        with full_precision(seen.device):
            return self._solved(table, encoded, seen, shown, rate, through)

    def _solved(
        self,
        table: Mapping[str, Tensor],
        encoded: Mapping[str, Encoded],
        seen: Tensor,
        shown: Tensor,
        rate: float,
        through: bool,
    ) -> Solved:
        nets, reader, condition = self.model.nets, self.model.leaf_reader(), self.model.condition
        statistics = reader.batch_statistics(encoded, seen)
        leaves = reader.features(table, encoded, seen, statistics)
        complete = complete_rows(nets, leaves)
        labels = None if condition is None else table[condition]
        layout = ClassLayout(labels, self.model.classes, len(seen), seen.device)
        messages = nets.messages(leaves, complete)
        instruments = nets.instrument_features(leaves, shown, complete)
        rows = BatchRows(nets, leaves, messages, instruments, layout, complete)
        sums = rows.sums().over_processes()
        averages = self._averages(sums, rate) if self.remember else sums.averages()
        grams = self._grams(reader, leaves, rate)
        penalties = penalties_of(nets)
        if not through:
            averages, penalties = [a.detach() for a in averages], Penalties(*(p.detach() for p in nets.log_ridge.exp()))
        tree = solve(nets.plan, NetStage1(nets, averages, condition is not None), penalties).tree
        counts = (getattr(self, f"count{self.moments - 1}") if self.remember else sums.counts[-1]) + 1e-3
        return Solved(tree, statistics, grams, counts / counts.sum(), rows.regression_error())

    def _averages(self, batch: MomentSums, rate: float) -> list[Tensor]:
        """Running averages whose gradient is that of the batch's own (straight-through)."""
        kept = MomentSums(
            tuple(getattr(self, f"sum{i}") for i in range(self.moments)),
            tuple(getattr(self, f"count{i}") for i in range(self.moments)),
        )
        running = kept.decayed(batch.detach(), rate)
        finite = all(bool(total.isfinite().all()) for total in batch.sums)
        for i, (total, count) in enumerate(zip(running.sums, running.counts, strict=True)):
            if finite:  # otherwise this step is skipped, and must leave no trace
                getattr(self, f"sum{i}").copy_(total)
                getattr(self, f"count{i}").copy_(count)
        own = batch.averages()
        return [a + (b - b.detach()) for a, b in zip(running.averages(), own, strict=True)]

    def _grams(self, reader: LeafReader, leaves: LeafFeatures, rate: float) -> dict[str, Tensor]:
        """C of each encoded leaf, likewise."""
        result: dict[str, Tensor] = {}
        every = shared_sums([x for pair in reader.gram_sums(leaves) for x in pair])
        for i, names in enumerate(reader.equal_sizes()):
            total, count = every[2 * i : 2 * i + 2]
            known = own = total / count.clamp(min=1)[:, None, None]
            if self.remember:
                kept, kept_count = getattr(self, f"gram{i}"), getattr(self, f"gram_count{i}")
                new, count = torch.lerp(kept, total.detach(), rate), torch.lerp(kept_count, count, rate)
                if bool(new.isfinite().all()):
                    kept.copy_(new)
                    kept_count.copy_(count)
                known = new / count.clamp(min=1e-12)[:, None, None] + (own - own.detach())
            # A leaf that no row has shown so far: any positive definite C does.
            eye = torch.eye(own.shape[-1], dtype=own.dtype, device=own.device)
            result |= zip(names, torch.where((count > 0)[:, None, None], known, eye).unbind(), strict=True)
        return result
