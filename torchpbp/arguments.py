"""Checks of arguments: whole numbers, amounts and seeds. The error names the argument, what was expected and what came."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

import torch

from torchpbp.errors import StructureError, TorchPBPError
from torchpbp.settings import LARGEST_SEED, shortened

Kind = type[TorchPBPError]


def whole_number(name: str, value: Any, error: Kind = StructureError) -> int:
    """The value as an int of 64 bits; floating-point numbers, strings, booleans and None raise an error."""
    try:
        if not isinstance(value, bool) and abs(operator.index(value)) <= LARGEST_SEED:
            return operator.index(value)
    except TypeError:  # not a whole number
        pass
    raise error(f"{name}: expected a whole number, got {shortened(value)}.")


def check_counts(least: int = 1, error: Kind = StructureError, /, **values: Any) -> None:
    """Refuse what is no whole number of at least ``least``.

    Args:
        least: the smallest that will do.
        error: what is raised.
        **values: arguments by name.
    """
    for name, value in values.items():
        if whole_number(name, value, error) < least:
            raise error(f"{name}: expected at least {least}, got {value}.")


def check_amounts(error: Kind = StructureError, /, **values: Any) -> None:
    """Refuse what is no finite number from 0 on."""
    for name, value in values.items():
        if not is_number(value) or not 0 <= float(value) < math.inf:
            raise error(f"{name}: expected a non-negative number, got {shortened(value)}.")


def check_positive(error: Kind = StructureError, /, **values: Any) -> None:
    """Refuse what is no finite number above 0."""
    for name, value in values.items():
        if not is_number(value) or not 0 < float(value) < math.inf:
            raise error(f"{name}: expected a positive number, got {shortened(value)}.")


def check_seed(seed: Any, error: Kind = StructureError) -> int:
    """The seed as an int; what cannot start a random stream that can be repeated is refused."""
    number = whole_number("seed", seed, error)
    if number < 0:
        raise error(f"seed: expected a whole number from 0 on, got {seed}.")
    return number


def seed_or_drawn(seed: Any, error: Kind = StructureError) -> int:
    """The seed; for None one that torch's global generator draws."""
    return int(torch.randint(2**62, (1,))) if seed is None else whole_number("seed", seed, error)


def is_series(value: Any) -> bool:
    """Whether the value can be gone through, and is not a string, whose letters nobody means."""
    return isinstance(value, Iterable) and not isinstance(value, str)


def is_number(value: Any) -> bool:
    """Whether the value can be compared with numbers, as Python's, numpy's and single tensors can."""
    if isinstance(value, bool | str) or not hasattr(value, "__float__"):
        return False
    try:
        float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return False
    return True
