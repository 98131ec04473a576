"""Damped Gauss–Newton steps on the likelihood, with EM steps where they fail."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchpbp.models.likelihood.expectation import ExpectationStep

EM_STEPS = 3
"""EM steps before the first Gauss–Newton step."""
INFORMATION_ROWS = 4_000
"""Distinct rows from which the information is estimated."""
DAMPING, LESS, MORE = 0.1, 1 / 2.5, 4.0
"""Damping relative to the diagonal of the information at the start, and its factors after a good and a bad step."""
FLOOR = 0.003
"""Damping relative to the mean of the diagonal: keeps directions that are not identified from running off."""
LARGEST_STEP = 4.0
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

    def evaluated(tables: Tensor) -> tuple[float, Tensor]:
        log_likelihood, counts = step(tables[None])
        value = float(log_likelihood)
        if prior:
            value += prior * float(tables.clamp(min=1e-300).log().sum())
        return value, counts[0]

    value, counts = evaluated(vector)
    objective = [value]
    damping, gauss_newton = DAMPING, layout.parameters <= MOST_PARAMETERS
    converged = False
    for number in range(max_steps):
        moved, predicted = layout.maximised(counts[None], prior)[0], math.inf
        accepted: tuple[float, Tensor] | None = None
        if gauss_newton and number >= em_steps:
            system = _System(step, vector, counts, prior)
            for _ in range(2):
                change, predicted = system.solve(damping)
                trial = layout.moved(vector, change)
                accepted = evaluated(trial)
                if accepted[0] > value:
                    moved, damping = trial, damping * LESS
                    break
                damping, accepted = damping * MORE, None
                if predicted < tolerance:  # nothing left but rounding
                    break
        if accepted is None:
            accepted = evaluated(moved)
        gain = accepted[0] - value
        if not gauss_newton:
            predicted = _extrapolated(objective, gain)
        vector, value, counts = moved, *accepted
        objective.append(value)
        report()
        if gain < tolerance and predicted < tolerance:
            converged = True
            break
    return Polished(vector, tuple(objective), converged)


class _System:
    """The damped equations of one Gauss–Newton step."""

    def __init__(self, step: ExpectationStep, vector: Tensor, counts: Tensor, prior: float) -> None:
        layout = step.layout
        self.free = layout.free
        states = layout.widths[layout.group]
        gradient = counts - layout.sums(counts[None])[0] * vector + prior * (1 - states * vector)
        self.gradient = gradient[self.free]
        information = step.information(vector, INFORMATION_ROWS)
        diagonal = information.diagonal().clone()
        self.matrix = information + torch.diag(
            FLOOR * diagonal.mean() + (prior * states * vector * (1 - vector))[self.free] + 1e-9
        )
        self.diagonal = diagonal

    def solve(self, damping: float) -> tuple[Tensor, float]:
        """(entries,) change of all logits, and the gain that is predicted of it."""
        change = torch.linalg.solve(self.matrix + torch.diag(damping * self.diagonal), self.gradient)
        change = change.clamp(-LARGEST_STEP, LARGEST_STEP)
        whole = self.gradient.new_zeros(len(self.free))
        whole[self.free] = change
        return whole, float(self.gradient @ change) / 2


def _extrapolated(objective: list[float], gain: float) -> float:
    """What EM steps will still gain if each gains the same share of the one before."""
    before = objective[-1] - objective[-2] if len(objective) > 1 else math.inf
    rate = gain / before if before > gain > 0 else 0.0 if gain <= 0 else 1.0
    return math.inf if rate >= 1 else gain * rate / (1 - rate)
