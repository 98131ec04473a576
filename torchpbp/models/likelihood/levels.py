"""Tables and tree nodes as seen from the rows of a group, with one computation per pattern of observed values."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor

from torchpbp.graph.domains import Scope
from torchpbp.models.likelihood.lookup import Lookup


@dataclass(frozen=True)
class Family:
    """A table with the observed values of a group of rows.

    Args:
        order: the table's dimensions, hidden variables first.
        hidden: hidden variables, sorted.
        shape: states of the hidden, then of the observed variables; if ``incomplete``, with an extra last state for missing.
        codes: (rows,) joint state of the observed variables; None if all are hidden.
        incomplete: whether the variable, which has no children, is missing in some rows.
    """

    order: tuple[int, ...]
    hidden: Scope
    shape: tuple[int, ...]
    codes: Tensor | None
    incomplete: bool

    @property
    def cells(self) -> int:
        """Joint states of the hidden variables."""
        return math.prod(self.shape[: len(self.hidden)])

    @property
    def size(self) -> int:
        """Joint states of the observed variables."""
        return math.prod(self.shape[len(self.hidden) :])


@dataclass
class Levels:
    """The level of each node of the tree: all rows, or the distinct patterns of values below the node.

    Args:
        sizes: rows or patterns of each node.
        families: lookup of each family at its node; None if all its variables are hidden.
        children: lookup of each node in its parent's level; None if both levels are the same.
        evidence: variable of the tree observed in some rows -> (states, rows) indicators.
    """

    sizes: list[int]
    families: list[Lookup | None]
    children: list[Lookup | None]
    evidence: dict[str, Tensor] = field(default_factory=dict)
