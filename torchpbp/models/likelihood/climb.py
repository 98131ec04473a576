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
from torchpbp.models.likelihood.polish import TOLERANCE, Polished, polish
from torchpbp.models.likelihood.recovery import LatentStart, recover

RACERS, RACE_ROWS, RACE_EM = 8, 2_000, 8
"""Random starts of tables that are not recovered, rows that they are compared on, and EM steps before the worse half retires."""
SMOOTHING = 1.0
"""With a smaller prior the climb begins with this one, whose objective has fewer maxima, and goes on from there."""
RIVAL_ROWS, RIVAL_EM, RIVAL_ENTRIES = 1_000, 16, 1 << 24
"""With a smaller prior, whose maxima on the boundary are many, random starts race as well: distinct rows that they are compared
on, EM steps of a round, and entries of the messages of all at once, above which there are fewer starts."""
RIVALS, FINALISTS = (512, 128), (8, 1)
"""Starts, and those of them that climb to the end, with up to so many distinct rows and with more, which have fewer maxima."""


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

    vector = started()
    smooth = max(prior, SMOOTHING)
    if raced:
        racers = [vector, *(started() for _ in range(RACERS - 1))]
        vector = _race(step.sample(RACE_ROWS), torch.stack(racers), smooth)[0]
    if smooth == prior:
        return Climb(polish(step, vector, prior, tolerance, max_steps, report), starts, raced)
    vector = polish(step, vector, smooth, max(tolerance, TOLERANCE), max_steps).vector
    distinct = float(sum_over_processes(step.weights.new_tensor(len(step.weights))))
    tables, few = {}, step.sample(RIVAL_ROWS)
    entries = sum(len(group.weights) * group.tree.entries for group in few.groups)
    many = int(distinct > RIVAL_ROWS)
    rivals = min(RIVALS[many], int(RIVAL_ENTRIES / float(sum_over_processes(step.weights.new_tensor(entries)))))
    vectors = [vector]
    if rivals > 1:
        drawn = torch.stack([started() for _ in range(rivals)])
        vectors += _race(few, drawn, prior, RIVAL_EM, FINALISTS[many]).unbind()
    ends = [polish(step, v, prior, tolerance, max_steps, report=report) for v in vectors]
    return Climb(max(ends, key=lambda end: end.objective[-1]), starts, raced)


def _race(step: ExpectationStep, racers: Tensor, prior: float, em_steps: int = RACE_EM, finalists: int = 1) -> Tensor:
    """The best of several (runs, entries) starts, by rounds of EM steps after each of which the better half goes on."""
    while len(racers) > finalists:
        for _ in range(em_steps):
            racers = step.layout.maximised(step(racers)[1], prior)
        order = _objective(step, racers, prior).argsort(descending=True)
        racers = racers[order[: max(finalists, len(racers) // 2)]]
    return racers


def _objective(step: ExpectationStep, vectors: Tensor, prior: float) -> Tensor:
    """(runs,) log-likelihood + prior · Σ log θ."""
    return step.log_likelihood(vectors) + prior * vectors.clamp(min=1e-300).log().sum(dim=1)


def _drawn(step: ExpectationStep, scope: tuple[str, ...], generator: np.random.Generator) -> Tensor:
    """A random table."""
    shape = step.layout.shapes[step.layout.scopes.index(scope)]
    drawn = generator.dirichlet(np.ones(shape[-1]), size=shape[:-1]).clip(1e-6)
    return torch.from_numpy(drawn).to(step.layout.device)
