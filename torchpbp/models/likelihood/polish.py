"""Damped Gauss–Newton steps on the likelihood, with EM steps where they fail."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torchpbp.models.likelihood.expectation import ExpectationStep

EM_STEPS = 2
"""EM steps before the first Gauss–Newton step."""
INFORMATION_ROWS, ROWS_PER_PARAMETER = 1_000, 4
"""Rows from which the information is estimated: so many, or so many for each parameter."""
DAMPING, LESS, MORE = 0.1, 1 / 2.5, 4.0
"""Damping relative to the diagonal of the information at the start, and its factors after a good and a bad step."""
MOST_DAMPING = 0.1
"""It never grows beyond what it starts with: a shorter step, or one of EM, does more then."""
FIRM = 1.0
"""Damping, relative to the diagonal of the information, of the way back from a step that went too far."""
LEAST_BEND = 0.01
"""Share of the predicted curvature below which a change of the gradient is not remembered."""
FLOOR, PREDICTED = 0.003, 0.1
"""Damping relative to the mean of the diagonal, which keeps directions that are not identified from running off, and the share of
it in predictions of what is left to gain."""
REUSE = 0.5
"""Change of the logits, added up over steps, up to which the information is not computed anew."""
MEMORY = 20
"""Steps whose changes of the gradient are remembered."""
LARGEST_STEP = 1.0
"""Most that a logit changes in a step."""
MOST_PARAMETERS = 4_000
"""Free parameters up to which the information is a matrix that can be solved; with more, EM steps go on."""
TOLERANCE = 0.01
"""Nats in total below which gains, made and predicted, end the steps."""


@dataclass(frozen=True)
class Polished:
    """The end of a climb.

    Args:
        vector: (entries,) tables.
        objective: log-likelihood plus prior's term after each step, in nats in total.
        converged: whether both the last and the predicted gain were below the tolerance.
    """

    vector: Tensor
    objective: tuple[float, ...]
    converged: bool


class _Point(NamedTuple):
    """Tables, their objective, and the expected counts."""

    value: float
    vector: Tensor
    counts: Tensor


def polish(
    step: ExpectationStep,
    vector: Tensor,
    prior: float,
    tolerance: float = TOLERANCE,
    max_steps: int = 100,
    em_steps: int = EM_STEPS,
    report: Callable[[], object] = lambda: None,
) -> Polished:
    """Climb from a start to a maximum of log-likelihood + prior · Σ log θ.

    Args:
        step: the E-step over the rows.
        vector: (entries,) tables to start from.
        prior: pseudo-rows per entry.
        tolerance: nats in total.
        max_steps: EM and Gauss–Newton steps, at most.
        em_steps: EM steps to begin with.
        report: called after each step.
    """
    layout = step.layout

    def point(tables: Tensor) -> _Point:
        log_likelihood, counts = step(tables[None])
        value = float(log_likelihood)
        if prior:
            value += prior * float(tables.clamp(min=1e-300).log().sum())
        return _Point(value, tables, counts[0])

    here = point(vector)
    objective = [here.value]
    newton = _Newton(step, prior) if layout.parameters <= MOST_PARAMETERS else None
    converged = False
    for number in range(max_steps):
        left, ahead = math.inf, None
        if newton is not None and number >= em_steps:
            left = newton.look(here)
            change = newton.step()
            ahead = point(layout.moved(here.vector, change))
            if ahead.value <= here.value and left >= tolerance:  # below that, it is rounding
                change = change / 2 + newton.correction(ahead) / 4
                ahead = point(layout.moved(here.vector, change))
            if ahead.value > here.value:
                newton.succeeded(change, ahead.value - here.value)
            else:
                ahead = None
                newton.failed()
        if ahead is None:
            ahead = point(layout.maximised(here.counts[None], prior)[0])
        gain = ahead.value - here.value
        if newton is None:
            left = _extrapolated(objective, gain)
        here = ahead
        objective.append(here.value)
        report()
        if gain < tolerance and left < tolerance:
            converged = True
            break
    return Polished(here.vector, tuple(objective), converged)


class _Newton:
    """Damped Gauss–Newton steps in the free logits, corrected by the gradients' changes in the last steps (L-BFGS).

    The information of the rows stands for the curvature; where a latent has an arbitrary basis, the objective bends along the
    directions that it leaves open, and the corrections keep steps from failing there.
    """

    def __init__(self, step: ExpectationStep, prior: float) -> None:
        self.expectation, self.prior, self.layout = step, prior, step.layout
        self.free = self.layout.free
        self.damping, self.drift = DAMPING, math.inf
        self.pairs: list[tuple[Tensor, Tensor]] = []  # changes of the logits and of the gradient, with its sign turned
        self.gradient = self.diagonal = self.matrix = self.root = self.factor = torch.empty(
            0, device=self.layout.device
        )
        self.change: Tensor | None = None

    def look(self, here: _Point) -> float:
        """Take the gradient, and the information where it has changed, at the present tables.

        Returns:
            The gain that is predicted of a step without damping.
        """
        vector, gradient = here.vector, self._gradient(here)
        if self.change is not None:
            bend = self.gradient - gradient
            if float(bend @ self.change) > LEAST_BEND * float(self.change @ self.matrix @ self.change):
                self.pairs = [*self.pairs[1 - MEMORY :], (self.change, bend)]
        self.gradient, self.change = gradient, None
        if self.drift > REUSE:
            rows = max(INFORMATION_ROWS, ROWS_PER_PARAMETER * self.layout.parameters)
            information = self.expectation.information(vector, rows)
            diagonal = information.diagonal()
            states = self.layout.widths[self.layout.group]
            prior = (self.prior * states * vector * (1 - vector))[self.free]
            floor = FLOOR * diagonal.mean()
            self.matrix = information + torch.diag(floor + prior + 1e-9)
            self.diagonal, self.drift = diagonal.clone(), 0.0
            self.root = torch.linalg.cholesky(information + torch.diag(PREDICTED * floor + prior + 1e-9))
        return float(torch.linalg.solve_triangular(self.root, gradient[:, None], upper=False).square().sum()) / 2

    def step(self) -> Tensor:
        """(entries,) change of all logits."""
        self.factor = torch.linalg.cholesky(self.matrix + torch.diag(self.damping * self.diagonal))
        direction, shares = self.gradient, []
        for change, bend in reversed(self.pairs):
            share = float(change @ direction) / float(change @ bend)
            direction = direction - share * bend
            shares.append(share)
        direction = torch.cholesky_solve(direction[:, None], self.factor)[:, 0]
        for (change, bend), share in zip(self.pairs, reversed(shares), strict=True):
            direction = direction + (share - float(bend @ direction) / float(change @ bend)) * change
        return self._whole(direction.clamp(-LARGEST_STEP, LARGEST_STEP))

    def correction(self, ahead: _Point) -> Tensor:
        """(entries,) change of all logits that leads from the end of a step back to where the objective is high.

        Directions of little information are curved: a long step along them leaves the valley. From where it ends, the
        gradient leads back in the directions of much information.
        """
        gradient = self._gradient(ahead)
        strong = torch.linalg.cholesky(self.matrix + torch.diag(FIRM * self.diagonal))
        direction = torch.cholesky_solve(gradient[:, None], strong)[:, 0]
        return self._whole(direction.clamp(-LARGEST_STEP, LARGEST_STEP))

    def _gradient(self, at: _Point) -> Tensor:
        """(free,) derivatives of the objective by the free logits."""
        states = self.layout.widths[self.layout.group]
        gradient = at.counts - self.layout.sums(at.counts[None])[0] * at.vector + self.prior * (1 - states * at.vector)
        return gradient[self.free]

    def _whole(self, direction: Tensor) -> Tensor:
        whole = direction.new_zeros(len(self.free))
        whole[self.free] = direction
        return whole

    def succeeded(self, change: Tensor, gain: float) -> None:
        """Less damping after a step that gained what was predicted, more after one that gained a small share of it."""
        self.change = change[self.free]
        share = 2 * gain / max(float(self.gradient @ self.change), 1e-12)
        self.damping *= LESS if share > 0.5 else 1.0 if share > 0.2 else MORE
        self.damping = min(self.damping, MOST_DAMPING)
        self.drift += float(self.change.abs().max())

    def failed(self) -> None:
        """More damping, without corrections, and with the information of where the next step begins."""
        self.damping = min(self.damping * MORE, MOST_DAMPING)
        self.pairs, self.drift = [], math.inf


def _extrapolated(objective: list[float], gain: float) -> float:
    """What EM steps will still gain if each gains the same share of the one before."""
    before = objective[-1] - objective[-2] if len(objective) > 1 else math.inf
    rate = gain / before if before > gain > 0 else 0.0 if gain <= 0 else 1.0
    return math.inf if rate >= 1 else gain * rate / (1 - rate)
