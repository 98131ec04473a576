"""Planning: ``PBP(graph)`` for large structures, and the time until structures beyond the budget raise their error.

Times are seconds of the processor, on one thread: those of a machine that does nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

import numpy as np
import torch

from benchmarks.runner import Runner
from benchmarks.work import Implementation, Work, measure
from torchpbp import PBP, LatentGraph, templates
from torchpbp.errors import BudgetError

ROWS = 2_000
PLAN, ERROR, ANSWER = "plan", "error", "plan, fit and posterior"
SECONDS = {PLAN: 3.0, ERROR: 5.0, ANSWER: 20.0}
"""Targets."""


def run(runner: Runner) -> None:
    """All structures, each planned from scratch."""
    full = not runner.options.tiny
    structures = {
        "tree of 69 latents of 16 states": (PLAN, latent_tree(69 if full else 3)),
        "tree of 180 latents of 16 states": (PLAN, latent_tree(180 if full else 4)),
        "chain of 2,000 sites": (PLAN, templates.hmm(2_000 if full else 4)),
        "star of 1,000 leaves": (PLAN, templates.naive_bayes(1_000 if full else 5)),
        "7 x 7 grid": (ERROR, templates.grid(7, 7)),
        "10 x 10 grid": (ERROR, templates.grid(10, 10)),
        "variable with 40 observed parents": (ERROR, many_parents(40)),
        "four observables of 200 states": (ANSWER, templates.naive_bayes(4, 3, 200 if full else 5)),
        "star of 10,000 leaves": (ANSWER, templates.naive_bayes(10_000 if full else 6)),
    }
    wanted = {name: x for name, x in structures.items() if runner.wanted(name)}
    measured = runner.numbers("all", Implementation("all", seconds_of, {"structures": wanted})) or {}
    panel = runner.report.panel("planning", "seconds of the processor")
    for name, (action, _) in wanted.items():
        seconds = measured.get(name)
        panel.add(f"{name}: {action}", 0.0, seconds)
        runner.report.add("planning", structure=name, action=action, seconds=seconds)
        runner.report.claim(f"{name}: {action}, s", seconds, at_most=SECONDS[action])


def seconds_of(structures: Mapping[str, tuple[str, LatentGraph]]) -> Work:
    """Construction of a model, or the error, or construction, fit and one query; measures itself."""
    rows = {name: drawn(graph) for name, (action, graph) in structures.items() if action == ANSWER}
    PBP(templates.naive_bayes(3)).fit(drawn(templates.naive_bayes(3)))  # lazy imports

    def act(name: str, action: str, graph: LatentGraph) -> None:
        if action == ERROR:
            with suppress(BudgetError):
                PBP(graph)
                raise AssertionError(f"{name}: expected a BudgetError")
            return
        model = PBP(graph)
        if action == ANSWER:
            with torch.no_grad():
                model.fit(rows[name]).posterior(graph.observed[0], {graph.observed[1]: [0, 1]})

    def run() -> dict[str, float]:
        return {name: measure(partial(act, name, *x), 1)[1] for name, x in structures.items()}

    return Work(run, lambda seconds: {name: np.array(value) for name, value in seconds.items()})


def latent_tree(
    latents: int, states: int = 16, observed_states: int = 4, leaves: int = 3, seed: int = 0
) -> LatentGraph:
    """A random tree of latents, each with some observables of fewer states."""
    draw, hidden = random.Random(seed), [f"h{i}" for i in range(latents)]
    edges = [(f"h{draw.randrange(i)}", f"h{i}") for i in range(1, latents)]
    observed = [(h, f"x{h}_{k}") for h in hidden for k in range(leaves)]
    sizes = dict.fromkeys(hidden, states) | {leaf: observed_states for _, leaf in observed}
    return LatentGraph([*edges, *observed], sizes, hidden)


def many_parents(count: int) -> LatentGraph:
    """A variable with observed parents only."""
    parents = [f"p{i}" for i in range(count)]
    return LatentGraph([(p, "y") for p in parents], dict.fromkeys([*parents, "y"], 2))


def drawn(graph: LatentGraph) -> dict[str, torch.Tensor]:
    """Observables that agree with a hidden state half of the time."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randint(2, (ROWS,), generator=generator)
    noise = {v: torch.randint(graph.num_states(v), (ROWS,), generator=generator) for v in graph.observed}
    return {v: torch.where(torch.rand(ROWS, generator=generator) < 0.5, hidden, x) for v, x in noise.items()}
