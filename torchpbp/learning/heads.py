"""Last layers of networks, solved in closed form: ridge regression on inputs and hidden units, in float64.

Network k of K is trained without the rows of fold k. Its head is solved on the same rows, and one penalty per separator is chosen
by the error of the K heads on their held-out folds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchpbp.distributed import sum_over_processes
from torchpbp.learning.nets import HiddenNets
from torchpbp.learning.regressions import Predictor
from torchpbp.moments.rows import TrainingRows

PENALTIES = (1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
"""Candidates for the penalty of a head, for inputs and hidden units of unit variance."""
NEGLIGIBLE = 1e-12
"""Penalty without held-out folds, and threshold of zero eigenvalues of a correlation matrix."""
ENTRIES_AT_ONCE = 1 << 24
"""Largest number of entries of η computed at once."""

Targets = Callable[[TrainingRows], list[Tensor]]
"""Targets of all separators for some rows, (rows, size) each."""


@dataclass(frozen=True)
class FoldedRows:
    """Rows of this process with their folds.

    Args:
        rows: the rows.
        fold: (rows,) index of each row's fold.
        folds: number of folds; a single network is trained on all rows.
    """

    rows: TrainingRows
    fold: Tensor
    folds: int

    def weights(self, positions: Tensor, own: bool) -> Tensor:
        """(K, rows) weights of some rows for each network: nonzero in its fold (``own``), or in its training rows."""
        inside = self.fold[positions] == torch.arange(self.folds, device=self.rows.device).unsqueeze(1)
        return (inside if own or self.folds == 1 else ~inside) * self.rows[positions].counts

    def batches(self, nets: HiddenNets) -> Iterator[tuple[Tensor, TrainingRows]]:
        """Positions and rows, in batches whose η of all networks fits into memory."""
        size = max(64, ENTRIES_AT_ONCE // (nets.separators * nets.folds * nets.size))
        for positions in self.rows.positions(size):
            yield positions, self.rows[positions]


@dataclass(frozen=True)
class Sums:
    """Sums over rows for S separators and K networks: weights, η, ηηᵀ, and per separator y and yηᵀ."""

    rows: Tensor
    eta: Tensor
    gram: Tensor
    y: list[Tensor]
    cross: list[Tensor]

    def over_processes(self) -> Sums:
        """The sums of all processes."""
        total = sum_over_processes
        return Sums(
            total(self.rows),
            total(self.eta),
            total(self.gram),
            [total(t) for t in self.y],
            [total(t) for t in self.cross],
        )


def add(a: Sums, b: Sums) -> Sums:
    """Sums over the rows of both arguments."""
    return Sums(
        a.rows + b.rows,
        a.eta + b.eta,
        a.gram + b.gram,
        [x + y for x, y in zip(a.y, b.y, strict=True)],
        [x + y for x, y in zip(a.cross, b.cross, strict=True)],
    )


def sums_of(eta: Tensor, y: Sequence[Tensor], weights: Tensor) -> Sums:
    """Sums over some rows.

    Args:
        eta: (S, K, size, rows).
        y: per separator (rows, outputs).
        weights: (K, rows).
    """
    weighted = eta * weights.unsqueeze(1)
    return Sums(
        weights.sum(dim=1),
        weighted.sum(dim=-1),
        weighted @ eta.mT,
        [weights @ t for t in y],
        [t.T @ w.mT for t, w in zip(y, weighted, strict=True)],
    )


@dataclass(frozen=True)
class Correlations:
    """Decomposed correlations of η in the training rows of each of S·K networks.

    Args:
        mean: (S, K, size) mean of η.
        basis: (S, K, size, size) matrix that maps η − mean to uncorrelated dimensions.
        values: (S, K, size) variances of these dimensions; 0 for rounding errors.
    """

    mean: Tensor
    basis: Tensor
    values: Tensor

    @classmethod
    def of(cls, sums: Sums) -> Correlations:
        count = sums.rows[:, None].clamp(min=1e-300)
        mean = sums.eta / count
        covariance = sums.gram / count.unsqueeze(-1) - mean.unsqueeze(-1) * mean.unsqueeze(-2)
        variance = covariance.diagonal(dim1=-2, dim2=-1)
        square = (sums.gram / count.unsqueeze(-1)).diagonal(dim1=-2, dim2=-1)
        scale = torch.where(variance > NEGLIGIBLE * square, variance.clamp(min=1e-300).rsqrt(), 0.0)
        values, vectors = torch.linalg.eigh(scale.unsqueeze(-1) * covariance * scale.unsqueeze(-2))
        values = torch.where(values > NEGLIGIBLE * values.amax(dim=-1, keepdim=True), values, 0.0)
        return cls(mean, scale.unsqueeze(-1) * vectors, values)

    def shrunk(self, penalty: Tensor) -> Tensor:
        """(…, S, K, size) factors of ridge regression, given penalties of shape (…, S, 1, 1)."""
        return torch.where(self.values > 0, 1 / (self.values + penalty).clamp(min=1e-300), 0.0)

    def heads(self, sums: Sums, penalty: Tensor, constant: int) -> list[Tensor]:
        """Heads of all separators, (K, outputs, size) each.

        Args:
            sums: sums over the training rows of the networks.
            penalty: (S,) penalties.
            constant: position of the constant in η, whose weight is the intercept.
        """
        result, count = [], sums.rows[:, None]
        factors = self.shrunk(penalty[:, None, None])
        for s, (total, cross) in enumerate(zip(sums.y, sums.cross, strict=True)):
            mean = total / count  # (K, outputs)
            centred = cross / count.unsqueeze(-1) - mean.unsqueeze(-1) * self.mean[s].unsqueeze(-2)
            weight = (centred @ self.basis[s] * factors[s].unsqueeze(-2)) @ self.basis[s].mT
            weight[..., constant] += mean - (weight @ self.mean[s].unsqueeze(-1)).squeeze(-1)
            result.append(weight)
        return result

    def best_penalties(self, sums: Sums, held_out: Sums) -> Tensor:
        """(S,) candidates with the smallest error of heads on held-out rows."""
        candidates = self.values.new_tensor(PENALTIES)
        factors = self.shrunk(candidates[:, None, None, None])  # (candidates, S, K, size)
        chosen, count = [], sums.rows[:, None]
        rows = held_out.rows[:, None, None]
        for s, (total, cross) in enumerate(zip(sums.y, sums.cross, strict=True)):
            mean, basis = total / count, self.basis[s]
            b = (cross / count.unsqueeze(-1) - mean.unsqueeze(-1) * self.mean[s].unsqueeze(-2)) @ basis
            # Sums over held-out rows of (y − ȳ)(η − η̄)ᵀ and (η − η̄)(η − η̄)ᵀ, with the means of the other rows.
            y, eta = held_out.y[s].unsqueeze(-1), held_out.eta[s].unsqueeze(-2)
            my, me = mean.unsqueeze(-1), self.mean[s].unsqueeze(-2)
            q = (held_out.cross[s] - y * me - my * eta + rows * my * me) @ basis
            p = basis.mT @ (held_out.gram[s] - eta.mT * me - me.mT * eta + rows * me.mT * me) @ basis
            shrunk = b * factors[:, s].unsqueeze(-2)  # (candidates, K, outputs, size)
            error = ((shrunk @ p) * shrunk).sum(dim=(1, 2, 3)) - 2 * (shrunk * q).sum(dim=(1, 2, 3))
            chosen.append(candidates[error.argmin()])
        return torch.stack(chosen)


class HeadPredictor(Predictor):
    """Out-of-fold predictions of trained networks, from complete inputs.

    Args:
        nets: trained hidden layers.
        folded: training rows.
        targets: targets of the heads.
        heads: last layers trained with the networks, per separator (K, outputs, size): early stopping regularises them better
            than a ridge penalty.

    Attributes:
        penalties: (S,) best penalties of heads in closed form.
    """

    def __init__(self, nets: HiddenNets, folded: FoldedRows, targets: Targets, heads: list[Tensor]) -> None:
        self.nets, self.folded, self.heads = nets, folded, heads
        with torch.no_grad():
            others, held_out = self._sums(targets)
            correlations = Correlations.of(others)
            self.penalties = correlations.values.new_full((nets.separators,), NEGLIGIBLE)
            if folded.folds > 1:
                self.penalties = correlations.best_penalties(others, held_out)

    def _sums(self, targets: Targets) -> tuple[Sums, Sums]:
        """Sums over the training rows of the networks, and over their held-out folds."""
        folded, both = self.folded, []
        for positions, part in folded.batches(self.nets):
            eta, y = self.eta(part), targets(part)
            both.append([sums_of(eta, y, folded.weights(positions, own)) for own in (False, True)[: folded.folds]])
            both[:] = [[add(*pair) for pair in zip(*both, strict=True)]] if len(both) > 1 else both
        totals = [total.over_processes() for total in both[0]]
        return totals[0], totals[-1]

    def eta(self, rows: TrainingRows, seen: Tensor | None = None) -> Tensor:
        """(S, K, size, rows) inputs of the heads."""
        device = self.nets.inputs.where.device
        moved = rows.to(device)
        mask = None if seen is None else seen.to(device)
        with torch.no_grad():
            return self.nets.eta(self.nets.inputs.of_rows(moved, self.nets.dtype, mask)).to(rows.device)

    def predict(self, rows: TrainingRows, positions: Tensor) -> list[Tensor]:
        result: list[list[Tensor]] = []
        fold = self.folded.fold[positions]
        size = max(64, ENTRIES_AT_ONCE // (self.nets.separators * self.nets.folds * self.nets.size))
        for part in rows.positions(size):
            eta = self.eta(rows[part])  # (S, K, size, rows)
            index = fold[part].expand(len(eta), 1, *eta.shape[2:])
            out_of_fold = eta.gather(1, index).squeeze(1)
            chosen = [h.flatten(0, 1) for h in self.heads]
            outputs = []
            for h, e in zip(chosen, out_of_fold, strict=True):
                every = (h @ e).reshape(self.nets.folds, -1, len(part))
                outputs.append(every.gather(0, fold[part].expand(1, *every.shape[1:])).squeeze(0).T)
            result.append(outputs)
        return [torch.cat(parts) for parts in zip(*result, strict=True)]
