"""Stage 1 by learned predictions: networks, kernels or messages in place of linear regression on groups.

The predictions of any such method for the inside of a separator are the separator's instrument ξ. Stage 1 regresses the message θ
(S1A) and the products y below (S1B) on the same ξ, and stage 2 maps one prediction to the other [PBP Step 5]. With a common ξ this
is W = E[y θ̂ᵀ] E[θ θ̂ᵀ]⁻¹ up to the ridge, so W is consistent even for a poor ξ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchpbp.distributed import sum_over_processes
from torchpbp.errors import StructureError
from torchpbp.learning.compression import Message, PredictedCores
from torchpbp.learning.regressions import ROWS_AT_ONCE, Fit, Predictor, Regression, core_regression, targets_of
from torchpbp.learning.ridge import compressions, equal_shapes
from torchpbp.learning.stacked_instruments import StackedInstruments, significant_directions
from torchpbp.learning.stage1 import CompressedStage1, PredictedProducts
from torchpbp.moments.moments import Moments
from torchpbp.moments.rows import TrainingRows
from torchpbp.planning.plan import Plan


class PredictedStage1(CompressedStage1):
    """Regressions on predictions of the rows.

    Args:
        plan: core groups, instruments and ranks; inputs of a regression are all variables of its separator's instrument.
        moments: moments of core groups and of products below.
        rows: rows of this process.
        first: fits the predictions.
        directions: (core dim, m) predicted directions of core features per separator. Instruments are then the features of
            linear stage 1 and those directions of the predictions that significantly improve on them. None: the instruments
            are the predictions.
        method: name of the method, for errors.
    """

    def __init__(
        self,
        plan: Plan,
        moments: Moments,
        rows: TrainingRows,
        first: Fit,
        directions: Sequence[Tensor] | None = None,
        method: str = "",
    ) -> None:
        self.plan, self.moments, self.rows = plan, moments, rows
        regressions, self._constants = zip(
            *(core_regression(plan, s.node, moments) for s in plan.separators), strict=True
        )
        self.instrument = first(rows, regressions)
        if directions is not None:
            self.instrument = StackedInstruments(self.instrument, plan, moments, rows)
        self._covariances = predicted_covariances(rows, regressions, self.instrument)
        self._projections = [torch.eye(len(c.gram), dtype=torch.float64, device=rows.device) for c in self._covariances]
        if directions is not None:
            self._projections = [
                significant_directions(d.mT @ c.cross, c.gram, s.rank - 1, moments.rows)
                for s, d, c in zip(plan.separators, directions, self._covariances, strict=True)
            ]
            self._covariances = [
                Covariance(c.mean, c.cross @ k, k.mT @ c.gram @ k)
                for c, k in zip(self._covariances, self._projections, strict=True)
            ]
        for s, c in zip(plan.separators, self._covariances, strict=True):
            if c.cross.shape[1] < s.rank - 1:
                raise StructureError(
                    f"Separator {plan.tree.separator_name(s.node)}: the message has rank {s.rank}, but {method} gives an "
                    f"instrument with {c.cross.shape[1]} dimensions. Raise its size or lower rank=."
                )

    def cores(self) -> list[PredictedCores]:
        moments, result = self.moments, []
        shapes = {
            s.node: (*c.cross.shape, s.rank) for s, c in zip(self.plan.separators, self._covariances, strict=True)
        }
        for nodes in equal_shapes(shapes):
            groups = [self.plan[n].core for n in nodes]
            cross = torch.stack([self._covariances[n - 1].cross for n in nodes])
            result.append(
                PredictedCores(
                    nodes,
                    cross,
                    torch.stack([self._covariances[n - 1].gram for n in nodes]),
                    torch.stack([self._constants[n - 1] for n in nodes]),
                    torch.stack([moments.whitener(g) for g in groups]),
                    torch.stack([moments.ones(g) for g in groups]),
                    cross.new_ones(len(nodes), cross.shape[2]),
                    cross.new_full((len(nodes),), moments.rows),
                    shapes[nodes[0]][-1],
                )
            )
        return result

    def products(self, messages: Mapping[int, Message]) -> tuple[Tensor, list[PredictedProducts]]:
        plan, nodes = self.plan, range(len(self.plan.tree))
        ((root, _),) = self.moments.below([[(plan.targets[0], compressions(plan, messages, 0), ())]])
        responses = [product_regression(plan, self.moments, messages, n) for n in nodes[1:]]
        # Stage 2 needs predictions of y only along those of θ. The instrument is projected first, because y can be large.
        factors = [torch.linalg.qr(messages[n].predicted.mT) for n in nodes[1:]]
        seen = [
            k @ messages[n].predictor @ q for n, k, (q, _) in zip(nodes[1:], self._projections, factors, strict=True)
        ]
        covariances = predicted_covariances(self.rows, responses, self.instrument, seen)
        systems = {n: (c.cross, r.mT) for n, c, (_, r) in zip(nodes[1:], covariances, factors, strict=True)}
        sizes = {n: tuple(m.shape[1] for m in responses[n - 1].matrices) for n in systems}
        products = []
        for group in equal_shapes({n: (sizes[n], systems[n][1].shape) for n in systems}):
            predictions, predicted = (torch.stack(part) for part in zip(*(systems[n] for n in group), strict=True))
            mean = torch.stack([covariances[n - 1].mean for n in group])
            products.append(PredictedProducts(group, sizes[group[0]], mean, predictions, predicted))
        return root.squeeze(0), products


def product_regression(plan: Plan, moments: Moments, messages: Mapping[int, Message], node: int) -> Regression:
    """Regression S1B of a separator: product of the children's compressed features, or the features of a leaf."""
    groups, matrices = plan.targets[node], compressions(plan, messages, node)
    if matrices is None:
        device = messages[node].features.device
        matrices = [torch.eye(moments.dim(g), dtype=torch.float64, device=device) for g in groups]
    size = torch.Size([m.shape[1] for m in matrices]).numel()
    name, inputs = plan.tree.separator_name(node), plan[node].outside
    return Regression(name, inputs, tuple(groups), tuple(matrices), matrices[0].new_zeros(size))


@dataclass(frozen=True)
class Covariance:
    """Moments of one separator: E[y], and centred E[y ξᵀ] and E[ξ ξᵀ]."""

    mean: Tensor
    cross: Tensor
    gram: Tensor


def predicted_covariances(
    rows: TrainingRows,
    regressions: Sequence[Regression],
    instrument: Predictor,
    parts: Sequence[Tensor] | None = None,
) -> list[Covariance]:
    """Centred moments of targets with instruments, in one pass over the rows of all processes.

    Args:
        rows: rows of this process.
        regressions: regressions of the targets.
        instrument: predictor of ξ.
        parts: (ξ dim, m) per separator, linear functions of ξ that replace ξ.
    """
    targets = targets_of(regressions, rows)
    totals: list[list[Tensor]] = []
    weight = torch.zeros((), dtype=torch.float64, device=rows.device)
    for positions in rows.positions(ROWS_AT_ONCE):
        part = rows[positions]
        xi = instrument.predict(part, positions)
        if parts is not None:
            xi = [a @ b for a, b in zip(xi, parts, strict=True)]
        sums = [_sums(a, b, part.counts) for a, b in zip(targets(part), xi, strict=True)]
        totals = (
            sums if not totals else [[a + b for a, b in zip(*p, strict=True)] for p in zip(totals, sums, strict=True)]
        )
        weight = weight + part.counts.sum()
    sum_over_processes(weight)
    result = []
    for total in totals:
        y_mean, xi_mean, cross, gram = (sum_over_processes(tensor) / weight for tensor in total)
        result.append(Covariance(y_mean, cross - torch.outer(y_mean, xi_mean), gram - torch.outer(xi_mean, xi_mean)))
    return result


def _sums(y: Tensor, xi: Tensor, weights: Tensor) -> list[Tensor]:
    weighted = weights.unsqueeze(1) * xi
    return [weights @ y, weights @ xi, y.T @ weighted, xi.T @ weighted]
