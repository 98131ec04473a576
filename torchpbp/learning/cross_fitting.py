"""Cross-fitted networks of instruments: each row is predicted by networks that were not trained on it.

With K folds each separator has K networks g; network k and its head are fitted without the rows of fold k, and predict these. Stage 2
would be biased by networks that predict rows which they have memorised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from torchpbp.distributed import sum_over_processes
from torchpbp.learning.compression import Message
from torchpbp.learning.message_nets import InstrumentNets, NetBank, fit_banks, with_constant
from torchpbp.learning.net_moments import BatchRows, ClassLayout, MomentSums, regression_error
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
ENTRIES_AT_ONCE = 1 << 23
"""Largest number of outputs of a layer computed at once."""


class CrossFitting(Predictor):
    """Networks of instruments in training, and their out-of-fold predictions afterwards.

    Args:
        nets: networks g with initial weights.
        rows: rows of this process.
        fold: (rows,) fold of each row; equal for all rows of a population, on which all networks are trained.
        regressions: regression of each separator on its instrument, with features of the core group as targets.
    """

    def __init__(
        self, nets: InstrumentNets, rows: TrainingRows, fold: Tensor, regressions: Sequence[Regression]
    ) -> None:
        self.nets, self.rows, self.fold = nets, rows, fold
        self.targets = targets_of(regressions, rows)
        sizes = {n: r.size for n, r in zip(nets.solved, regressions, strict=True)}
        widths = {n: family.width for family in nets.families for n in family.nodes}
        self.groups = equal_shapes({n: (widths[n], sizes[n]) for n in nets.solved})
        self.heads: dict[int, Tensor] = {}
        layers = max((*nets.hidden, *widths.values()))
        self.rows_at_once = max(64, ENTRIES_AT_ONCE // (len(nets.solved) * self.folds * layers))

    @property
    def folds(self) -> int:
        """Number of networks per separator."""
        return self.nets.folds or 1

    def weights(self, positions: Tensor) -> Tensor:
        """(K, rows) weights of some rows in the training of each network; with several folds, 0 in its fold."""
        counts = self.rows[positions].counts
        if self.rows.weights is not None:
            return (counts * len(self.rows)).expand(self.folds, -1)
        outside = self.fold[positions] != torch.arange(self.folds, device=counts.device).unsqueeze(1)
        return (outside | (self.folds == 1)) * counts

    def loss(self, positions: Tensor, shown: Tensor, device: torch.device) -> Tensor:
        """Sum over networks of the variance of core features that they do not explain.

        Args:
            positions: indices of the rows of a batch.
            shown: (rows, observables) mask of inputs.
            device: of the networks.
        """
        nets, part = self.nets, self.rows[positions]
        weights = self.weights(positions).to(device, nets.dtype)
        leaves = part.to(device).leaves(nets.dtype)
        eta = nets.instrument_features(leaves, shown.to(device), dict.fromkeys(nets.solved, weights))
        y = dict(zip(nets.solved, self.targets(part), strict=True))
        systems = []
        for nodes in self.groups:
            instruments = torch.stack([eta[n][..., 1:] for n in nodes])  # (separators, K, rows, m)
            shape = instruments.shape[:3]
            target = torch.stack([y[n] for n in nodes]).to(device).unsqueeze(1).expand(*shape, -1)
            parts = (instruments, target, weights.expand(shape))
            systems.append(tuple(x.flatten(0, 1).unsqueeze(1) for x in parts))
        return len(nets.solved) * self.folds * regression_error(systems)

    @torch.no_grad()
    def fit_heads(self) -> None:
        """Statistics of the networks' outputs, and their heads for core features, from complete rows."""
        fit_banks(self._bank_inputs(positions) for positions in self.rows.positions(self.rows_at_once))
        totals: list[list[Tensor]] = []
        for positions in self.rows.positions(self.rows_at_once):
            eta, y = (
                self._instruments(positions),
                dict(zip(self.nets.solved, self.targets(self.rows[positions]), strict=True)),
            )
            weights = self.weights(positions).unsqueeze(-1)
            sums = []
            for nodes in self.groups:
                weighted = torch.stack([eta[n] for n in nodes]).mul_(weights.sqrt())
                target = torch.stack([y[n] for n in nodes]).unsqueeze(1) * weights.sqrt()
                sums.append([weighted.mT @ weighted, target.mT @ weighted])
            totals = (
                sums
                if not totals
                else [[a + b for a, b in zip(*p, strict=True)] for p in zip(totals, sums, strict=True)]
            )
        for nodes, total in zip(self.groups, totals, strict=True):
            gram, cross = (sum_over_processes(x) for x in total)
            rows = gram[..., :1, :1]
            self.heads |= zip(nodes, closed_form_heads(gram / rows, cross / rows, RIDGE).unbind(), strict=True)

    @torch.no_grad()
    def predict(self, rows: TrainingRows, positions: Tensor) -> list[Tensor]:
        parts: list[list[Tensor]] = []
        for index in torch.split(positions, self.rows_at_once):
            eta, fold = self._instruments(index), self.fold[index]
            own = {n: x[fold, torch.arange(len(index), device=fold.device)].unsqueeze(1) for n, x in eta.items()}
            parts.append([(x @ self.heads[n][fold]).squeeze(1) for n, x in own.items()])
        return [torch.cat(tensors) for tensors in zip(*parts, strict=True)]

    @torch.no_grad()
    def fit_messages(self, plan: Plan, messages: Mapping[int, Message], shown: Tensor) -> InstrumentNets:
        """The networks with heads for compressed messages (S1A) and for the products below (S1B).

        Args:
            plan: core groups, instruments and ranks.
            messages: compressed messages, by node.
            shown: (rows, observables) mask of inputs.
        """
        nets = self.nets
        inside = targets_of([message_regression(plan, messages, n) for n in nets.solved], self.rows)
        totals: list[MomentSums] = []
        for positions in self.rows.positions(self.rows_at_once):
            part = self.rows[positions]
            leaves, eta = part.leaves(), self._instruments(positions, shown[positions])
            theta = {n: with_constant(y) for n, y in zip(nets.solved, inside(part), strict=True)}
            sums = [
                BatchRows(nets, leaves, theta, {n: x[k] for n, x in eta.items()}, layout, None).sums()
                for k, layout in enumerate(
                    ClassLayout(None, 1, len(part), part.device, weight) for weight in self.weights(positions)
                )
            ]
            totals = sums if not totals else [a + b for a, b in zip(totals, sums, strict=True)]
        solved = [NetStage1(nets, t.over_processes().averages(), False).heads(Penalties(RIDGE, 0.0)) for t in totals]
        nets.set_heads(
            [
                tuple(torch.stack(heads, dim=-4) for heads in zip(*family, strict=True))
                for family in zip(*solved, strict=True)
            ]
        )
        return nets

    def _bank_inputs(self, positions: Tensor) -> list[tuple[NetBank, Tensor, Tensor]]:
        """The banks of networks, each with inputs from complete rows and the weights of the rows."""
        leaves, weights = self.rows[positions].leaves(self.nets.dtype), self.weights(positions).unsqueeze(1)
        inputs = self.nets.common_inputs(leaves, None)
        return [(bank, inputs, weights) for bank in self.nets.instruments_ if isinstance(bank, NetBank)]

    def _instruments(self, positions: Tensor, shown: Tensor | None = None) -> dict[int, Tensor]:
        """η of all separators, (K, rows, 1 + width)."""
        leaves = self.rows[positions].leaves(self.nets.dtype)
        return self.nets.instrument_features(leaves, leaves.seen if shown is None else shown)


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
        return self.fitting.fit_messages(self.plan, messages, self.shown)


def message_regression(plan: Plan, messages: Mapping[int, Message], node: int) -> Regression:
    """Regression S1A of a separator's message, without its constant."""
    features = messages[node].features[:, 1:]
    name, inputs = plan.tree.separator_name(node), plan[node].outside
    return Regression(name, inputs, (plan[node].core,), (features,), features.new_zeros(features.shape[1]))
