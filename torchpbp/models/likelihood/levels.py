"""How rows look at the tables of a graph: at what they observe, once for each pattern of values that occurs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor

from torchpbp.graph.domains import Scope
from torchpbp.models.likelihood.lookup import Lookup


@dataclass(frozen=True)
class Family:
    """A table, as the rows of a group look at it.

    Args:
        order: the table's dimensions, hidden variables first.
        hidden: hidden variables, sorted.
        shape: states of the hidden variables, then of the observed ones; a last state of the variable itself stands for missing.
        codes: (rows,) joint state of the observed variables; None where all are hidden.
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
    """Where each node of the tree is computed: for all rows, or once for each pattern below it.

    Args:
        sizes: rows or patterns of each node.
        families: lookup of each family at its node; None where all its variables are hidden.
        children: lookup of each node in its parent's level; None where both have the same.
        evidence: (states, rows) of variables in the tree that some rows observe.
    """

    sizes: list[int]
    families: list[Lookup | None]
    children: list[Lookup | None]
    evidence: dict[str, Tensor] = field(default_factory=dict)
