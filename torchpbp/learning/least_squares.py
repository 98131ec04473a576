"""Stage 2: the linear operator that turns one prediction into another, by regularised least squares [PBP Step 5]."""

from __future__ import annotations

import torch
from torch import Tensor


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
