"""Last layers of nets, solved in closed form: ridge regression on inputs and hidden units, in float64.

Net k of K has not seen the rows of fold k. Its head is solved on the other rows too, and one penalty per separator is chosen
by how well the K heads predict the rows that they have not seen.
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
"""Penalty where every row counts as seen, and eigenvalues of a correlation matrix that count as 0."""
ENTRIES_AT_ONCE = 1 << 24
"""Numbers in what nets are evaluated to at once."""

Targets = Callable[[TrainingRows], list[Tensor]]
"""Targets of all separators for some rows, (rows, size) each."""


@dataclass(frozen=True)
class FoldedRows:
    """Rows of this process with their folds.

    Args:
        rows: the rows.
        fold: (rows,) the fold of each.
        folds: number of folds; with one, its net sees all rows.
    """

    rows: TrainingRows
    fold: Tensor
    folds: int

    def weights(self, positions: Tensor, own: bool) -> Tensor:
        """(K, rows) weights of some rows for each net: of those in its fold, or of those it was trained on."""
        inside = self.fold[positions] == torch.arange(self.folds, device=self.rows.device).unsqueeze(1)
        return (inside if own or self.folds == 1 else ~inside) * self.rows[positions].counts

    def batches(self, nets: HiddenNets) -> Iterator[tuple[Tensor, TrainingRows]]:
        """Positions and rows, so many at a time that η of all nets fits into memory."""
        size = max(64, ENTRIES_AT_ONCE // (nets.separators * nets.folds * nets.size))
        for positions in self.rows.positions(size):
            yield positions, self.rows[positions]


@dataclass(frozen=True)
class Sums:
    """Sums over rows for S separators and K nets: rows, η, ηηᵀ, and per separator y and yηᵀ."""

    rows: Tensor
    eta: Tensor
    gram: Tensor
    y: list[Tensor]
    cross: list[Tensor]

    def over_processes(self) -> Sums:
        """Those of all processes."""
        total = sum_over_processes
        return Sums(
            total(self.rows),
            total(self.eta),
            total(self.gram),
            [total(t) for t in self.y],
            [total(t) for t in self.cross],
        )


def add(a: Sums, b: Sums) -> Sums:
    """The sums over the rows of both."""
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
    """Correlations of η in the rows that each of S·K nets was trained on, decomposed.

    Args:
        mean: (S, K, size) of η.
        basis: (S, K, size, size) takes η − mean to uncorrelated dimensions.
        values: (S, K, size) their variances; 0 for those that are rounding.
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
            sums: over the rows that the nets were trained on.
            penalty: (S,).
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
        """(S,) the candidates with which heads predict held-out rows best."""
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
    """Trained nets: each row is predicted by those that have not seen it, from complete inputs.

    Args:
        nets: hidden layers, trained.
        folded: the rows that they were trained on.
        targets: what the heads predict.
        heads: last layers that were trained with the nets, per separator (K, outputs, size): training that stops early
            shrinks them better than a ridge does.

    Attributes:
        penalties: (S,) the best ones for heads that are solved for.
    """

    def __init__(self, nets: HiddenNets, folded: FoldedRows, targets: Targets, heads: list[Tensor]) -> None:
        self.nets, self.folded, self.heads = nets, folded, heads
        with torch.no_grad():
            others, own = self._sums(targets)
            correlations = Correlations.of(others)
            self.penalties = correlations.values.new_full((nets.separators,), NEGLIGIBLE)
            if folded.folds > 1:
                self.penalties = correlations.best_penalties(others, own)

    def _sums(self, targets: Targets) -> tuple[Sums, Sums]:
        """Sums over the rows that nets were trained on, and over those of their own folds."""
        folded, both = self.folded, []
        for positions, part in folded.batches(self.nets):
            eta, y = self.eta(part), targets(part)
            both.append([sums_of(eta, y, folded.weights(positions, own)) for own in (False, True)[: folded.folds]])
            both[:] = [[add(*pair) for pair in zip(*both, strict=True)]] if len(both) > 1 else both
        totals = [total.over_processes() for total in both[0]]
        return totals[0], totals[-1]

    def eta(self, rows: TrainingRows, seen: Tensor | None = None) -> Tensor:
        """(S, K, size, rows) what heads look at."""
        device = self.nets.inputs.where.device
        there = rows.to(device)
        mask = None if seen is None else seen.to(device)
        with torch.no_grad():
            return self.nets.eta(self.nets.inputs.of_rows(there, self.nets.dtype, mask)).to(rows.device)

    def predict(self, rows: TrainingRows, positions: Tensor) -> list[Tensor]:
        result: list[list[Tensor]] = []
        fold = self.folded.fold[positions]
        size = max(64, ENTRIES_AT_ONCE // (self.nets.separators * self.nets.folds * self.nets.size))
        for part in rows.positions(size):
            eta = self.eta(rows[part])  # (S, K, size, rows)
            index = fold[part].expand(len(eta), 1, *eta.shape[2:])
            own = eta.gather(1, index).squeeze(1)
            chosen = [h.flatten(0, 1) for h in self.heads]
            outputs = []
            for h, e in zip(chosen, own, strict=True):
                every = (h @ e).reshape(self.nets.folds, -1, len(part))
                outputs.append(every.gather(0, fold[part].expand(1, *every.shape[1:])).squeeze(0).T)
            result.append(outputs)
        return [torch.cat(parts) for parts in zip(*result, strict=True)]
