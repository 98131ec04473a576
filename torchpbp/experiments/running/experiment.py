"""What experiments share before they begin: seeds of their repeats, and checks of their settings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import nn

from torchpbp.errors import DataError, StructureError


def seeds_of(seed: int, repeat: int, number: int) -> list[int]:
    """Independent seeds of one repeat; they depend on nothing but ``seed`` and its number."""
    return [int(s) for s in np.random.SeedSequence([seed, repeat]).generate_state(number)]


def ascending(name: str, values: Sequence[int], least: int = 1) -> list[int]:
    """Whole numbers in ascending order, each once; 1e5 on a command line arrives as a float.

    Args:
        name: of the setting.
        values: at least one.
        least: the smallest number that makes sense.
    """
    if not values or any(n < least or n != int(n) for n in values):
        kind = {0: "whole numbers, 0 for none", 1: "positive whole numbers"}
        wanted = kind.get(least, f"whole numbers of at least {least}")
        raise DataError(f"{name}: expected one or more {wanted}, got {list(values)}.")
    return sorted({int(n) for n in values})


def check_positive(**numbers: int | Sequence[int]) -> None:
    """Refuse numbers below 1, and empty lists."""
    for name, value in numbers.items():
        values = [value] if isinstance(value, int | float) else list(value)
        if not values or min(values) < 1:
            raise DataError(f"{name}: expected at least 1, got {value}.")


def check_takes_graph(experiment: str, learner: object, choice: str = "learner=pbp") -> None:
    """Refuse a learner that was made for a graph of its own.

    Args:
        experiment: who asks.
        learner: to be called with a graph.
        choice: a learner that will do.
    """
    if isinstance(learner, nn.Module) or not callable(learner):
        raise StructureError(
            f"{experiment}: expected a learner that takes the model's graph, got a {type(learner).__name__} with a graph of "
            f"its own. Choose {choice}."
        )
