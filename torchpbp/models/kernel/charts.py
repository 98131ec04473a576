"""Charts: the coordinates in which rows are compared with training rows.

By default the coordinates are the variables. Sequences of variables, such as the points of a pen stroke, can be compared by
increments instead: the coordinate of a variable is its difference to the next observed variable of the sequence, or its value
for the last. The change of coordinates has unit Jacobian, so both charts give densities of the same vector.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from torchpbp.errors import StructureError


class Chart:
    """Coordinates of rows, with increments along sequences of variables.

    Args:
        names: all variables, in the order of the data's columns.
        sequences: ordered groups of continuous variables.
    """

    def __init__(self, names: Sequence[str], sequences: Sequence[Sequence[str]] = ()) -> None:
        position = {v: i for i, v in enumerate(names)}
        self.sequences: list[list[int]] = []
        seen: set[str] = set()
        for sequence in sequences:
            for v in sequence:
                if v not in position:
                    raise StructureError(f"Chart: unknown variable '{v}'. The model observes: {', '.join(names)}.")
                if v in seen:
                    raise StructureError(f"Chart: '{v}' is listed twice.")
                seen.add(v)
            self.sequences.append([position[v] for v in sequence])
        self.moved = frozenset(seen)
        self.followed = frozenset(i for sequence in self.sequences for i in sequence)

    def coordinates(self, rows: Tensor) -> Tensor:
        """(n, variables) complete rows in the chart's coordinates."""
        result = rows.clone()
        for sequence in self.sequences:
            for column, successor in itertools.pairwise(sequence):
                result[:, column] = rows[:, column] - rows[:, successor]
        return result

    def successors(self, rows: Tensor) -> Tensor:
        """(n, variables) column of the next observed variable of the sequence in rows with NaN; -1 without one."""
        result = torch.full(rows.shape, -1, dtype=torch.int64, device=rows.device)
        for sequence in self.sequences:
            following = torch.full((len(rows),), -1, dtype=torch.int64, device=rows.device)
            for column in reversed(sequence):
                result[:, column] = following
                following = torch.where(rows[:, column].isnan(), following, torch.full_like(following, column))
        return result

    def differences(self, rows: Tensor, successors: Tensor, column: int, training: Tensor) -> Tensor:
        """(n, training rows) differences between rows and training rows in one variable; NaN where not observed."""
        result = rows[:, column].unsqueeze(1) - training[:, column]
        if column not in self.followed:
            return result
        next_column = successors[:, column]
        if len(next_column) and bool((next_column == next_column[0]).all()):  # complete rows: one column for all
            successor = int(next_column[0])
            if successor >= 0:
                result = result - rows[:, successor].unsqueeze(1) + training[:, successor]
            return result
        has_next = (next_column >= 0).unsqueeze(1)
        next_difference = rows.gather(1, next_column.clamp(min=0).unsqueeze(1)) - training.T[next_column.clamp(min=0)]
        return torch.where(has_next, result - next_difference, result)
