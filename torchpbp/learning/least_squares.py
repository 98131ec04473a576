"""Stage 2: the linear operator from one prediction to another, by regularised least squares [PBP Step 5]."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchpbp.errors import ArgumentError, ShapeError
from torchpbp.precision import full_precision
from torchpbp.settings import flag, non_negative, shortened


def least_squares(targets: Tensor, inputs: Tensor, penalty: float | Tensor) -> Tensor:
    """W = argmin ‖H − W G‖² + λ‖W‖², by QR of the stacked system, which does not square the condition number of G.

    Args:
        targets: H, (..., p, m).
        inputs: G, (..., r, m) with m ≥ r.
        penalty: λ, a number or (…, r) one for each dimension of the inputs. The floor max((1e-13 · max|G|)², 1e-26) is added,
            for G without full rank or of rounding errors only.

    Returns:
        (..., p, r) operator.
    """
    rank = inputs.shape[-2]
    if rank == 0:
        return targets[..., :0]
    largest = inputs.detach().abs().amax(dim=(-2, -1), keepdim=True)
    # Predicted features have unit variance: predictions far below 1 in all entries are rounding errors, in G and in H.
    least = (1e-13 * largest.clamp(min=1)) ** 2
    root = ((penalty.unsqueeze(-1) if isinstance(penalty, Tensor) and penalty.ndim else penalty) + least).sqrt()
    eye = torch.eye(rank, dtype=inputs.dtype, device=inputs.device)
    stacked = torch.cat([inputs.mT, root * eye], dim=-2)
    zeros = targets.new_zeros(*targets.shape[:-2], rank, targets.shape[-2])
    right = torch.cat([targets.mT, zeros], dim=-2)
    with full_precision(inputs.device):
        q, r = torch.linalg.qr(stacked)
        return torch.linalg.solve_triangular(r, q.mT @ right, upper=True).mT


class LeastSquaresLayer(nn.Module):
    """The least-squares operator between two batches of predictions, differentiable in both: stage 2 of PBP.

    Solves W = argmin Σ_i ‖h_i − W g_i‖² / n + λ‖W‖² in float64 by QR and returns W in the dtype of the targets. The solve is
    differentiable: networks that produce g, h or upstream features can be trained by any loss on W or its predictions. Leading
    dimensions are batches of independent systems.

    Args:
        penalty: λ, a number, or a differentiable tensor of one λ for each of the r predictors, (r,) or (…, r). A positive
            penalty keeps the gradient finite for collinear predictors.
        intercept: add a constant to the predictors; W then has an additional first column, which is not penalised.

    Example:
        >>> layer = LeastSquaresLayer(penalty=1e-6)
        >>> g = torch.randn(100, 3, dtype=torch.float64)
        >>> w = torch.randn(2, 3, dtype=torch.float64)
        >>> bool((layer(g @ w.T, g) - w).abs().max() < 1e-4)
        True
    """

    def __init__(self, penalty: float | Tensor = 1e-6, intercept: bool = False) -> None:
        super().__init__()
        if isinstance(penalty, Tensor):
            if not penalty.is_floating_point() or (penalty.device.type != "meta" and not bool((penalty >= 0).all())):
                raise ArgumentError(
                    f"penalty: expected non-negative floating-point numbers, got {shortened(penalty.tolist())}."
                )
            self.penalty: float | Tensor = penalty
        else:
            self.penalty = non_negative().check("penalty", penalty)
        self.intercept: bool = flag().check("intercept", intercept)

    def forward(self, targets: Tensor, inputs: Tensor) -> Tensor:
        """The operators, from rows of predictions.

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
        weight = self.from_factors(h.mT / rows**0.5, g.mT / rows**0.5)
        if self.intercept:
            weight = torch.cat([h_mean.mT - weight @ g_mean.mT, weight], dim=-1)
        return weight.to(targets.dtype)

    def from_moments(self, cross: Tensor, gram: Tensor) -> Tensor:
        """The operators, from second moments of predictions, W (E[ggᵀ] + λ) = E[hgᵀ]; centre them for an intercept.

        Args:
            cross: E[hgᵀ], (..., p, r).
            gram: E[ggᵀ], (..., r, r), symmetric and positive semi-definite.

        Returns:
            (..., p, r).
        """
        if min(gram.ndim, cross.ndim) < 2 or len({*gram.shape[-2:], cross.shape[-1]}) > 1:
            raise ShapeError(
                "LeastSquaresLayer: expected moments cross (..., p, r) and gram (..., r, r), got "
                f"{tuple(cross.shape)} and {tuple(gram.shape)}."
            )
        # With L Lᵀ = gram, the factors L⁻¹ gram = Lᵀ and cross L⁻ᵀ have these moments, and the condition number is not squared.
        factor = cholesky_factor(gram.double())
        targets = torch.linalg.solve_triangular(factor, cross.double().mT, upper=False).mT
        return self.from_factors(targets, factor).to(cross.dtype)

    def from_factors(self, targets: Tensor, inputs: Tensor) -> Tensor:
        """The operators, from factors of the moments: W = argmin ‖H − W G‖² + λ‖W‖².

        Args:
            targets: H with H Gᵀ = E[hgᵀ], (..., p, m), float64.
            inputs: G with G Gᵀ = E[ggᵀ], (..., r, m), float64.

        Returns:
            (..., p, r).
        """
        penalty = self.penalty.to(inputs) if isinstance(self.penalty, Tensor) else self.penalty
        if isinstance(penalty, Tensor) and penalty.ndim and penalty.shape[-1] not in (1, inputs.shape[-2]):
            raise ShapeError(
                f"LeastSquaresLayer: expected a penalty of shape () or (…, r) with r = {inputs.shape[-2]}, got {tuple(penalty.shape)}."
            )
        return least_squares(targets, inputs, penalty)

    def extra_repr(self) -> str:
        shown = (
            self.penalty
            if isinstance(self.penalty, float)
            else f"tensor of shape {tuple(torch.as_tensor(self.penalty).shape)}"
        )
        return f"penalty={shown}, intercept={self.intercept}"


def cholesky_factor(gram: Tensor) -> Tensor:
    """(..., d, d) L with L Lᵀ = gram + εI, where ε > 0 makes a singular gram positive definite."""
    size = gram.shape[-1]
    trace = gram.detach().diagonal(dim1=-2, dim2=-1).mean(dim=-1)[..., None, None].clamp(min=1e-300)
    eye = torch.eye(size, dtype=gram.dtype, device=gram.device)
    factor, failed = torch.linalg.cholesky_ex(gram + 1e-12 * trace * eye)
    if gram.device.type != "meta" and not torch.compiler.is_compiling() and bool(failed.any()):
        factor = torch.linalg.cholesky(gram + 1e-9 * trace * eye)
    return factor
