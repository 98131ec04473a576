"""Two ways down: multiplicative steps on probability tables, and Adam on operators or on logits of tables.

Both change a model in place, one pass over the rows at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from torchpbp.inputs.evidence import Evidence
from torchpbp.models.refinement.nonnegative import normalised, prior_row, table_rows
from torchpbp.models.refinement.objectives import JointLikelihood, Objective, negative_share, random_cells
from torchpbp.models.two_stage_model import TwoStageModel

PENALTY_CELLS = 256
"""Random cells per mini-batch on which negative mass is penalised."""
LARGEST_GRADIENT = 1.0
LEAST_ENTRY = 1e-12
"""Logarithms of tables stop here."""


class Descent(Protocol):
    """One pass over the training rows."""

    def sweep(self) -> float:
        """Change the model and return the mean loss; NaN or infinity if it went wrong."""


class MultiplicativeSteps:
    """Likelihood steps without a learning rate, for models of non-negative tables.

    ∂ log P(rows) / ∂ log W is the expected count of each entry of W, so W ← W ∘ ∂/∂W, normalised, never lowers the
    likelihood and never leaves the non-negative tables: EM on the tree's hidden states. It is slow where states overlap,
    so two steps predict a third, longer one [Varadhan and Roland 2008, SQUAREM], taken in logarithms, where tables
    cannot become negative, and only if the likelihood agrees.

    Args:
        model: in non-negative form; changed in place.
        rows: to learn from. Equal rows are counted, not repeated.
        batch_size: rows handled at once; bounds the memory used.
        prior: pseudo-rows added to each distribution, half spread like the table's average row, half evenly.
    """

    def __init__(self, model: TwoStageModel, rows: Evidence, batch_size: int, prior: float) -> None:
        self.model, self.prior = model, prior
        self.objective = JointLikelihood()
        distinct, counts = distinct_rows(rows)
        self.batches = [
            (distinct.rows(slice(i, i + batch_size)), counts[i : i + batch_size])
            for i in range(0, distinct.batch, batch_size)
        ]
        self.total = float(counts.sum())

    def sweep(self) -> float:
        """Three passes: two steps, and a third from the point they lead to or, if that is worse, after them."""
        start = self._logs()
        first_loss = self._step()
        once = self._logs()
        once_loss = self._step()
        twice = self._logs()
        change = [b - a for a, b in zip(start, once, strict=True)]
        bend = [(c - b) - d for b, c, d in zip(once, twice, change, strict=True)]
        length = _norm(change) / max(_norm(bend), torch.finfo(torch.float64).tiny)
        if length > 1 and math.isfinite(once_loss):
            self._put([a + 2 * length * d + length**2 * v for a, d, v in zip(start, change, bend, strict=True)])
            if self._step() <= once_loss:
                return first_loss / self.total
            self._put(twice)
        self._step()
        return first_loss / self.total

    def _step(self) -> float:
        """Renew all tables from expected counts; returns the loss of the tables before."""
        operators = self.model.operator_tree.operators
        counts = [torch.zeros_like(w) for w in operators]
        total = 0.0
        for rows, weights in self.batches:
            with torch.enable_grad():
                costs = -self.objective.log_mass(self.model, rows)  # tables need no normalising
                loss = (costs * weights.to(costs)).sum()
                gradients = torch.autograd.grad(loss, operators)
            total += float(loss.detach())
            for count, w, g in zip(counts, operators, gradients, strict=True):
                count -= (w * g).detach()
        with torch.no_grad():
            for node, (weight, count) in enumerate(zip(operators, counts, strict=True)):
                found = table_rows(count.clamp(min=0), node)
                found = found + (self.prior + torch.finfo(found.dtype).tiny) * prior_row(found)
                weight.copy_(normalised(found).reshape(weight.shape))
        return total

    def _logs(self) -> list[Tensor]:
        return [w.detach().clamp(min=LEAST_ENTRY).log() for w in self.model.operator_tree.operators]

    @torch.no_grad()
    def _put(self, logs: Sequence[Tensor]) -> None:
        for node, (weight, log) in enumerate(zip(self.model.operator_tree.operators, logs, strict=True)):
            weight.copy_(torch.softmax(table_rows(log, node), dim=1).clamp(min=LEAST_ENTRY).reshape(weight.shape))


class GradientSteps:
    """Adam on any objective, in shuffled mini-batches.

    Args:
        model: changed in place. In non-negative form it descends on logits, so that tables stay tables.
        objective: what to minimise.
        rows: to learn from.
        batch_size: rows per step.
        learning_rate: of Adam.
        penalty: weight of negative mass over random evidence; only signed operators can have any.
        nonnegative: whether the model is in non-negative form.
        seed: of shuffling and random evidence.
    """

    def __init__(
        self,
        model: TwoStageModel,
        objective: Objective,
        rows: Evidence,
        batch_size: int,
        learning_rate: float,
        penalty: float,
        nonnegative: bool,
        seed: int,
    ) -> None:
        self.model, self.objective, self.rows, self.batch_size = model, objective, rows, batch_size
        self.penalty = 0.0 if nonnegative else penalty
        if nonnegative:
            parametrize.register_parametrization(model.root, "weight", Simplex(0))
            for node, operator in enumerate(model.separator_operators, start=1):
                parametrize.register_parametrization(operator, "weight", Simplex(node))
        self.parameters = [*model.root.parameters(), *(p for op in model.separator_operators for p in op.parameters())]
        self.optimiser = torch.optim.Adam(self.parameters, lr=learning_rate)
        self.generator = torch.Generator().manual_seed(seed)

    def sweep(self) -> float:
        order = torch.randperm(self.rows.batch, generator=self.generator)
        total = 0.0
        for start in range(0, len(order), self.batch_size):
            rows = take(self.rows, order[start : start + self.batch_size])
            with torch.enable_grad():
                loss = self.objective.loss(self.model, rows, self.generator).mean()
                total += float(loss.detach()) * rows.batch
                if self.penalty:
                    cells = random_cells(self.model, PENALTY_CELLS, self.generator)
                    loss = loss + self.penalty * negative_share(self.model, cells)
                if not bool(loss.isfinite()):
                    return math.nan
                self.optimiser.zero_grad()
                torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(self.parameters, LARGEST_GRADIENT)
            self.optimiser.step()
        return total / self.rows.batch


class Simplex(nn.Module):
    """Tables as softmax of logits: the root is one distribution, another operator one per state of its message."""

    def __init__(self, node: int) -> None:
        super().__init__()
        self.node = node

    def forward(self, logits: Tensor) -> Tensor:
        return torch.softmax(table_rows(logits, self.node), dim=1).reshape(logits.shape)

    def right_inverse(self, table: Tensor) -> Tensor:
        return table.clamp(min=torch.finfo(table.dtype).tiny).log()


def take(rows: Evidence, chosen: Tensor) -> Evidence:
    """Rows by number."""
    hard = {v: x[chosen.to(x.device)] for v, x in rows.hard.items()}
    real = {v: x[chosen.to(x.device)] for v, x in rows.real.items()}
    return Evidence(len(chosen), hard, {}, real)


def distinct_rows(rows: Evidence) -> tuple[Evidence, Tensor]:
    """Different rows of states, in random order of first sight, and how often each occurs."""
    names = list(rows.hard)
    found, counts = torch.unique(torch.stack([rows.hard[v] for v in names], dim=1), dim=0, return_counts=True)
    # Sorted rows would put one state of the first variable into the first mini-batch.
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(0)).to(found.device)
    columns: Sequence[Tensor] = found[order].unbind(dim=1)
    return Evidence(len(found), dict(zip(names, columns, strict=True))), counts[order]


def _norm(tensors: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(t.square().sum()) for t in tensors))
