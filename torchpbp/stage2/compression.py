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
    """

    directions: Tensor
    predicted: Tensor
    strengths: Tensor


def compress(prediction: Tensor, rank: int) -> Compression:
    """Reduced-rank regression: the leading ``rank`` left singular directions of a whitened prediction [JT, U_i].

    Args:
        prediction: (..., d, m) stage-1 prediction of the whitened feature, E[φηᵀ]F.
        rank: dimensions to keep, at most min(d, m).
    """
    u, s, vh = torch.linalg.svd(prediction, full_matrices=False)
    u, s, vh = u[..., :rank], s[..., :rank], vh[..., :rank, :]
    return Compression(u, s.unsqueeze(-1) * vh, s)
