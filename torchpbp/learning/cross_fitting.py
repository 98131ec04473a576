"""Cross-fitted networks of instruments: each row is predicted by networks that were not trained on it.

With K folds each separator has K networks g; network k and its head are fitted without the rows of fold k, and predict these. Stage 2
would be biased by networks that predict rows which they have memorised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from torchpbp.distributed import sum_over_processes
from torchpbp.learning.compression import Message
from torchpbp.learning.message_nets import InstrumentNets, NetBank, fit_banks, with_constant
from torchpbp.learning.net_moments import BatchRows, ClassLayout, regression_error, zero_sums
from torchpbp.learning.net_stage1 import NetStage1, closed_form_heads
from torchpbp.learning.predictions import PredictedStage1
from torchpbp.learning.regressions import Predictor, Regression, targets_of
from torchpbp.learning.ridge import equal_shapes
from torchpbp.learning.stage1 import Penalties
from torchpbp.moments.moments import Moments
from torchpbp.moments.rows import TrainingRows
from torchpbp.planning.plan import Plan

RIDGE = 1e-3
"""Ridge penalty of heads, for instruments of unit variance."""
ENTRIES_AT_ONCE = 1 << 22
"""Largest number of outputs of a layer computed at once."""


class CrossFitting(Predictor):
    """Networks of instruments in training, and their out-of-fold predictions afterwards.

    Args:
        nets: networks g of each fold with initial weights; a single one is trained on all rows.
        rows: rows of this process.
        fold: (rows,) fold of each row.
        regressions: regression of each separator on its instrument, with features of the core group as targets.
    """

    def __init__(
        self, nets: Sequence[InstrumentNets], rows: TrainingRows, fold: Tensor, regressions: Sequence[Regression]
    ) -> None:
        self.nets, self.rows, self.fold = nets, rows, fold
        self.targets = targets_of(regressions, rows)
        (first, *_) = nets
        self.nodes = first.solved
        widths = {n: family.width for family in first.families for n in family.nodes}
        self.groups = equal_shapes({n: (widths[n], r.size) for n, r in zip(self.nodes, regressions, strict=True)})
        self.heads: list[dict[int, Tensor]] = []
        self.rows_at_once = max(64, ENTRIES_AT_ONCE // (len(self.nodes) * max(*first.hidden, 1, *widths.values())))

    def loss(self, positions: Tensor, shown: Tensor, device: torch.device) -> Tensor:
        """Sum over separators and folds of the share of the variance of core features that networks do not explain.

        Args:
            positions: indices of the rows of a batch.
            shown: (rows, observables) mask of inputs.
            device: of the networks.
        """
        losses = []
        for k, nets in enumerate(self.nets):
            chosen = self._trained_on(k, positions)
            part = self.rows[positions[chosen]]
            y, weights = self._targets(part), self._weights(part).to(device, nets.dtype)
            leaves = part.to(device).leaves(nets.dtype)
            equal = part.weights is None and len(part) > 0  # a small batch may lie within the fold
            counts = None if equal else dict.fromkeys(self.nodes, weights)
            eta = nets.instrument_features(leaves, shown[chosen].to(device), counts)
            systems = [
                (
                    torch.stack([eta[n][:, 1:] for n in nodes]).unsqueeze(1),
                    torch.stack([y[n] for n in nodes]).unsqueeze(1).to(device),
                    weights.expand(len(nodes), 1, -1),
                )
                for nodes in self.groups
            ]
            losses.append(len(self.nodes) * regression_error(systems))
        return torch.stack(losses).sum()

    @torch.no_grad()
    def fit_heads(self) -> None:
        """Statistics of the networks' outputs, and their heads for core features, from complete rows."""
        for k, nets in enumerate(self.nets):
            fit_banks(self._bank_inputs(nets, part) for _, part in self._batches(k))
            totals = [[torch.zeros((), dtype=torch.float64, device=self.rows.device)] * 2 for _ in self.groups]
            for _, part in self._batches(k):
                eta, y, weights = _instruments(nets, part), self._targets(part), self._weights(part).unsqueeze(1)
                for total, nodes in zip(totals, self.groups, strict=True):
                    stacked = torch.stack([eta[n] for n in nodes])
                    weighted = stacked * weights
                    target = torch.stack([y[n] for n in nodes])
                    total[:] = [total[0] + stacked.mT @ weighted, total[1] + target.mT @ weighted]
            heads: dict[int, Tensor] = {}
            for nodes, total in zip(self.groups, totals, strict=True):
                gram, cross = (sum_over_processes(x) for x in total)
                rows = gram[:, :1, :1]
                heads |= zip(nodes, closed_form_heads(gram / rows, cross / rows, RIDGE).unbind(), strict=True)
            self.heads.append(heads)

    @torch.no_grad()
    def predict(self, rows: TrainingRows, positions: Tensor) -> list[Tensor]:
        result = {n: h.new_empty(len(positions), h.shape[1]) for n, h in self.heads[0].items()}
        for k, (nets, heads) in enumerate(zip(self.nets, self.heads, strict=True)):
            held_out = (self.fold[positions] == k).nonzero().squeeze(1)
            for index in torch.split(held_out, self.rows_at_once):
                for n, eta in _instruments(nets, rows[index]).items():
                    result[n][index] = eta @ heads[n]
        return [result[n] for n in self.nodes]

    @torch.no_grad()
    def fit_messages(self, plan: Plan, messages: Mapping[int, Message], shown: Tensor) -> None:
        """Heads of the networks for compressed messages (S1A) and for the products below (S1B).

        Args:
            plan: core groups, instruments and ranks.
            messages: compressed messages, by node.
            shown: (rows, observables) mask of inputs.
        """
        inside = targets_of([message_regression(plan, messages, n) for n in self.nodes], self.rows)
        for k, nets in enumerate(self.nets):
            total = zero_sums(nets, 1, self.rows.device)
            for positions, part in self._batches(k):
                theta = {n: with_constant(y) for n, y in zip(self.nodes, inside(part), strict=True)}
                layout = ClassLayout(None, 1, len(part), part.device, part.counts)
                eta = _instruments(nets, part, shown[positions])
                total = total + BatchRows(nets, part.leaves(), theta, eta, layout, None).sums()
            moments = total.over_processes().averages()
            nets.set_heads(NetStage1(nets, moments, False).heads(Penalties(RIDGE, 0.0)))

    def _trained_on(self, k: int, positions: Tensor) -> Tensor:
        """(rows,) whether the networks of a fold are trained on rows."""
        outside = self.fold[positions] != k
        return outside if len(self.nets) > 1 else torch.ones_like(outside)

    def _batches(self, k: int) -> Iterator[tuple[Tensor, TrainingRows]]:
        """Positions and rows on which the networks of a fold are trained, in batches whose outputs fit into memory."""
        every = torch.arange(len(self.rows), device=self.rows.device)
        for positions in torch.split(every[self._trained_on(k, every)], self.rows_at_once):
            yield positions, self.rows[positions]

    def _targets(self, part: TrainingRows) -> dict[int, Tensor]:
        return dict(zip(self.nodes, self.targets(part), strict=True))

    def _weights(self, part: TrainingRows) -> Tensor:
        """(rows,) weights whose mean over all rows is 1."""
        return part.counts * (1 if part.weights is None else len(self.rows))

    def _bank_inputs(self, nets: InstrumentNets, part: TrainingRows) -> list[tuple[NetBank, Tensor, Tensor]]:
        """The banks of networks, each with inputs from complete rows and the weights of the rows."""
        inputs = nets.common_inputs(part.leaves(nets.dtype), None)
        return [(bank, inputs, self._weights(part)) for bank in nets.instruments_ if isinstance(bank, NetBank)]


def _instruments(nets: InstrumentNets, part: TrainingRows, shown: Tensor | None = None) -> dict[int, Tensor]:
    """η of all separators, (rows, 1 + width)."""
    leaves = part.leaves(nets.dtype)
    return nets.instrument_features(leaves, leaves.seen if shown is None else shown)


class CrossFittedStage1(PredictedStage1):
    """Regressions on out-of-fold predictions of networks.

    Args:
        plan: core groups, instruments and ranks.
        moments: moments of core groups and of products below.
        fitting: fitted networks.
        directions: as for :class:`PredictedStage1`.
        shown: (rows, observables) mask of the inputs from which the heads of the networks in the model are fitted.
        method: name of the method, for errors.
    """

    def __init__(
        self,
        plan: Plan,
        moments: Moments,
        fitting: CrossFitting,
        directions: Sequence[Tensor] | None,
        shown: Tensor,
        method: str,
    ) -> None:
        self.fitting, self.shown = fitting, shown
        super().__init__(plan, moments, fitting.rows, lambda *_: fitting, directions, method)

    def nets(self, messages: Mapping[int, Message]) -> InstrumentNets:
        self.fitting.fit_messages(self.plan, messages, self.shown)
        return InstrumentNets.stacked(self.fitting.nets, folds=len(self.fitting.nets))


def message_regression(plan: Plan, messages: Mapping[int, Message], node: int) -> Regression:
    """Regression S1A of a separator's message, without its constant."""
    features = messages[node].features[:, 1:]
    name, inputs = plan.tree.separator_name(node), plan[node].outside
    return Regression(name, inputs, (plan[node].core,), (features,), features.new_zeros(features.shape[1]))
