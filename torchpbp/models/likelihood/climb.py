"""Maximisation of the likelihood: a start recovered from moments or by a race of random starts, and Gauss–Newton steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchpbp.distributed import sum_over_processes
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.models.likelihood.expectation import ExpectationStep
from torchpbp.models.likelihood.moments import FormMoments
from torchpbp.models.likelihood.polish import TOLERANCE, Polished, polish
from torchpbp.models.likelihood.recovery import LatentStart, recover
from torchpbp.models.likelihood.residuals import PairResiduals, pair_residuals

MOMENT_ROWS = 20_000
"""Largest number of distinct rows of the moments for recovery and for residuals of pairs."""
RACERS, RACE_ROWS, RACE_EM = 8, 2_000, 8
"""Random starts of unrecovered tables, rows of the first round of their race, and EM steps per round."""
SMOOTHING = 1.0
"""A climb with a smaller prior starts with this prior, whose objective has fewer maxima."""
MISFIT = 2.0
"""Largest misfit of pairs at which the recovered start is used alone: moments of rows that the graph does not fit may lead to a
lower maximum."""
RIVAL_ROWS, RIVAL_EM, RIVAL_ENTRIES = 1_000, 16, 1 << 24
"""For rivals of the recovered start, after a misfit or with a small prior, which has many maxima on the boundary: rows of the first
round, EM steps per round, and the limit of the entries of all messages, which bounds the number of rivals."""
RIVALS, BOUNDARY_RIVALS = (64, 2), ((512, 8), (128, 1))
"""Numbers of rivals and of finalists that climb to the end; with a small prior for at most RIVAL_ROWS distinct rows and for more,
which have fewer maxima."""


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
    graph: LatentGraph,
    step: ExpectationStep,
    prior: float,
    tolerance: float,
    max_steps: int,
    seed: int = 0,
    report: Callable[[], object] = lambda: None,
) -> Climb:
    """Fit all tables of a graph to the rows of a step.

    Args:
        graph: directed and discrete.
        step: the E-step over all rows.
        prior: pseudo-rows per entry.
        tolerance: nats in total.
        max_steps: largest number of steps on all rows.
        seed: of random directions and starts.
        report: called after each step on all rows.
    """
    moments = FormMoments({v: graph.num_states(v) for v in graph.observed}, *step.drawn(MOMENT_ROWS))
    tables, starts = recover(graph, moments, seed)
    generator = np.random.default_rng([seed, 1])

    def started() -> Tensor:
        return step.layout.vector(
            {s: tables[s] if s in tables else _drawn(step, s, generator) for s in step.layout.scopes}
        )

    def residuals_of(end: Polished) -> PairResiduals:
        return pair_residuals(graph, step.layout.named(end.vector), moments, seed)

    vector = started()
    smooth = max(prior, SMOOTHING)
    if len(tables) < len(step.layout.scopes):
        racers = [vector, *(started() for _ in range(RACERS - 1))]
        vector = _race(step, torch.stack(racers), smooth, RACE_ROWS, RACE_EM)[0]
    end = polish(step, vector, smooth, tolerance if prior == smooth else max(tolerance, TOLERANCE), max_steps, report)
    residuals = residuals_of(end)
    if prior == smooth and not residuals.misfit > MISFIT:
        return Climb(end, starts, residuals)
    few = step.sample(RIVAL_ROWS)
    count, finalists = RIVALS
    if prior < smooth:
        distinct = float(sum_over_processes(step.weights.new_tensor(len(step.weights))))
        count, finalists = BOUNDARY_RIVALS[distinct > RIVAL_ROWS]
        end = polish(step, end.vector, prior, tolerance, max_steps, report)
    entries = sum(len(group.weights) * group.tree.entries for group in few.groups)
    count = min(count, int(RIVAL_ENTRIES / float(sum_over_processes(step.weights.new_tensor(entries)))))
    tables, ends = {}, [end]
    if count > 1:
        winners = _race(step, torch.stack([started() for _ in range(count)]), prior, RIVAL_ROWS, RIVAL_EM, finalists)
        ends += [polish(step, winner, prior, tolerance, max_steps, report) for winner in winners]
    best = max(ends, key=lambda end: end.objective[-1])
    return Climb(best, starts, residuals_of(best))


def _race(step: ExpectationStep, racers: Tensor, prior: float, rows: int, em_steps: int, finalists: int = 1) -> Tensor:
    """The best of several (runs, entries) starts, by successive halving: after each round of EM steps the better half continues
    on twice as many rows."""
    while len(racers) > finalists:
        few = step.sample(rows)
        for _ in range(em_steps):
            racers = few.layout.maximised(few(racers)[1], prior)
        order = _objective(few, racers, prior).argsort(descending=True)
        racers = racers[order[: max(finalists, len(racers) // 2)]]
        rows *= 2
    return racers


def _objective(step: ExpectationStep, vectors: Tensor, prior: float) -> Tensor:
    """(runs,) log-likelihood + prior · Σ log θ."""
    return step.log_likelihood(vectors) + prior * vectors.clamp(min=1e-300).log().sum(dim=1)


def _drawn(step: ExpectationStep, scope: tuple[str, ...], generator: np.random.Generator) -> Tensor:
    """A random table."""
    shape = step.layout.shapes[step.layout.scopes.index(scope)]
    drawn = generator.dirichlet(np.ones(shape[-1]), size=shape[:-1]).clip(1e-6)
    return torch.from_numpy(drawn).to(step.layout.device)
