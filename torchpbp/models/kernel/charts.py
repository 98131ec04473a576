"""Charts: the coordinates in which a row is compared with training rows.

By default a variable is compared as it is. Variables that follow each other, such as the points of a pen stroke, can be
compared by their increments instead: each by its difference to the next one that the row observes, the last by itself.
The change of coordinates has unit Jacobian, so both charts give densities of the same vector.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from torchpbp.errors import StructureError


class Chart:
    """Which variables are compared by increments.

    Args:
        names: all variables, in the order of the data's columns.
        sequences: groups of continuous variables in the order in which they follow each other.
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
            for here, there in itertools.pairwise(sequence):
                result[:, here] = rows[:, here] - rows[:, there]
        return result

    def successors(self, rows: Tensor) -> Tensor:
        """For each entry of (n, variables) rows with NaN the column of the next observed one, or -1 if there is none."""
        result = torch.full(rows.shape, -1, dtype=torch.int64, device=rows.device)
        for sequence in self.sequences:
            following = torch.full((len(rows),), -1, dtype=torch.int64, device=rows.device)
            for here in reversed(sequence):
                result[:, here] = following
                following = torch.where(rows[:, here].isnan(), following, torch.full_like(following, here))
        return result

    def differences(self, rows: Tensor, successors: Tensor, column: int, training: Tensor) -> Tensor:
        """(n, training rows) differences between rows and training rows in one variable; NaN where not observed."""
        result = rows[:, column].unsqueeze(1) - training[:, column]
        if not any(column in sequence for sequence in self.sequences):
            return result
        next_column = successors[:, column]
        if len(next_column) and bool((next_column == next_column[0]).all()):  # complete rows: one column for all
            there = int(next_column[0])
            if there >= 0:
                result = result - rows[:, there].unsqueeze(1) + training[:, there]
            return result
        has_next = (next_column >= 0).unsqueeze(1)
        theirs = rows.gather(1, next_column.clamp(min=0).unsqueeze(1)) - training.T[next_column.clamp(min=0)]
        return torch.where(has_next, result - theirs, result)
