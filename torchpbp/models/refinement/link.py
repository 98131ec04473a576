"""A score link with a gradient everywhere: what a probability is to a signed score, without clipping.

The two-stage operators give scores that should be probabilities and are sometimes negative. The logarithm of a clipped
score is flat there: descent sees no way back. The link replaces max(s, 0) by the smooth positive part
(s + √(s² + 4c²)) / 2, whose logarithm is asinh(s / 2c) + log c. For s ≫ c it is log s up to c²/s², at s = 0 it is log c,
and for negative scores it goes on falling like -log |s|.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchpbp.errors import StructureError

LINK_SCALE = 1e-3
"""c, as a share of the sum of absolute values of the scores that are compared."""


def log_link(score: Tensor, scale: float = LINK_SCALE) -> Tensor:
    """Logarithm of the smooth positive part of a score; finite, rising and differentiable everywhere.

    Args:
        score: any shape, any sign.
        scale: c > 0, the score below which the link leaves the logarithm.
    """
    return torch.asinh(score / (2 * checked_scale(scale))) + math.log(scale)


def log_probabilities(estimate: Tensor, scale: float = LINK_SCALE) -> Tensor:
    """Log-probabilities of signed scores.

    Args:
        estimate: (..., states), each row up to a positive factor; a row of zeros means no information.
        scale: c as a share of the row's absolute mass.

    Returns:
        (..., states) whose exponentials sum to 1.
    """
    mass = estimate.detach().abs().sum(dim=-1, keepdim=True)
    linked = log_link(estimate / torch.where(mass > 0, mass, torch.ones_like(mass)), scale)
    return linked - linked.logsumexp(dim=-1, keepdim=True)


def checked_scale(scale: float) -> float:
    """A positive, finite number."""
    if not (scale > 0 and math.isfinite(scale)):
        raise StructureError(f"scale: expected a positive number, got {scale}.")
    return scale
