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
        rank: dimensions to keep; padded with arbitrary directions of strength 0 if fewer exist.
    """
    u, s, vh = torch.linalg.svd(prediction, full_matrices=False)
    available = s.shape[-1]
    if available < rank:
        raise ValueError(f"rank {rank} exceeds the {available} dimensions of the prediction")
    u, s, vh = u[..., :rank], s[..., :rank], vh[..., :rank, :]
    return Compression(u, s.unsqueeze(-1) * vh, s)
