"""Stage 2: the linear operator that turns one prediction into another, by regularised least squares [PBP Step 5]."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchpbp.errors import ShapeError
from torchpbp.settings import flag, non_negative


def least_squares(targets: Tensor, inputs: Tensor, penalty: float) -> Tensor:
    """W = argmin ‖H − W G‖² + λ‖W‖², by QR of the stacked system, so that G's condition number is not squared.

    Args:
        targets: H, (..., p, m).
        inputs: G, (..., r, m) with m ≥ r.
        penalty: λ; a floor of (1e-13 · max|G|)², and of 1e-26, keeps a G harmless that lacks rank or is all rounding.

    Returns:
        (..., p, r) operator.
    """
    rank = inputs.shape[-2]
    if rank == 0:
        return targets[..., :0]
    largest = inputs.detach().abs().amax(dim=(-2, -1), keepdim=True)
    # Predictions are of unit-variance features: what is far below 1 in all entries is rounding, in G as in H.
    root = (penalty + (1e-13 * largest.clamp(min=1)) ** 2).sqrt()
    eye = torch.eye(rank, dtype=inputs.dtype, device=inputs.device)
    stacked = torch.cat([inputs.mT, root * eye], dim=-2)
    zeros = targets.new_zeros(*targets.shape[:-2], rank, targets.shape[-2])
    right = torch.cat([targets.mT, zeros], dim=-2)
    q, r = torch.linalg.qr(stacked)
    return torch.linalg.solve_triangular(r, q.mT @ right, upper=True).mT


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
        self.penalty: float = non_negative().check("penalty", penalty)
        self.intercept: bool = flag().check("intercept", intercept)

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
