"""Stage 2: the linear operator that turns one prediction into another, by regularised least squares [PBP Step 5]."""

from __future__ import annotations

import torch
from torch import Tensor


def least_squares(targets: Tensor, inputs: Tensor, penalty: float) -> Tensor:
    """W = argmin ‖H − W G‖² + λ‖W‖², by QR of the stacked system, so that G's condition number is not squared.

    Args:
        targets: H, (..., p, m).
        inputs: G, (..., r, m) with m ≥ r.
        penalty: λ; a floor of (1e-13 · max|G|)² keeps a rank-deficient G harmless.

    Returns:
        (..., p, r) operator.
    """
    rank = inputs.shape[-2]
    if rank == 0:
        return targets[..., :0]
    largest = inputs.detach().abs().amax(dim=(-2, -1), keepdim=True)
    root = (penalty + (1e-13 * largest) ** 2).sqrt().clamp(min=torch.finfo(inputs.dtype).tiny ** 0.5)  # G may be 0
    eye = torch.eye(rank, dtype=inputs.dtype, device=inputs.device)
    stacked = torch.cat([inputs.mT, root * eye], dim=-2)
    zeros = targets.new_zeros(*targets.shape[:-2], rank, targets.shape[-2])
    right = torch.cat([targets.mT, zeros], dim=-2)
    q, r = torch.linalg.qr(stacked)
    return torch.linalg.solve_triangular(r, q.mT @ right, upper=True).mT
