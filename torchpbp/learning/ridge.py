"""Linear stage 1 in closed form: ridge regression of inside features on instruments, from moments alone."""

from __future__ import annotations

import torch
from torch import Tensor


def ridge_factor(gram: Tensor, penalty: float, tolerance: float = 1e-12) -> Tensor:
    """A factor F with F Fᵀ = (C + λI)⁻¹ C (C + λI)⁻¹, where C = E[ηηᵀ].

    Ridge regression of y on η predicts E[yηᵀ](C + λI)⁻¹η. All that stage 2 needs of two such predictions ḡ, h̄ are
    second moments such as E[h̄ḡᵀ] = (E[y₁ηᵀ]F)(E[y₂ηᵀ]F)ᵀ [PBP Steps 3-4], so E[yηᵀ]F stands for the prediction.
    Directions in which the instrument does not vary are left out.

    Args:
        gram: (..., d, d) second moment of the instrument.
        penalty: λ.
        tolerance: eigenvalues below this part of the largest count as zero.

    Returns:
        (..., d, d) factor.
    """
    if gram.shape[-1] == 0:
        return gram
    values, vectors = torch.linalg.eigh(gram)
    kept = values > tolerance * values.amax(dim=-1, keepdim=True)
    safe = torch.where(kept, values, torch.ones_like(values))
    scale = torch.where(kept, safe.sqrt() / (safe + penalty), torch.zeros_like(values))
    return vectors * scale.unsqueeze(-2)
