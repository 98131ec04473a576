"""Moments of messages computed by networks, for stages 1 and 2, with or without classes.

For separators of one family they are E[ηηᵀ], E[θηᵀ] and E[(⊗ θ below) ηᵀ] with η = (1, g), which include the means. All are sums over
rows: they are additive over batches, and differentiable in messages and instruments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchpbp.distributed import shared_sums
from torchpbp.inference.leaf_features import LeafFeatures
from torchpbp.learning.least_squares import cholesky_factor
from torchpbp.learning.message_nets import Family, InstrumentNets, MessageNets
from torchpbp.moments.rows import row_products

REGRESSION_RIDGE = 1e-2
"""Ridge penalty of the regressions that train instruments, whose outputs have variance 1."""


@dataclass(frozen=True)
class MomentSums:
    """Sums over rows and their total weights; all tensors have a leading class dimension, of size 1 without classes.

    Args:
        sums: per family gram (classes, separators, m, m), message (…, rank, m) and product (…, ∏ sizes, m); then the root's
            (classes, ranks of its children…).
        counts: per family (classes, separators), three times; then (classes,) for the root.
    """

    sums: tuple[Tensor, ...]
    counts: tuple[Tensor, ...]

    def __add__(self, other: MomentSums) -> MomentSums:
        return MomentSums(
            tuple(a + b for a, b in zip(self.sums, other.sums, strict=True)),
            tuple(a + b for a, b in zip(self.counts, other.counts, strict=True)),
        )

    def over_processes(self) -> MomentSums:
        """The sums of all processes, differentiable."""
        every = shared_sums([*self.sums, *self.counts])
        return MomentSums(tuple(every[: len(self.sums)]), tuple(every[len(self.sums) :]))

    def averages(self, shrinkage: float = 0.0) -> list[Tensor]:
        """Moments: sums divided by their weights.

        Args:
            shrinkage: number of pseudo-rows, from the distribution pooled over classes, added to each class. A class without
                rows has the pooled moments.
        """
        result = []
        # Pooled moments are needed only for shrinkage and for classes without rows.
        plain = not shrinkage and self.counts[0].device.type != "meta" and all(bool((c > 0).all()) for c in self.counts)
        for total, count in zip(self.sums, self.counts, strict=True):
            weight = count.reshape(*count.shape, *[1] * (total.ndim - count.ndim))
            if plain or len(total) == 1:
                result.append(total / weight.clamp(min=1e-300))
                continue
            pooled = total.sum(dim=0) / weight.sum(dim=0).clamp(min=1e-300)
            pseudo = torch.where(weight > 0, shrinkage, max(shrinkage, 1.0))
            result.append((total + pseudo * pooled) / (weight + pseudo))
        return result


def zero_sums(nets: InstrumentNets, classes: int, device: torch.device | str = "cpu") -> MomentSums:
    """Sums over no rows."""
    sums, counts = [], []
    for f in nets.families:
        m, products = f.width + 1, torch.Size(f.sizes).numel()
        for shape in ((m, m), (f.rank, m), (products, m)):
            sums.append(torch.zeros(classes, len(f.nodes), *shape, dtype=torch.float64, device=device))
            counts.append(torch.zeros(classes, len(f.nodes), dtype=torch.float64, device=device))
    sums.append(torch.zeros(classes, *nets.plan.root_shape, dtype=torch.float64, device=device))
    counts.append(torch.zeros(classes, dtype=torch.float64, device=device))
    return MomentSums(tuple(sums), tuple(counts))


def fully_observed_rows(nets: MessageNets, leaves: LeafFeatures) -> dict[int, Tensor] | None:
    """Per separator, and 0 for the root, (rows,) 1 where a row observes all needed leaves; None if all rows do."""
    if leaves.seen.device.type != "meta" and bool(leaves.seen.all()):
        return None
    order = {v: i for i, v in enumerate(leaves.features)}
    return {n: leaves.seen[:, [order[v] for v in group]].all(dim=1).double() for n, group in nets.needed().items()}


class BatchRows:
    """Rows of a batch, arranged by family and class, for their moments and the error of stage 1.

    Args:
        nets: networks of the plan.
        leaves: features of the rows.
        messages: θ of each separator, (rows, rank).
        instruments: η of each solved separator, (rows, m).
        layout: rows of each class.
        complete: see :func:`fully_observed_rows`.
    """

    def __init__(
        self,
        nets: InstrumentNets,
        leaves: LeafFeatures,
        messages: Mapping[int, Tensor],
        instruments: Mapping[int, Tensor],
        layout: ClassLayout,
        complete: Mapping[int, Tensor] | None,
    ) -> None:
        self.nets = nets
        self.families: list[
            tuple[Tensor, Tensor, Tensor]
        ] = []  # η, (θ, products), weights, by separator, class and row
        for family in nets.families:
            eta, theta = (layout.arrange([part[n] for n in family.nodes]) for part in (instruments, messages))
            products = row_products([layout.arrange(part) for part in _below(family, leaves, messages)])
            weight = layout.weights([None if complete is None else complete[n] for n in family.nodes])
            self.families.append((eta, torch.cat([theta, products.to(theta)], dim=-1), weight))
        children = nets.plan.tree.children[0]
        self.root_weight = layout.weights([None if complete is None else complete[0]])[0]
        self.root_products = row_products([layout.arrange([messages[c]])[0] for c in children])

    def sums(self) -> MomentSums:
        """Sums over the rows."""
        sums, counts = [], []
        for family, (eta, target, weight) in zip(self.nets.families, self.families, strict=True):
            weighted = eta * weight.unsqueeze(-1).to(eta)
            cross = (target.mT @ weighted).transpose(0, 1).double()
            sums += [(eta.mT @ weighted).transpose(0, 1).double(), *_split(cross, family.rank)]
            counts += [weight.sum(dim=-1).T] * 3
        weight = self.root_weight
        total = (self.root_products * weight.unsqueeze(-1).to(self.root_products)).sum(dim=1)
        sums.append(total.reshape(-1, *self.nets.plan.root_shape).double())
        return MomentSums(tuple(sums), (*counts, weight.sum(dim=-1)))

    def regression_error(self) -> Tensor:
        """:func:`regression_error` of messages (S1A) and products (S1B).

        Other losses hardly train instruments: the limit of stage 2 does not depend on them, only its noise does.
        """
        if not self.families:
            return self.root_weight.new_zeros(())
        return regression_error([(eta[..., 1:], target[..., 1:], weight) for eta, target, weight in self.families])


def regression_error(systems: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Share of the variance of targets within classes that ridge regression on instruments does not explain.

    This is the error of networks whose last layers are in closed form. Targets are detached, so it trains instruments only.

    Args:
        systems: for several batches of separators (separators, classes, rows, m) instruments, targets, and weights of the rows,
            (separators, classes, rows).

    Returns:
        Mean over dimensions and separators, from 0 to 1, over the rows of all processes.
    """
    parts = [(eta, target.detach().to(eta), weight.unsqueeze(-1).to(eta)) for eta, target, weight in systems]
    totals = shared_sums([x for eta, target, weight in parts for x in _class_sums(eta, target, weight)])
    sums = []
    for i, (eta, target, weight) in enumerate(parts):
        eta_sum, target_sum, rows = totals[3 * i : 3 * i + 3]
        eta, target = (_within(x, total, rows, weight) for x, total in ((eta, eta_sum), (target, target_sum)))
        sums += [eta.mT @ eta, target.mT @ eta, target.square().sum(dim=1)]
    sums = shared_sums(sums)
    errors, counted = [], []
    for i in range(len(parts)):
        rows = totals[3 * i + 2].sum(dim=(1, 2)).clamp(min=1)
        gram, cross = ((x / rows[..., None]).double() for x in sums[3 * i : 3 * i + 2])
        variance = (sums[3 * i + 2] / rows).double()
        eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        factor = cholesky_factor(gram + REGRESSION_RIDGE * eye)
        explained = torch.linalg.solve_triangular(factor, cross.mT, upper=False).square().sum(dim=1)
        varying = variance > 1e-9
        errors.append(torch.where(varying, 1 - explained / variance.clamp(min=1e-9), 0.0).sum())
        counted.append(varying.sum())
    return torch.stack(errors).sum() / torch.stack(counted).sum().clamp(min=1)


def _split(cross: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Moments of messages and moments of products."""
    return cross[..., :rank, :], cross[..., rank:, :]


def _class_sums(eta: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted sums within classes of (separators, classes, rows, d) values, and sums of their (…, 1) weights."""
    return tuple((x * weight).sum(dim=2, keepdim=True) for x in (eta, target, torch.ones_like(weight)))  # type: ignore[return-value]


def _within(values: Tensor, total: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    """(separators, classes · rows, d) values, centred within classes and multiplied by the square roots of (…, 1) weights."""
    return ((values - total / rows.clamp(min=1e-9)) * weight.sqrt()).flatten(1, 2)


def _below(family: Family, leaves: LeafFeatures, messages: Mapping[int, Tensor]) -> list[list[Tensor]]:
    """Factors of the products below separators: per factor one (rows, size) tensor for each separator."""
    if family.leaf:
        return [[leaves.features[group[k]] for group in family.leaf] for k in range(len(family.sizes))]
    return [[messages[n] for n in nodes] for nodes in family.below]


class ClassLayout:
    """Rows of a batch by class, padded to the size of the largest class.

    Args:
        labels: (rows,) class of each row, -1 for rows without a class; None: all rows are of one class.
        classes: number of classes.
        rows: number of rows.
        device: device of the rows.
        weights: (rows,) weights of the rows; 1 by default.

    Attributes:
        filled: (classes, most rows) weight of the row in each place, 0 for padding.
    """

    def __init__(
        self,
        labels: Tensor | None,
        classes: int,
        rows: int,
        device: torch.device | str = "cpu",
        weights: Tensor | None = None,
    ) -> None:
        self.classes = classes
        self.index: Tensor | None = None
        row_weights = torch.ones(rows, dtype=torch.float64, device=device) if weights is None else weights
        self.filled = row_weights.unsqueeze(0)
        if labels is None:
            return
        if rows == 0:
            self.index = torch.zeros(classes, 0, dtype=torch.int64, device=labels.device)
            self.filled = row_weights.new_zeros(classes, 0)
            return
        labelled = labels >= 0
        counts = torch.bincount(labels[labelled], minlength=classes)
        most = max(1, int(counts.max()))
        order = torch.argsort(torch.where(labelled, labels, classes), stable=True)
        starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)[:-1]])
        place = torch.arange(most, device=labels.device)
        position = (starts.unsqueeze(1) + place).clamp(max=rows - 1)
        self.index = order[position]  # (classes, most)
        self.filled = (place < counts.unsqueeze(1)) * row_weights[self.index]

    def arrange(self, parts: Sequence[Tensor]) -> Tensor:
        """Several (rows, d) tensors -> (parts, classes, most rows, d)."""
        stacked = torch.stack(list(parts))  # all of one dtype: that of the networks in training, float64 otherwise
        return stacked.unsqueeze(1) if self.index is None else stacked[:, self.index]

    def weights(self, parts: Sequence[Tensor | None]) -> Tensor:
        """(rows,) weights, None for 1 -> (parts, classes, most rows), 0 for padding."""
        if all(p is None for p in parts):
            return self.filled.expand(len(parts), *self.filled.shape)
        return torch.stack(
            [self.filled if p is None else self.filled * (p if self.index is None else p[self.index]) for p in parts]
        )
