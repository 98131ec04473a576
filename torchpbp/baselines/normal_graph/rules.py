"""Four learning rules of a block's matrix from its messages [NG 3, 4].

The rules use only the forward messages f at the block's input and the backward messages b at its output. They support any number
of leading dimensions, so that blocks of one shape, or several starts, learn in one call.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchpbp.errors import ShapeError
from torchpbp.settings import Settings, choice, non_negative, setting, whole

RULES = ("ml", "kl", "vit", "var")
"""Names of the rules, best first according to the paper."""


@dataclass(frozen=True)
class Rule(Settings):
    """Learning rule of a block.

    Args:
        name: "ml" maximises Σ log fᵀθb, "kl" minimises Σ KL(b ‖ θᵀf), both step by step; "vit" counts the most probable
            states, "var" averages outer products, both in one step.
        iterations: number of steps of "ml" and "kl" per update of messages.
        delta: small number that "vit" adds to the messages and "var" to the counts. For "ml" and "kl" it is the smallest entry
            of a matrix, so that no later row is impossible.
    """

    name: str = setting("ml", choice(*RULES))
    iterations: int = setting(3, whole(1))
    delta: float = setting(1e-6, non_negative())

    def __call__(self, theta: Tensor, f: Tensor, b: Tensor, mask: Tensor) -> Tensor:
        """The matrix after learning.

        Args:
            theta: (…, X, Y) row-stochastic initial matrix.
            f: (…, N, X) forward messages at the input.
            b: (…, N, Y) backward messages at the output.
            mask: (N,) or (…, N) weight of each row, the learning mask L[n]; 0 excludes a row.
        """
        _check(theta, f, b, mask)
        if self.name == "vit":
            return viterbi_step(theta, f, b, mask, self.delta)
        if self.name == "var":
            return variational_step(theta, f, b, mask, self.delta)
        step = ml_step if self.name == "ml" else kl_step
        for _ in range(self.iterations):
            theta = step(theta, f, b, mask)
        floored = theta.clamp(min=self.delta)
        return floored / floored.sum(dim=-1, keepdim=True)


def ml_step(theta: Tensor, f: Tensor, b: Tensor, mask: Tensor) -> Tensor:
    """One step of the ML algorithm; never lowers Σ_n L[n] log f[n]ᵀ θ b[n]. Shapes as in :class:`Rule`."""
    # The algorithm's division by Σ_n L[n] f[n] is omitted, because the normalisation of rows cancels it.
    likelihood = ((f @ theta) * b).sum(dim=-1)
    return normalised(theta * (_scaled(f, mask, likelihood).mT @ b), theta)


def kl_step(theta: Tensor, f: Tensor, b: Tensor, mask: Tensor) -> Tensor:
    """One step of the KL algorithm; never raises Σ_n L[n] KL(b[n] ‖ θᵀ f[n]). Shapes as in :class:`Rule`."""
    predicted = f @ theta  # (…, N, Y)
    ratio = torch.where(predicted > 0, b / predicted.clamp(min=1e-300), torch.zeros_like(predicted))
    return normalised(theta * ((f * mask.unsqueeze(-1)).mT @ ratio), theta)


def viterbi_step(theta: Tensor, f: Tensor, b: Tensor, mask: Tensor, delta: float) -> Tensor:
    """Counts of the most probable states at input and output; ties go to the first state."""
    sharp_f, sharp_b = sharpened(f) + delta, sharpened(b) + delta
    return normalised((sharp_f * mask.unsqueeze(-1)).mT @ sharp_b, theta)


def variational_step(theta: Tensor, f: Tensor, b: Tensor, mask: Tensor, delta: float) -> Tensor:
    """Sum of the outer products of forward and backward messages."""
    return normalised(delta + (f * mask.unsqueeze(-1)).mT @ b, theta)


def block_log_likelihood(theta: Tensor, f: Tensor, b: Tensor, mask: Tensor) -> Tensor:
    """(…,) Σ_n L[n] log f[n]ᵀ θ b[n]; excluded rows do not count even if they are impossible."""
    return _masked_sum(((f @ theta) * b).sum(dim=-1).log(), mask)


def sharpened(message: Tensor) -> Tensor:
    """One-hot at the largest entry of the last dimension."""
    return torch.zeros_like(message).scatter_(-1, message.argmax(dim=-1, keepdim=True), 1.0)


def normalised(counts: Tensor, otherwise: Tensor) -> Tensor:
    """Rows divided by their sums; rows of zeros are replaced by those of ``otherwise``."""
    total = counts.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, counts / total.clamp(min=1e-300), otherwise)


def _scaled(f: Tensor, mask: Tensor, likelihood: Tensor) -> Tensor:
    weight = torch.where(likelihood > 0, mask / likelihood.clamp(min=1e-300), torch.zeros_like(likelihood))
    return f * weight.unsqueeze(-1)


def _masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask > 0, values * mask, torch.zeros_like(values)).sum(dim=-1)


def _check(theta: Tensor, f: Tensor, b: Tensor, mask: Tensor) -> None:
    rows, (x, y) = f.shape[-2], theta.shape[-2:]
    if f.shape[-1] != x or b.shape[-1] != y or b.shape[-2] != rows or mask.shape[-1] != rows:
        raise ShapeError(
            f"Block: expected f (…, N, {x}), b (…, N, {y}) and a mask (…, N), got {tuple(f.shape)}, {tuple(b.shape)} and "
            f"{tuple(mask.shape)}."
        )
