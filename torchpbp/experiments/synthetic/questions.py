"""Questions about random networks, their exact answers, and how far a learned model is from these."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchpbp.distributed import own_share
from torchpbp.errors import ArgumentError, DataError, StructureError
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.experiments.running.experiment import MakeModel
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.settings import whole

Row = dict[str, float | int]
"""One line of metrics.csv."""


@dataclass(frozen=True)
class Question:
    """P(query | evidence) at each of the listed joint values of the evidence variables.

    Args:
        query: an observable.
        evidence: name -> (values,) int64 states.
        asked_all: whether the values are all there are, or random ones among them.
    """

    query: str
    evidence: dict[str, Tensor]
    asked_all: bool

    @property
    def values(self) -> int:
        """Number of joint values asked."""
        return len(next(iter(self.evidence.values())))

    @property
    def described(self) -> str:
        """The question, and at how many values it is asked."""
        return f"{self} at {'all' if self.asked_all else 'random'} {self.values} values"

    def __str__(self) -> str:
        return f"P({self.query} | {', '.join(self.evidence)})"

    def possible(self, network: DiscreteNetwork) -> Question:
        """The question without evidence of probability 0, for which no exact posterior exists."""
        keep = torch.isfinite(network.log_evidence(self.evidence))
        if not bool(keep.any()):
            raise DataError(f"{self}: the network gives probability 0 to all evidence asked. Raise the concentration.")
        return Question(self.query, {v: s[keep] for v, s in self.evidence.items()}, self.asked_all)


@dataclass(frozen=True)
class Answered:
    """Questions with the exact answers of one network.

    Args:
        questions: as far as the network knows an answer.
        answers: (values, states) for each question.
        ignoring: mean KL of the exact marginal as an answer.
    """

    questions: tuple[Question, ...]
    answers: tuple[Tensor, ...]
    ignoring: float


def answered(network: DiscreteNetwork, questions: Sequence[Question]) -> Answered:
    """Ask the network itself."""
    possible = tuple(q.possible(network) for q in questions)
    exact = tuple(network.posterior(q.query, q.evidence) for q in possible)
    marginals = [network.posterior(q.query, {}) for q in possible]
    ignoring = statistics.fmean(_mean_kl(p, m.expand_as(p)) for p, m in zip(exact, marginals, strict=True))
    return Answered(possible, exact, ignoring)


def measure(
    network: DiscreteNetwork, learner: MakeModel, size: int, known: Answered, data_seed: int
) -> tuple[Any, Row]:
    """Fit a model to samples of a network; the model, its KL and the seconds its fit took.

    Args:
        network: where the samples come from.
        learner: makes a model for its graph.
        size: samples.
        known: its exact answers.
        data_seed: of the samples.
    """
    share = own_share(size)
    data = {v: x[share] for v, x in network.sample(size, seed=data_seed).items()}
    model = learner(network.graph)
    start = time.perf_counter()
    model.fit(data)
    seconds = time.perf_counter() - start
    kls = [mean_kl(model, q, truth) for q, truth in zip(known.questions, known.answers, strict=True)]
    return model, {
        "kl": statistics.fmean(kls),
        "fit_seconds": seconds,
        "kl_ignoring_evidence": known.ignoring,
        **{f"kl {q}": value for q, value in zip(known.questions, kls, strict=True)},
    }


def draw_questions(graph: LatentGraph, number: int, evidence_variables: int, seed: int) -> list[tuple[str, ...]]:
    """Choose queries and their evidence variables at random among the observables, no choice twice.

    Returns:
        ``number`` tuples (query, evidence variables…), or fewer where the graph has no more.
    """
    whole(1).check("questions", number)
    whole(1).check("evidence_variables", evidence_variables)
    others = len(graph.observed) - 1
    if others < 1:
        raise StructureError(f"Expected at least two observables to ask P(one | others), got {list(graph.observed)}.")
    width = min(evidence_variables, others)
    draw = random.Random(seed)
    chosen: list[tuple[str, ...]] = []
    while len(chosen) < min(number, (others + 1) * math.comb(others, width)):
        query, *given = draw.sample(graph.observed, 1 + width)
        choice = (query, *sorted(given, key=graph.observed.index))
        if choice not in chosen:
            chosen.append(choice)
    return chosen


def make_question(graph: LatentGraph, names: Sequence[str], max_values: int, seed: int) -> Question:
    """Ask P(first name | the others) at all joint values of the others, or at ``max_values`` random ones."""
    if isinstance(names, str) or len(names) < 2:
        raise ArgumentError(f"questions: expected a query followed by its evidence variables, got {names!r}.")
    query, *given = names
    shape = [graph.num_states(v) for v in given]
    total = math.prod(shape)
    codes = range(total) if total <= max_values else random.Random(seed).sample(range(total), max_values)
    states = np.unravel_index(np.asarray(codes), shape)
    evidence = {v: torch.from_numpy(s.astype(np.int64)) for v, s in zip(given, states, strict=True)}
    return Question(query, evidence, total <= max_values)


@torch.no_grad()
def mean_kl(model: Any, question: Question, exact: Tensor) -> float:
    """Mean over the evidence values of KL(exact ‖ learned), in nats.

    Args:
        model: fitted.
        question: what to ask.
        exact: (values, states) true answer.
    """
    learned = model.posterior(question.query, question.evidence).to(exact)
    return _mean_kl(exact, learned)


def _mean_kl(exact: Tensor, learned: Tensor) -> float:
    return float((torch.xlogy(exact, exact) - torch.xlogy(exact, learned)).sum(dim=-1).mean())
