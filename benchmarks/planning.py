"""Planning: ``PBP(graph)`` for large structures, and the time until structures beyond the budget raise their error.

Times are seconds of the processor, on one thread: those of a machine that does nothing else.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import torch

from benchmarks.report import Claim, Report
from benchmarks.side_by_side import RunOptions
from torchpbp import PBP, LatentGraph, templates
from torchpbp.errors import BudgetError
from torchpbp.graph.latent_graph import Domain
from torchpbp.planning.planner import clear_cached_plans

PLAN_SECONDS, ERROR_SECONDS, ANSWER_SECONDS = 3.0, 5.0, 20.0
ROWS = 2_000


def latent_tree(
    latents: int, states: int = 16, observed_states: int = 4, leaves: int = 3, seed: int = 0
) -> LatentGraph:
    """A random tree of latents, each with some observables of fewer states."""
    draw = random.Random(seed)
    variables: dict[str, Domain] = {f"h{i}": states for i in range(latents)}
    edges = [(f"h{draw.randrange(i)}", f"h{i}") for i in range(1, latents)]
    edges += [(f"h{i}", f"x{i}_{k}") for i in range(latents) for k in range(leaves)]
    variables |= {f"x{i}_{k}": observed_states for i in range(latents) for k in range(leaves)}
    return LatentGraph(edges, variables, [f"h{i}" for i in range(latents)])


def many_parents(count: int) -> LatentGraph:
    """A variable with observed parents only."""
    parents = [f"p{i}" for i in range(count)]
    return LatentGraph([(p, "y") for p in parents], dict.fromkeys([*parents, "y"], 2))


def run(settings: RunOptions) -> Report:
    """All structures, each planned from scratch."""
    report = Report("planning")
    full = settings.size != "tiny"
    planned: dict[str, Callable[[], LatentGraph]] = {
        "tree of 69 latents of 16 states": lambda: latent_tree(69 if full else 3),
        "tree of 180 latents of 16 states": lambda: latent_tree(180 if full else 4),
        "chain of 2,000 sites": lambda: templates.hmm(2_000 if full else 4),
        "star of 1,000 leaves": lambda: templates.naive_bayes(1_000 if full else 5),
    }
    for name, make in planned.items():
        settings.note(name)
        _claim(report, f"plan of a {name}, s", _seconds(make(), PBP), PLAN_SECONDS)
    rejected = {
        "7 x 7 grid": templates.grid(7, 7),
        "10 x 10 grid": templates.grid(10, 10),
        "variable with 40 observed parents": many_parents(40),
    }
    for name, graph in rejected.items():
        settings.note(name)
        _claim(report, f"error of a {name}, s", _seconds(graph, _rejected), ERROR_SECONDS)
    answered = {
        "four observables of 200 states": templates.naive_bayes(4, 3, 200 if full else 5),
        "star of 10,000 leaves": templates.naive_bayes(settings.choose(10_000, 1_000, 6)),
    }
    for name, graph in answered.items():
        settings.note(name)
        _claim(report, f"plan, fit and posterior, {name}, s", _seconds(graph, _answer(_rows(graph))), ANSWER_SECONDS)
    return report


def _claim(report: Report, text: str, seconds: float, at_most: float) -> None:
    report.claims.append(Claim(text, seconds, at_most=at_most))
    report.records.append({"text": text, "seconds": seconds, "at_most": at_most})


def _seconds(graph: LatentGraph, work: Callable[[LatentGraph], object]) -> float:
    clear_cached_plans()
    start = time.process_time()
    work(graph)
    return time.process_time() - start


def _rejected(graph: LatentGraph) -> None:
    try:
        PBP(graph)
    except BudgetError:
        return
    raise AssertionError("expected a BudgetError")


def _answer(rows: dict[str, torch.Tensor]) -> Callable[[LatentGraph], object]:
    def answer(graph: LatentGraph) -> None:
        model = PBP(graph).fit(rows)
        with torch.no_grad():
            model.posterior(graph.observed[0], {graph.observed[1]: [0, 1]})

    return answer


def _rows(graph: LatentGraph) -> dict[str, torch.Tensor]:
    """Observables that agree with a hidden state half of the time."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randint(2, (ROWS,), generator=generator)
    columns = {}
    for v in graph.observed:
        noise = torch.randint(graph.num_states(v), (ROWS,), generator=generator)
        columns[v] = torch.where(torch.rand(ROWS, generator=generator) < 0.5, hidden, noise)
    return columns
