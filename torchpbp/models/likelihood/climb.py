"""Maximisation of the likelihood: a start recovered from moments or by a race of random starts, and Gauss–Newton steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchpbp.distributed import sum_over_processes
from torchpbp.models.likelihood.expectation import ExpectationStep
from torchpbp.models.likelihood.moments import FormMoments
from torchpbp.models.likelihood.polish import TOLERANCE, Polished, polish
from torchpbp.models.likelihood.recovery import LatentStart, Recovery
from torchpbp.models.likelihood.residuals import PairResiduals, pair_residuals

if TYPE_CHECKING:
    from torchpbp.models.likelihood.learner import MaximumLikelihoodSettings

MOMENT_ROWS = 20_000
"""Largest number of distinct rows of the moments for recovery and for residuals of pairs."""
SMOOTHING = 1.0
"""A climb with a smaller prior starts with this prior, whose objective has fewer maxima."""
MISFIT = 2.0
"""Largest misfit of pairs at which the recovered start is used alone: moments of rows that the graph does not fit may lead to a
lower maximum."""
RIVAL_ENTRIES = 1 << 24
"""Limit of the entries of all messages of rivals, which bounds their number."""


class Race(NamedTuple):
    """A race of starts by successive halving.

    Args:
        starts: number of starts.
        rows: of the first round; they double in each round.
        em_steps: of each round.
        finalists: number of winners.
    """

    starts: int
    rows: int
    em_steps: int
    finalists: int

    def winners(self, step: ExpectationStep, starts: Sequence[Tensor], prior: float) -> Tensor:
        """(finalists, entries) tables: after each round of EM steps the better half of the starts continues."""
        racers, rows = torch.stack(list(starts)), self.rows
        while len(racers) > self.finalists:
            few = step.sample(rows)
            for _ in range(self.em_steps):
                racers = few.layout.maximised(few(racers)[1], prior)
            objective = few.log_likelihood(racers) + prior * racers.clamp(min=1e-300).log().sum(dim=1)
            order = objective.argsort(descending=True)
            racers = racers[order[: max(self.finalists, len(racers) // 2)]]
            rows *= 2
        return racers


UNRECOVERED = Race(starts=8, rows=2_000, em_steps=8, finalists=1)
"""Random starts of tables that are not recovered."""
MISFITS = Race(starts=64, rows=1_000, em_steps=16, finalists=2)
"""Rivals of the recovered start after a misfit."""
FEW_BOUNDARY = Race(starts=512, rows=1_000, em_steps=16, finalists=8)
"""Rivals with a small prior, whose objective has many maxima on the boundary, for at most this number of distinct rows."""
MANY_BOUNDARY = Race(starts=128, rows=1_000, em_steps=16, finalists=1)
"""The same for more rows, whose objective has fewer maxima."""


@dataclass(frozen=True)
class Climb:
    """Result of :func:`climb`.

    Args:
        end: tables and objective.
        starts: recovered start of each latent.
        residuals: of pairs of observables.
    """

    end: Polished
    starts: dict[str, LatentStart]
    residuals: PairResiduals


def climb(
    step: ExpectationStep, settings: MaximumLikelihoodSettings, report: Callable[[], object] = lambda: None
) -> Climb:
    """Fit all tables of a graph to the rows of a step.

    Args:
        step: the E-step over all rows.
        settings: of the learner.
        report: called after each step on all rows.
    """
    graph, layout, seed, prior = step.graph, step.layout, settings.seed, settings.prior
    moments = FormMoments({v: graph.num_states(v) for v in graph.observed}, *step.drawn(MOMENT_ROWS))
    recovery = Recovery(graph, moments, seed)
    tables, starts = recovery.tables, recovery.starts
    generator = np.random.default_rng([seed, 1])

    def start() -> Tensor:
        """Recovered tables, and random ones for the others."""
        drawn = {
            s: torch.from_numpy(generator.dirichlet(np.ones(shape[-1]), size=shape[:-1]).clip(1e-6))
            for s, shape in zip(layout.scopes, layout.shapes, strict=True)
            if s not in tables
        }
        return layout.vector({**tables, **drawn})

    def maximum(vector: Tensor, prior: float = prior, tolerance: float = settings.tolerance) -> Polished:
        return polish(step, vector, prior, tolerance, settings.max_steps, report)

    def residuals_of(end: Polished) -> PairResiduals:
        return pair_residuals(graph, layout.named(end.vector), moments, seed)

    smooth = max(prior, SMOOTHING)
    if len(tables) < len(layout.scopes):
        (vector,) = UNRECOVERED.winners(step, [start() for _ in range(UNRECOVERED.starts)], smooth)
    else:
        vector = start()
    end = maximum(vector, smooth, settings.tolerance if prior == smooth else max(settings.tolerance, TOLERANCE))
    residuals = residuals_of(end)
    if prior == smooth and not residuals.misfit > MISFIT:
        return Climb(end, starts, residuals)
    race = MISFITS
    if prior < smooth:
        distinct = float(sum_over_processes(step.weights.new_tensor(len(step.weights))))
        race = FEW_BOUNDARY if distinct <= FEW_BOUNDARY.rows else MANY_BOUNDARY
        end = maximum(end.vector)
    entries = sum(len(group.weights) * group.tree.entries for group in step.sample(race.rows).groups)
    count = min(race.starts, int(RIVAL_ENTRIES / float(sum_over_processes(step.weights.new_tensor(entries)))))
    tables, ends = {}, [end]
    if count > 1:
        ends += [maximum(winner) for winner in race.winners(step, [start() for _ in range(count)], prior)]
    best = max(ends, key=lambda end: end.objective[-1])
    return Climb(best, starts, residuals_of(best))
