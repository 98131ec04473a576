"""Domains of variables, and checks of the arguments that describe a graph."""

from __future__ import annotations

import math
import operator
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchpbp.errors import ArgumentError, StructureError
from torchpbp.settings import LARGEST, finite, optional, several, shortened, whole

Scope = tuple[str, ...]
"""Variables of a table, in the order of its axes."""
SHAPE = several(whole(1), expected="a tuple of positive whole numbers, such as (2,) or (1, 16, 8)")


@dataclass(frozen=True)
class Continuous:
    """A real-valued variable: a number, a vector or an image.

    Args:
        low: smallest value of the variable, if known; for vectors and images, of each entry.
        high: largest value, if known.
        shape: shape of one value: () for a number, (2,) for a point, (1, 16, 8) for an image. Columns and evidence then have the
            shape (rows, *shape), and a model needs an encoder of the values.

    Raises:
        ArgumentError: bounds that are not finite or not in ascending order; a shape with other entries than positive whole
            numbers.

    Example:
        >>> from torchpbp import LatentGraph
        >>> variables = {"kind": 2, "length": Continuous(low=0.0), "colour": 3}
        >>> LatentGraph([("kind", "length"), ("kind", "colour")], variables, latent=["kind"]).observed
        ('length', 'colour')
        >>> Continuous(low=0.0, high=1.0, shape=[1, 16, 8]).shape
        (1, 16, 8)
    """

    low: float | None = None
    high: float | None = None
    shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            optional(finite()).check(f"Continuous: {name}", getattr(self, name))
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise ArgumentError(f"Continuous: expected low < high, got low={self.low}, high={self.high}.")
        shape = SHAPE.check("Continuous: shape", self.shape)
        if math.prod(shape) > LARGEST:
            raise ArgumentError(
                f"Continuous: shape: expected at most {LARGEST} entries, got {shortened(math.prod(shape))}."
            )
        object.__setattr__(self, "shape", shape)


Domain = int | Continuous | None
"""Number of states, a continuous range, or None for a latent variable of unknown cardinality."""


def shape_of(domain: Domain) -> tuple[int, ...]:
    """The shape of one value: () for states and numbers."""
    return domain.shape if isinstance(domain, Continuous) else ()


def written_domain(domain: Domain) -> Any:
    """A domain as plain values, for a file."""
    if not isinstance(domain, Continuous):
        return domain
    return ["continuous", domain.low, domain.high, list(domain.shape)]


def read_domain(saved: Any) -> Domain:
    """Inverse of :func:`written_domain`."""
    return Continuous(*saved[1:]) if isinstance(saved, list) else saved


def require_encoders(variables: Mapping[str, Domain], who: str, encoded: Container[str] = ()) -> None:
    """Raise a StructureError unless each vector or image has an encoder.

    Args:
        variables: name -> number of states or range.
        who: beginning of the message.
        encoded: names of the variables with an encoder.
    """
    without = {v: shape_of(d) for v, d in variables.items() if shape_of(d) and v not in encoded}
    if without:
        raise StructureError(
            f"{who}: {_listed(without)} without an encoder. Pass features=encoder, an nn.Module that maps values of shape "
            "(n, *shape) to (n, d) features, or a dict of such modules by name."
        )


def require_single_values(variables: Mapping[str, Domain], who: str) -> None:
    """Raise a StructureError if a variable is a vector or an image.

    Args:
        variables: name -> number of states or range.
        who: beginning of the message: the class or function without support for such variables.
    """
    shaped = {v: shape_of(d) for v, d in variables.items() if shape_of(d)}
    if shaped:
        raise StructureError(
            f"{who}: expected variables without a shape, got {_listed(shaped)}. Vectors and images need an encoder: use "
            "PBP(graph, features=encoder), with an nn.Module that maps values of shape (n, *shape) to (n, d) features."
        )


def _listed(shapes: Mapping[str, tuple[int, ...]]) -> str:
    named = ", ".join(f"'{v}' of shape {shape}" for v, shape in list(shapes.items())[:8])
    return named + (f" and {len(shapes) - 8} more" if len(shapes) > 8 else "")


def checked_variables(variables: Mapping[str, Domain] | Iterable[tuple[str, Domain]]) -> dict[str, Domain]:
    """Checked variables, name -> number of states or range."""
    if not _is_collection(variables):
        raise StructureError(f"variables: expected a mapping or pairs (name, states), got {variables!r}.")
    pairs = list(variables.items()) if isinstance(variables, Mapping) else list(variables)
    if not pairs:
        raise StructureError("Expected at least one variable, got none.")
    result: dict[str, Domain] = {}
    for pair in pairs:
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise StructureError(f"variables: expected a mapping or pairs (name, states), got {pair!r}.")
        name, states = pair
        if not isinstance(name, str) or not name:
            raise StructureError(f"Variable names must be non-empty strings, got {name!r}.")
        if name in result:
            raise StructureError(f"Duplicate variable name '{name}'. Give each variable once.")
        if states is None or isinstance(states, Continuous):
            result[name] = states
        else:
            result[name] = _checked_count(name, states)
    return result


def _checked_count(name: str, states: Any) -> int:
    try:
        count = None if isinstance(states, bool) else operator.index(states)
    except TypeError:  # a float, a string, a tensor of floats
        count = None
    if count is None or count > LARGEST:
        raise StructureError(
            f"Variable '{name}': expected a number of states (int), Continuous() or None, got {shortened(states)}."
        )
    if count < 1:
        raise StructureError(f"Variable '{name}': expected at least 1 state, got {count}.")
    return count


def checked_latent(latent: Iterable[str], variables: Mapping[str, Domain]) -> tuple[str, ...]:
    """Checked names of latent variables, without duplicates."""
    if isinstance(latent, str):
        raise StructureError(f"latent: expected a list of names, got the string '{latent}'. Write ['{latent}'].")
    if not _is_collection(latent):
        raise StructureError(
            f"latent: expected a list of names, got {latent!r}. Leave it out where no variable is latent."
        )
    names, seen = tuple(latent), set[str]()
    for name in names:
        if not isinstance(name, str) or name not in variables:
            raise StructureError(f"Latent variable '{name}' is listed but absent from variables. Add it or drop it.")
        if name in seen:
            raise StructureError(f"Duplicate latent variable '{name}'. List each latent once.")
        seen.add(name)
    return names


def checked_labels(labels: Mapping[str, Sequence[Any]], variables: Mapping[str, Domain]) -> dict[str, tuple[Any, ...]]:
    """Checked labels of states of discrete variables: distinct, and at most as many as states."""
    for name, names in labels.items():
        states = variables.get(name)
        if not isinstance(states, int) or len(names) > states or len(set(names)) < len(names):
            raise StructureError(
                f"labels of '{name}': expected different labels for its states ({states}), got {shortened(list(names), 200)}."
            )
    return {name: tuple(names) for name, names in labels.items()}


def checked_edges(
    edges: Iterable[tuple[str, str]], variables: Mapping[str, Domain], directed: bool
) -> tuple[tuple[str, str], ...]:
    """Checked edges between existing variables, without duplicates."""
    if not _is_collection(edges):
        raise StructureError(f"edges: expected a list of pairs of names, got {edges!r}. Give [] for no edges.")
    result: list[tuple[str, str]] = []
    seen: set[tuple[str, str] | frozenset[str]] = set()
    for edge in edges:
        if isinstance(edge, str) or not isinstance(edge, Sequence) or len(edge) != 2:
            raise StructureError(f"Expected each edge to be a pair of names, got {edge!r}.")
        a, b = edge
        for name in (a, b):
            if not isinstance(name, str) or name not in variables:
                raise StructureError(f"Edge ({a}, {b}): unknown variable '{name}'. Add it to variables.")
        if a == b:
            raise StructureError(f"Edge ({a}, {b}) joins a variable to itself.")
        key = (a, b) if directed else frozenset((a, b))
        if key in seen:
            raise StructureError(f"Duplicate edge ({a}, {b}). Give each edge once.")
        seen.add(key)
        result.append((a, b))
    return tuple(result)


def _is_collection(value: Any) -> bool:
    """Whether the value can be iterated over and is not a string."""
    return isinstance(value, Iterable) and not isinstance(value, str)
