"""Draws of a KernelPBP: training rows drawn by weight, with values blurred by the evidence kernel within their range."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Blur:
    """Gaussian noise around training values, truncated to each variable's range.

    Args:
        examples: (rows, variables) training rows.
        widths: (variables,) standard deviations.
        bounds: (variables, 2) ranges.
    """

    examples: Tensor
    widths: Tensor
    bounds: Tensor

    def share_below(self, column: int) -> Tensor:
        """(2, rows) probability of the blur around each training value below either end of the range."""
        ends = self.bounds[column].unsqueeze(1)
        return torch.special.ndtr((ends - self.examples[:, column]) / self.widths[column])

    def share_inside(self, column: int) -> Tensor:
        """(rows,) probability of the blur around each training value within the range."""
        low, high = self.share_below(column)
        return high - low

    def draw(self, column: int, chosen: Tensor, generator: torch.Generator) -> Tensor:
        """(n,) blurred values of the (n,) training rows ``chosen``."""
        values = self.examples[chosen, column]
        low, high = self.share_below(column)[:, chosen]
        level = low + (high - low) * torch.rand(
            len(values), generator=generator, dtype=torch.float64, device=values.device
        )
        drawn = values + self.widths[column] * torch.special.ndtri(level)
        return drawn.clamp(*self.bounds[column].tolist())  # rounding


def draw_rows(weights: Tensor, generator: torch.Generator) -> Tensor:
    """(batch,) training rows drawn by (batch, rows) weights; uniformly without positive weights."""
    weights = weights + (weights.sum(dim=1, keepdim=True) <= 0)
    return torch.multinomial(weights, 1, generator=generator).squeeze(1)
