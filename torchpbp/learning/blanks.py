"""Values hidden from nets while they are trained, so that they can be asked where values are missing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ROWS_AT_ONCE = 8192
POPULATION_DRAWS = 16
"""How often each joint state of a population is shown, each time with other values hidden."""

SHIFT = 500_000_009
"""Sets these draws apart from the shuffles of the same seed."""


@dataclass(frozen=True)
class Blanks:
    """Which values nets see. In a share of the rows each value is hidden with a probability that is drawn for the row.

    The same draws are made on all processes, each of which takes those of its rows.

    Args:
        variables: number of variables.
        share: of the rows that have values hidden.
        total: rows over all processes.
        before: rows of the processes before this one.
        own: rows of this process.
        population: rows are weighted joint states.
        seed: of the draws.
    """

    variables: int
    share: float
    total: int
    before: int
    own: int
    population: bool
    seed: int

    @property
    def draws(self) -> int:
        """Passes over the rows that show enough patterns of missing values."""
        return POPULATION_DRAWS if self.population and self.share else 1

    def seen(self, number: int) -> Tensor | None:
        """(own rows, variables) False where a value is hidden, on the CPU; None where nothing ever is.

        Args:
            number: of the draw, from −1 on.
        """
        if not self.share:
            return None
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + SHIFT + number) % (1 << 63))
        parts, start = [], 0
        for size in [ROWS_AT_ONCE] * (self.total // ROWS_AT_ONCE) + [self.total % ROWS_AT_ONCE]:
            drawn = torch.rand(size, self.variables + 2, generator=generator, device="cpu")
            rate = torch.where(drawn[:, :1] < self.share, drawn[:, 1:2], 0.0)
            first, last = max(start, self.before), min(start + size, self.before + self.own)
            if first < last:
                parts.append((drawn[:, 2:] >= rate)[first - start : last - start])
            start += size
        return torch.cat(parts) if parts else torch.ones(0, self.variables, dtype=torch.bool, device="cpu")
