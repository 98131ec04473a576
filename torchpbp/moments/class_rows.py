"""Moments of each class of an observed variable, shrunk towards the pooled moments by weights of rows.

The moments of a class are averages over its rows and ``shrinkage`` pseudo-rows from the pooled distribution. Pseudo-rows are not
sampled: every row with a class has an equal share of their weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchpbp.errors import DataError
from torchpbp.moments.joint_tables import JointTables


@dataclass(frozen=True)
class ClassRows:
    """Numbers of rows of each class, and weights of rows in the moments of a class.

    Args:
        name: the class variable.
        counts: (classes,) rows of each class; probabilities for a population.
        missing: number of rows without a class, which are excluded.
        shrinkage: number of pseudo-rows added to each class.
    """

    name: str
    counts: Tensor
    missing: float
    shrinkage: float

    def __post_init__(self) -> None:
        if self.total <= 0:
            raise DataError(
                f"No row has a value of '{self.name}', so its classes cannot be learned. Give rows that have one."
            )

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def total(self) -> float:
        """Rows of all classes."""
        return float(self.counts.sum())

    @property
    def prior(self) -> Tensor:
        """(classes,) share of each class."""
        return self.counts / self.counts.sum()

    @property
    def empty(self) -> list[int]:
        """Classes without rows, which have the moments of all rows."""
        return [c for c, n in enumerate(self.counts.tolist()) if n == 0]

    def effective(self, label: int) -> float:
        """Effective sample size of the weighted rows, (Σ w)² / Σ w², for ridge penalties and significance tests.

        It lies between the number of rows of the class and that of all rows.
        """
        n, total, s = float(self.counts[label]), self.total, self.shrinkage
        if n == 0:
            return total
        return (n + s) ** 2 / (n * (1 + 2 * s / total) + s**2 / total)

    def weights(self, label: int) -> tuple[float, float]:
        """Additional weight of rows of the class, and weight of every row; the total weight is :meth:`effective`."""
        n, s = float(self.counts[label]), self.shrinkage
        if n == 0:
            return 0.0, 1.0
        scale = self.effective(label) / (n + s)
        return scale, scale * s / self.total

    def row_weights(self, label: int, classes: Tensor) -> Tensor:
        """(rows,) weights of rows with (rows,) classes."""
        class_weight, every = self.weights(label)
        return (classes == label).double() * class_weight + every


def class_tables(tables: JointTables, name: str, shrinkage: float) -> tuple[ClassRows, list[JointTables]]:
    """Joint tables of each class, from tables that all contain the class variable.

    Args:
        tables: counts, or exact probabilities.
        name: the class variable.
        shrinkage: pseudo-rows from the pooled distribution.

    Returns:
        Rows of each class, and for each class tables without the class variable, weighted by :class:`ClassRows`.
    """
    classes = tables.states[name]
    by_class = tables.sums([name])
    rows = ClassRows(name, by_class[:classes], float(by_class[classes:].sum()), shrinkage)
    states = {v: n for v, n in tables.states.items() if v != name}
    scopes = [tuple(v for v in scope if v != name) for scope in tables.scopes]
    device = by_class.device
    empty = JointTables(scopes, states, tables.incomplete - {name}, device)
    parts = [tables.sums((name, *scope))[:classes].reshape(classes, -1) for scope in empty.scopes]
    counts = torch.cat(parts, dim=1) if parts else by_class.new_zeros(classes, 0)
    pooled = counts.sum(dim=0)
    result = []
    for label in range(classes):
        class_weight, every = rows.weights(label)
        of_class = JointTables(empty.scopes, states, empty.incomplete, device)
        of_class.counts = class_weight * counts[label] + every * pooled
        of_class.rows = rows.effective(label)
        result.append(of_class)
    return rows, result
