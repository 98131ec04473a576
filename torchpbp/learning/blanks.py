"""Random masks of inputs during training, so that networks can predict from rows with missing values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ROWS_AT_ONCE = 8192
POPULATION_DRAWS = 16
"""Number of masks drawn for each joint state of a population."""

SHIFT = 500_000_009
"""Offset of the seed, so that masks and shuffles of the same seed are independent."""


@dataclass(frozen=True)
class Blanks:
    """Random masks of the networks' inputs. In a share of the rows each value is hidden with a probability drawn for the row.

    All processes make the same draws, and each uses the draws of its rows.

    Args:
        variables: number of variables.
        share: share of the rows with hidden values.
        total: number of rows over all processes.
        before: number of rows of the processes before this one.
        own: number of rows of this process.
        population: whether rows are weighted joint states.
        seed: seed of the draws.
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
        """Number of passes over the rows, each with other masks."""
        return POPULATION_DRAWS if self.population and self.share else 1

    def seen(self, number: int) -> Tensor | None:
        """(rows of this process, variables) mask on the CPU, False where a value is hidden; None if no value is ever hidden.

        Args:
            number: index of the draw, from −1.
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
