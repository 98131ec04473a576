"""Compressed messages: the few directions of a core group's features that the outside can predict."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Compression(NamedTuple):
    """Leading directions of a predicted feature.

    Args:
        directions: (..., d, r) orthonormal directions U in whitened feature space.
        predicted: (..., r, m) the prediction along them, UᵀM.
        strengths: (..., r) canonical correlations, largest first.
        all_strengths: (..., min(d, m)) those of the directions left out as well.
    """

    directions: Tensor
    predicted: Tensor
    strengths: Tensor
    all_strengths: Tensor


def compress(prediction: Tensor, rank: int) -> Compression:
    """Reduced-rank regression: the leading ``rank`` left singular directions of a whitened prediction [JT, U_i].

    Args:
        prediction: (..., d, m) stage-1 prediction of the whitened feature, E[φηᵀ]F.
        rank: dimensions to keep, at most min(d, m).
    """
    u, s, vh = torch.linalg.svd(prediction, full_matrices=False)
    kept = s[..., :rank]
    return Compression(u[..., :rank], kept.unsqueeze(-1) * vh[..., :rank, :], kept, s)
