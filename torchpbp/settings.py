"""Settings: frozen dataclasses whose fields declare what they accept, checked in one place.

A learner's settings are one such dataclass. Each field carries a :class:`Constraint`; an invalid value raises
:class:`~torchpbp.errors.ArgumentError` with the argument's name, what was expected and what came. Valid values are brought to
plain types, so that settings can be compared, printed and written to model files as they are.

Example:
    >>> @dataclasses.dataclass(frozen=True)
    ... class DescentSettings(Settings):
    ...     steps: int = setting(100, whole(1))
    ...     rate: float = setting(0.1, positive())
    >>> DescentSettings(steps=5).to_dict()
    {'steps': 5, 'rate': 0.1}
    >>> DescentSettings(rate=0)
    Traceback (most recent call last):
    torchpbp.errors.ArgumentError: rate: expected a positive number, got 0.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
import torch

from torchpbp.errors import ArgumentError

S = TypeVar("S", bound="Settings")

LARGEST = 2**63 - 1
"""The largest whole number that torch takes as a size."""
LARGEST_SEED = 2**64 - 1
"""The largest whole number that torch takes as a seed."""


@dataclasses.dataclass(frozen=True)
class Constraint:
    """What an argument accepts.

    Args:
        expected: in words, to follow "expected".
        read: gives the value in its plain type; raises ValueError or TypeError for one that is not accepted.
    """

    expected: str
    read: Callable[[Any], Any]

    def check(self, name: str, value: Any) -> Any:
        """The value in its plain type.

        Raises:
            ArgumentError: a value that is not accepted.
        """
        try:
            return self.read(value)
        except OverflowError:
            raise ArgumentError(
                f"{name}: expected {self.expected}, got {shortened(value)}, which is beyond the range of 64-bit numbers."
            ) from None
        except (TypeError, ValueError, RuntimeError):
            raise ArgumentError(f"{name}: expected {self.expected}, got {shortened(value)}.") from None


def shortened(value: Any, most: int = 200) -> str:
    """A value as it appears in an error: long texts are cut off."""
    try:
        text = repr(value)
    except Exception:  # of a class of the user's own
        text = f"an object of class {type(value).__name__}"
    return text if len(text) <= most else f"{text[:most]}…"


def setting(default: Any, constraint: Constraint) -> Any:
    """A field of :class:`Settings` with its default and what it accepts."""
    return dataclasses.field(default=default, metadata={"constraint": constraint})


@dataclasses.dataclass(frozen=True)
class Settings:
    """Base of settings; fields are declared by :func:`setting`, or have no constraint."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            constraint = field.metadata.get("constraint")
            if constraint is not None:
                object.__setattr__(self, field.name, constraint.check(field.name, getattr(self, field.name)))

    def to_dict(self) -> dict[str, Any]:
        """Name -> value, for a file."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls: type[S], values: Mapping[str, Any]) -> S:
        """The inverse of :meth:`to_dict`; names that are absent take their defaults.

        Raises:
            ArgumentError: an unknown name, or a value that is not accepted.
        """
        known = [f.name for f in dataclasses.fields(cls)]
        unknown = [name for name in values if name not in known]
        if unknown:
            raise ArgumentError(f"Unknown settings {unknown}. Known are: {', '.join(known)}.")
        return cls(**values)


# -- constraints -----------------------------------------------------------------------------------------------------


def whole(least: int = 0, most: int | None = None) -> Constraint:
    """A whole number within bounds; floating-point numbers, strings and booleans are not accepted."""
    bounds = f"from {least} to {most}" if most is not None else f"of at least {least}"

    def read(value: Any) -> int:
        number = _integer(value, LARGEST)
        if number < least or (most is not None and number > most):
            raise ValueError
        return number

    return Constraint(f"a whole number {bounds}", read)


def positive() -> Constraint:
    """A finite number above 0."""
    return _number("a positive number", lambda x: 0 < x < math.inf)


def non_negative() -> Constraint:
    """A finite number of at least 0."""
    return _number("a non-negative number", lambda x: 0 <= x < math.inf)


def finite() -> Constraint:
    """A finite number."""
    return _number("a finite number", math.isfinite)


def between(low: float, high: float, ends: bool = True) -> Constraint:
    """A number from ``low`` to ``high``, with or without the ends."""
    if ends:
        return _number(f"a number from {low:g} to {high:g}", lambda x: low <= x <= high)
    return _number(f"a number between {low:g} and {high:g}", lambda x: low < x < high)


def seed() -> Constraint:
    """A whole number that random streams start from."""

    def read(value: Any) -> int:
        number = _integer(value, LARGEST_SEED)
        if number < 0:
            raise ValueError
        return number

    return Constraint(whole().expected, read)


def drawn_seed(value: Any) -> int:
    """A checked seed; for None one that torch's global generator draws."""
    return int(torch.randint(2**62, (1,))) if value is None else int(seed().check("seed", value))


def flag() -> Constraint:
    """True or False."""

    def read(value: Any) -> bool:
        if not isinstance(value, bool):
            raise TypeError
        return value

    return Constraint("True or False", read)


def text() -> Constraint:
    """A string."""

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise TypeError
        return str(value)

    return Constraint("a string", read)


def choice(*options: Any) -> Constraint:
    """One of some values."""

    def read(value: Any) -> Any:
        for option in options:
            same_type = isinstance(value, type(option)) and isinstance(value, bool) is isinstance(option, bool)
            if same_type and value == option:
                return option
        raise ValueError

    return Constraint(repr(options[0]) if len(options) == 1 else f"one of {', '.join(map(repr, options))}", read)


def instance(*kinds: type, expected: str | None = None) -> Constraint:
    """An object of some class."""

    def read(value: Any) -> Any:
        if not isinstance(value, kinds):
            raise TypeError
        return value

    return Constraint(expected or " or ".join(k.__name__ for k in kinds), read)


def floating_dtype() -> Constraint:
    """torch.float64 or torch.float32."""
    return choice(torch.float64, torch.float32)


def optional(constraint: Constraint) -> Constraint:
    """None, or what a constraint accepts."""
    return either(Constraint("None", _none), constraint)


def either(*constraints: Constraint) -> Constraint:
    """What one of several constraints accepts, tried in order."""

    def read(value: Any) -> Any:
        for constraint in constraints:
            try:
                return constraint.read(value)
            except (TypeError, ValueError, OverflowError, RuntimeError):
                continue
        raise ValueError

    return Constraint(" or ".join(c.expected for c in constraints), read)


def several(constraint: Constraint, length: int | None = None, expected: str | None = None) -> Constraint:
    """A tuple of values that each meet a constraint; a string is not taken for its letters."""

    def read(value: Any) -> tuple[Any, ...]:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise TypeError
        items = tuple(constraint.read(item) for item in value)
        if length is not None and len(items) != length:
            raise ValueError
        return items

    count = "a sequence" if length is None else f"{length} values"
    return Constraint(expected or f"{count}, each {constraint.expected}", read)


def _number(expected: str, accepts: Callable[[float], bool]) -> Constraint:
    def read(value: Any) -> float:
        if isinstance(value, bool | str | bytes) or not hasattr(value, "__float__") or np.iscomplexobj(value):
            raise TypeError
        number = float(value)
        if not accepts(number):
            raise ValueError
        return number

    return Constraint(expected, read)


def _integer(value: Any, largest: int) -> int:
    if isinstance(value, bool):
        raise TypeError
    number = operator.index(value)
    if abs(number) > largest:
        raise OverflowError
    return number


def _none(value: Any) -> None:
    if value is not None:
        raise TypeError
