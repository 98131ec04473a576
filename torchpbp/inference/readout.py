"""Readout of a target: a trainable link from estimates, which may be negative, to probabilities.

The logarithm of a clipped estimate has no gradient at negative estimates, which are frequent. This link is positive and smooth
everywhere, and its sharpness depends on the share of missing leaves in the row.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

SOFTNESS, SHARPNESS = 0.15, 3.0
"""Initial values."""
NEGATIVE_WEIGHT = 0.01
"""Weight of negative estimates in the norm of a row."""


def soft_positive(z: Tensor, softness: float | Tensor) -> Tensor:
    """(z + √(z² + ε²)) / 2: positive, smooth, and close to max(z, 0)."""
    square = softness**2
    root = (z.square() + square).sqrt()
    # For negative z the sum cancels; the equivalent quotient does not.
    return torch.where(z >= 0, (z + root) / 2, square / (2 * (root + z.abs())))


def normalised(estimate: Tensor) -> Tensor:
    """Estimates (…, states) divided by the norm of the positive ones, in which negative ones count with a weight of 0.01.

    The sign of an estimate that is a product over many leaves is easily lost, and then its modulus may be the largest of the
    row. If it had its full weight in the norm, the probability of its state would rise again as soon as it is below minus the
    largest other estimate, since the other estimates shrink relative to the norm: training would make it more negative still,
    and more rows would follow.
    """
    norm = nn.functional.leaky_relu(estimate, NEGATIVE_WEIGHT).norm(dim=-1, keepdim=True)
    return estimate / torch.where(norm > 0, norm, torch.ones_like(norm))


class Readout(nn.Module):
    """P ∝ q^τ with q = (z + √(z² + ε²)) / 2, where z are the estimates of all states, :func:`normalised`.

    Args:
        target: name of the variable.

    Attributes:
        log_softness: log ε.
        sharpness: (3,) coefficients of log τ = s₀ + s₁ h + s₂ h², with h the share of leaves missing in a row.
    """

    def __init__(self, target: str) -> None:
        super().__init__()
        self.target = target
        self.log_softness = nn.Parameter(torch.tensor(math.log(SOFTNESS), dtype=torch.float64))
        self.sharpness = nn.Parameter(torch.tensor([math.log(SHARPNESS), 0.0, 0.0], dtype=torch.float64))

    def forward(self, estimate: Tensor, hidden: Tensor) -> Tensor:
        """(batch, states) log-probabilities.

        Args:
            estimate: (batch, states), up to a positive factor per row.
            hidden: (batch,) share of leaves missing in each row.
        """
        z = normalised(estimate)
        q = soft_positive(z, self.log_softness.exp())
        share = hidden.to(z)
        powers = torch.stack([torch.ones_like(share), share, share.square()], dim=-1)
        sharpness = (powers @ self.sharpness.to(z)).exp().unsqueeze(-1)
        return torch.log_softmax(sharpness * q.log(), dim=-1)

    def extra_repr(self) -> str:
        return f"target={self.target!r}"
