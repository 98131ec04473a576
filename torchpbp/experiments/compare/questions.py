"""Questions about the posteriors of a network."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchpbp.errors import ArgumentError, DataError, StructureError
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.settings import whole


@dataclass(frozen=True)
class Question:
    """P(query | evidence) at joint values of the evidence variables.

    Args:
        query: an observable.
        evidence: name -> (values,) int64 states.
    """

    query: str
    evidence: dict[str, Tensor]

    def __str__(self) -> str:
        return f"P({self.query} | {', '.join(self.evidence)})"

    def possible(self, network: DiscreteNetwork) -> Question:
        """The question without evidence of probability 0, for which no exact posterior exists."""
        kept = torch.isfinite(network.log_evidence(self.evidence))
        if not bool(kept.any()):
            raise DataError(f"{self}: the network gives probability 0 to all evidence asked. Raise the concentration.")
        return Question(self.query, {v: s[kept] for v, s in self.evidence.items()})


def chosen_questions(
    graph: LatentGraph, questions: int | Sequence[Sequence[str]], evidence_variables: int, most_values: int, seed: int
) -> list[Question]:
    """Questions at all joint values of their evidence, or at ``most_values`` random ones.

    Args:
        graph: of the variables.
        questions: a query followed by its evidence variables, each; or the number of random questions.
        evidence_variables: of a random question.
        most_values: joint values of the evidence.
        seed: of all draws.
    """
    names = (
        random_questions(graph, questions, evidence_variables, seed) if isinstance(questions, int) else list(questions)
    )
    return [at_values(graph, names_of_one, most_values, seed) for names_of_one in names]


def random_questions(graph: LatentGraph, number: int, evidence_variables: int, seed: int) -> list[tuple[str, ...]]:
    """``number`` different tuples (query, evidence variables…) of observables, or fewer where the graph has no more."""
    whole(1).check("questions", number)
    others = len(graph.observed) - 1
    if others < 1:
        raise StructureError(f"Expected at least two observables to ask P(one | others), got {list(graph.observed)}.")
    width = min(evidence_variables, others)
    draw = random.Random(seed)
    chosen: list[tuple[str, ...]] = []
    while len(chosen) < min(number, (others + 1) * math.comb(others, width)):
        query, *evidence = draw.sample(graph.observed, 1 + width)
        choice = (query, *sorted(evidence, key=graph.observed.index))
        if choice not in chosen:
            chosen.append(choice)
    return chosen


def at_values(graph: LatentGraph, names: Sequence[str], most_values: int, seed: int) -> Question:
    """The question P(first name | the others) at all joint values of the others, or at ``most_values`` random ones."""
    if isinstance(names, str) or len(names) < 2:
        raise ArgumentError(f"questions: expected a query followed by its evidence variables, got {names!r}.")
    query, *evidence = names
    shape = [graph.num_states(v) for v in evidence]
    total = math.prod(shape)
    codes = range(total) if total <= most_values else random.Random(seed).sample(range(total), most_values)
    states = np.unravel_index(np.asarray(codes), shape)
    return Question(query, {v: torch.from_numpy(s.astype(np.int64)) for v, s in zip(evidence, states, strict=True)})


def mean_kl(exact: Tensor, learned: Tensor) -> float:
    """Mean over evidence values of KL(exact ‖ learned), in nats; both are (values, states)."""
    return float((torch.xlogy(exact, exact) - torch.xlogy(exact, learned.to(exact))).sum(dim=-1).mean())
