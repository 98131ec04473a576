"""Damped Gauss–Newton steps on the likelihood, with EM steps after failures."""

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
INFORMATION_ROWS, ROWS_PER_PARAMETER, MORE_ROWS = 1_000, 4, 1.5
"""Initial rows for the estimate of the information, the larger of a number and a number per parameter; and their factor after a
step with a much smaller gain than predicted."""
DAMPING, LEAST, MOST, AFTER_FAILURE = 0.01, 1 / 3, 3.0, 4.0
"""Initial damping, bounds of its factor after a successful step, and its factor after a failure, which doubles with each
consecutive failure."""
SMALL_SHARE = 0.3
"""Share of the predicted gain below which the next estimates of the information have more rows."""
FLOOR, UNSEEN = 0.3, 1e-4
"""Shares of the mean of the information's diagonal that are added to it for unidentified directions: in damping, and in
predictions of the remaining gain."""
LONGEST, REUSE = 0.5, 0.1
"""Largest length of a step, and largest total length of steps with the same information. The length of a step is the root mean
square of the relative changes of entries, in the distribution that changes most."""
LEAST_BEND = 0.01
"""Smallest share of the expected curvature at which a change of the gradient corrects the matrix."""
MOST_TRIES = 6
"""Largest number of Cholesky factorisations with increasing diagonals."""
MOST_FAILURES = 3
"""Consecutive failures of Gauss–Newton steps before an EM step, which cannot fail."""
MOST_PARAMETERS = 4_000
"""Largest number of free parameters for Gauss–Newton steps; with more, all steps are EM steps."""
TOLERANCE = 0.01
"""Default tolerance of the last and the predicted gain, in nats in total."""


@dataclass(frozen=True)
class Polished:
    """Result of :func:`polish`.

    Args:
        vector: (entries,) tables.
        objective: log-likelihood plus log-prior after each step, in nats in total.
        converged: whether both the last and the predicted gain were below the tolerance.
    """

    vector: Tensor
    objective: tuple[float, ...]
    converged: bool


class _Point(NamedTuple):
    """An objective with its tables and expected counts."""

    value: float
    vector: Tensor
    counts: Tensor


def polish(
    step: ExpectationStep,
    vector: Tensor,
    prior: float,
    tolerance: float,
    max_steps: int,
    report: Callable[[], object] = lambda: None,
) -> Polished:
    """Climb from a start to a maximum of log-likelihood + prior · Σ log θ.

    Args:
        step: the E-step over the rows.
        vector: (entries,) tables to start from.
        prior: pseudo-rows per entry.
        tolerance: nats in total.
        max_steps: largest number of EM and Gauss–Newton steps, including failures.
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
    failures, converged = 0, False
    for number in range(max_steps):
        left = math.inf
        if newton is None or number < EM_STEPS or failures == MOST_FAILURES:
            ahead = point(layout.maximised(here.counts[None], prior)[0])
            failures = 0
            if newton is None:
                left = _extrapolated(objective, ahead.value - here.value)
            else:
                newton.drift = math.inf
        else:
            left = newton.look(here)
            ahead = point(layout.moved(here.vector, newton.step()))
            if newton.judge(ahead.value - here.value):
                failures = 0
            else:
                ahead, failures = here, failures + 1
        gain = ahead.value - here.value
        if ahead is not here:
            here = ahead
            objective.append(here.value)
        report()
        if gain < tolerance and left < tolerance:
            converged = True
            break
    return Polished(here.vector, tuple(objective), converged)


class _Newton:
    """Gauss–Newton steps in the free logits, with the empirical information in place of the curvature.

    For weakly identified latents the objective has long, curved valleys. Tables therefore move along straight lines in
    probabilities, θ (1 + δ), instead of logits, θ e^δ: a change of a latent's basis multiplies adjacent tables by
    matrices, which straight lines approximate longer. The information changes quickly along a valley, so it is recomputed
    after each long step, from a sample of the rows that grows when gains are smaller than predicted; between short steps it
    is corrected by changes of the gradient (BFGS).
    """

    def __init__(self, step: ExpectationStep, prior: float) -> None:
        self.expectation, self.prior, self.layout = step, prior, step.layout
        self.damping, self.factor = DAMPING, AFTER_FAILURE
        self.rows = float(max(INFORMATION_ROWS, ROWS_PER_PARAMETER * self.layout.parameters))
        self.here: _Point | None = None
        self.left = self.predicted = self.length = 0.0
        self.drift = math.inf
        self.gradient = self.diagonal = self.matrix = torch.empty(0, device=self.layout.device)

    def look(self, here: _Point) -> float:
        """Compute gradient and information at the current tables.

        Returns:
            The predicted gain of a step without damping.
        """
        if here is self.here and self.drift <= REUSE:
            return self.left
        gradient = self._gradient(here)
        if self.here is not None and self.drift <= REUSE:
            self._correct(
                self.layout.logits(here.vector) - self.layout.logits(self.here.vector), self.gradient - gradient
            )
        else:
            information = self.expectation.information(here.vector, int(self.rows), torch.float32)
            self.diagonal = information.diagonal().clone()
            self.matrix = (
                information + self.prior * self.layout.prior_curvature(here.vector) if self.prior else information
            )
            self.drift = 0.0
        self.here, self.gradient = here, gradient
        self.left = float(gradient @ self._solved(UNSEEN * self.diagonal.mean())) / 2
        return self.left

    def step(self) -> Tensor:
        """(entries,) relative changes of all probabilities."""
        assert self.here is not None  # set by look()
        direction = self._solved(self.damping * (self.diagonal + FLOOR * self.diagonal.mean()))
        change = self.layout.relative(self.here.vector, direction)
        length = float(self.layout.sums((self.here.vector * change.square())[None]).amax().sqrt())
        scale = LONGEST / max(length, LONGEST)
        self.length = scale * length
        slope, bend = float(self.gradient @ direction), float(direction @ self.matrix @ direction)
        self.predicted = scale * slope - scale * scale * bend / 2
        return scale * change

    def judge(self, gain: float) -> bool:
        """Whether the last step has a positive gain; also updates the damping by Nielsen's rule."""
        share = gain / max(self.predicted, 1e-12)
        if gain > 0:
            self.damping *= min(max(1 - (2 * share - 1) ** 3, LEAST), MOST)
            self.factor = AFTER_FAILURE
        else:
            self.damping *= self.factor
            self.factor *= 2
        if share < SMALL_SHARE:
            self.rows *= MORE_ROWS
        if gain > 0:
            self.drift += self.length
        elif self.drift:  # the information was computed at other tables
            self.drift = math.inf
        return gain > 0

    def _gradient(self, at: _Point) -> Tensor:
        """(free,) gradient of the objective in the free logits."""
        gradient = at.counts - self.layout.sums(at.counts[None])[0] * at.vector
        if self.prior:
            gradient = gradient + self.prior * (1 - self.layout.states * at.vector)
        return gradient.index_select(0, self.layout.places)

    def _correct(self, change: Tensor, bend: Tensor) -> None:
        """BFGS update of the matrix from a change of the logits and the negative change of the gradient."""
        expected = self.matrix @ change
        share, curvature = float(expected @ change), float(bend @ change)
        if curvature > LEAST_BEND * share > 0:
            self.matrix = self.matrix + torch.outer(bend, bend) / curvature - torch.outer(expected, expected) / share

    def _solved(self, damping: Tensor) -> Tensor:
        """(free,) change of the logits by the damped matrix; the damping grows until the matrix is positive definite in
        floating point."""
        for _ in range(MOST_TRIES):
            damped = self.matrix.clone()
            damped.diagonal().add_(damping + 1e-9)
            factor, failed = torch.linalg.cholesky_ex(damped)
            if not failed:
                break
            damping = 10 * damping + UNSEEN * self.diagonal.mean()
        return torch.cholesky_solve(self.gradient[:, None], factor)[:, 0]


def _extrapolated(objective: list[float], gain: float) -> float:
    """The remaining gain of EM steps if successive gains form a geometric series."""
    before = objective[-1] - objective[-2] if len(objective) > 1 else math.inf
    rate = gain / before if before > gain > 0 else 0.0 if gain <= 0 else 1.0
    return math.inf if rate >= 1 else gain * rate / (1 - rate)
