"""From rows to the maximum of the likelihood: a recovered start, a race where there is none, and the polish."""

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
from torchpbp.models.likelihood.polish import Polished, polish
from torchpbp.models.likelihood.recovery import LatentStart, recover

RACERS, RACE_ROWS, RACE_STEPS, RACE_EM = 4, 2_000, 13, 5
"""Random starts of tables that are not recovered, distinct rows that they are compared on, and their steps, the first by EM."""
MANY_ROWS = 15_000
"""Distinct rows above which the climb begins on half as many."""


@dataclass(frozen=True)
class Climb:
    """A fit.

    Args:
        end: tables and objective.
        starts: what was found out about each latent.
        raced: whether some tables started at random.
    """

    end: Polished
    starts: dict[str, LatentStart]
    raced: bool


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
        max_steps: on all rows, at most.
        seed: of random directions and starts.
        report: called after each step on all rows.
    """
    moments = FormMoments({v: graph.num_states(v) for v in graph.observed}, step.table, step.weights)
    tables, starts = recover(graph, moments, seed)
    generator = np.random.default_rng([seed, 1])
    raced = len(tables) < len(step.layout.scopes)

    def started() -> Tensor:
        return step.layout.vector(
            {s: tables[s] if s in tables else _drawn(step, s, generator) for s in step.layout.scopes}
        )

    distinct = float(sum_over_processes(step.weights.new_tensor(len(step.weights))))
    vector = started()
    if raced:
        few = step.subset(min(1.0, RACE_ROWS / distinct))
        racers = [vector, *(started() for _ in range(RACERS - 1))]
        ends = [polish(few, racer, prior, tolerance, RACE_STEPS, RACE_EM) for racer in racers]
        vector = max(ends, key=lambda end: end.objective[-1]).vector
    if distinct > MANY_ROWS:
        some = step.subset(MANY_ROWS / 2 / distinct)
        vector = polish(some, vector, prior, max(tolerance, 0.5), max_steps).vector
        return Climb(polish(step, vector, prior, tolerance, max_steps, 1, report), starts, raced)
    return Climb(polish(step, vector, prior, tolerance, max_steps, report=report), starts, raced)


def _drawn(step: ExpectationStep, scope: tuple[str, ...], generator: np.random.Generator) -> Tensor:
    """A random table."""
    shape = step.layout.shapes[step.layout.scopes.index(scope)]
    drawn = generator.dirichlet(np.ones(shape[-1]), size=shape[:-1]).clip(1e-6)
    return torch.from_numpy(drawn).to(step.layout.device)
