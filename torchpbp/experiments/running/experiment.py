"""What experiments share before they begin: constraints of their settings, seeds of their repeats, checks of learners."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import nn

from torchpbp.errors import ArgumentError, StructureError
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.settings import Constraint, several, whole

MakeModel = Callable[[LatentGraph], Any]
"""Makes a new model for a graph: a learner's class, or a partial of it with settings."""


def seeds_of(seed: int, repeat: int, number: int) -> list[int]:
    """Independent seeds of one repeat; they depend on nothing but ``seed`` and its number."""
    return [int(s) for s in np.random.SeedSequence([seed, repeat]).generate_state(number)]


def row_counts(least: int = 1) -> Constraint:
    """One or more whole numbers, read in ascending order and each once; 1e5 on a command line arrives as a float."""
    number = whole(least)

    def read(value: Any) -> tuple[int, ...]:
        items = (int(n) if isinstance(n, float) and n.is_integer() else n for n in several(_anything).read(value))
        return tuple(sorted({number.read(n) for n in items}))

    return one_or_more(Constraint(f"whole numbers of at least {least}", read))


def one_or_more(constraint: Constraint) -> Constraint:
    """A constraint on sequences that does not accept an empty one."""

    def read(value: Any) -> Any:
        items = constraint.read(value)
        if not items:
            raise ValueError
        return items

    return Constraint(f"one or more {constraint.expected.removeprefix('a sequence, each ')}", read)


def check_takes_graph(experiment: str, learner: object, choice: str = "learner=pbp") -> None:
    """Reject a learner that was made for a graph of its own.

    Args:
        experiment: name, for the message.
        learner: to be called with a graph.
        choice: a learner that will do.
    """
    if isinstance(learner, nn.Module) or not callable(learner):
        raise StructureError(
            f"{experiment}: expected a learner that takes the model's graph, got a {type(learner).__name__} with a graph of "
            f"its own. Choose {choice}."
        )


def check_graphs(graphs: Mapping[str, LatentGraph]) -> None:
    """Reject an experiment without structures."""
    if not graphs:
        raise StructureError("graphs: expected at least one graph, got none.")


def named_learners(
    main: str, learner: MakeModel, others: Mapping[str, MakeModel] | None, choice: str = "learner=pbp"
) -> dict[str, MakeModel]:
    """All learners of an experiment, the main one first. Each must take a graph, and no other may have the main one's name."""
    if main in (others or {}):
        raise ArgumentError(f"others: '{main}' is the name of the main learner. Choose another one.")
    learners = {main: learner, **(others or {})}
    for name, make in learners.items():
        check_takes_graph(name, make, choice)
    return learners


_anything = Constraint("anything", lambda value: value)
