"""LeastSquaresLayer: stage 2 as a layer, so that what feeds it can be trained through the solve."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchpbp.errors import ShapeError, StructureError
from torchpbp.learning.least_squares import least_squares


class LeastSquaresLayer(nn.Module):
    """The operator that best leads from one batch of predictions to another, differentiable in both.

    Solves W = argmin Σ_i ‖h_i − W g_i‖² / n + λ‖W‖² in float64 by QR, whatever the inputs' precision, and hands back W in
    theirs. The backward pass goes through the solve: networks that produce g or h, or features further upstream, can be
    trained by any loss on W or on what it predicts. Leading dimensions are batches of independent systems.

    Args:
        penalty: λ. A positive one keeps the gradient finite where predictors are collinear.
        intercept: add a constant to the predictors; W then has one more column, the first, which is not penalised.

    Example:
        >>> layer = LeastSquaresLayer(penalty=1e-6)
        >>> g = torch.randn(100, 3, dtype=torch.float64)
        >>> w = torch.randn(2, 3, dtype=torch.float64)
        >>> bool((layer(g @ w.T, g) - w).abs().max() < 1e-4)
        True
    """

    def __init__(self, penalty: float = 1e-6, intercept: bool = False) -> None:
        super().__init__()
        if not penalty >= 0:
            raise StructureError(f"penalty: expected a non-negative number, got {penalty}.")
        self.penalty = penalty
        self.intercept = intercept

    def forward(self, targets: Tensor, inputs: Tensor) -> Tensor:
        """The operators.

        Args:
            targets: h, (..., rows, p).
            inputs: g, (..., rows, r).

        Returns:
            (..., p, r), or (..., p, 1 + r) with an intercept.
        """
        if targets.ndim < 2 or inputs.ndim < 2 or targets.shape[:-1] != inputs.shape[:-1]:
            raise ShapeError(
                "LeastSquaresLayer: expected targets (..., rows, p) and inputs (..., rows, r) with the same rows, got "
                f"{tuple(targets.shape)} and {tuple(inputs.shape)}."
            )
        rows = inputs.shape[-2]
        if rows == 0:
            raise ShapeError("LeastSquaresLayer: expected at least one row, got none.")
        h, g = targets.double(), inputs.double()
        h_mean = h.mean(dim=-2, keepdim=True)
        g_mean = g.mean(dim=-2, keepdim=True)
        if self.intercept:
            h, g = h - h_mean, g - g_mean
        weight = least_squares(h.mT / rows**0.5, g.mT / rows**0.5, self.penalty)
        if self.intercept:
            weight = torch.cat([h_mean.mT - weight @ g_mean.mT, weight], dim=-1)
        return weight.to(targets.dtype)

    def extra_repr(self) -> str:
        return f"penalty={self.penalty}, intercept={self.intercept}"
