"""Compressed messages: the few directions of a core group's features that the outside can predict.

The first dimension of every message is the constant 1, and the others are centred: ridge penalties then do not affect total
probability, and a subtree without evidence has no effect at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import gammaincc
from torch import Tensor

SIGNIFICANCE = 1e-3
"""Level of the significance tests for directions."""


@dataclass(frozen=True)
class PredictedCores:
    """Whitened covariances of core features φ and instruments η of separators with equal shapes, stacked.

    Args:
        nodes: the separators' tree nodes.
        cross: (separators, core dim, instrument dim).
        gram: (separators, instrument dim, instrument dim).
        constant: (separators, core dim, 1) E[φ], whitened.
        whitener: diagonal (separators, core dim) or full (separators, core dim, core dim) whiteners.
        ones: (separators, core dim) vectors c with c·φ = 1.
        scale: (separators, instrument dim) scales of the instruments.
        rows: (separators,) numbers of rows; below 2 for a population, without tests.
        rank: dimensions of the messages.
    """

    nodes: Sequence[int]
    cross: Tensor
    gram: Tensor
    constant: Tensor
    whitener: Tensor
    ones: Tensor
    scale: Tensor
    rows: Tensor
    rank: int


@dataclass(frozen=True)
class Message:
    """The compressed message of one separator, and its prediction.

    Args:
        features: (core dim, message dim) U with θ = Uᵀφ.
        directions: (core dim, message dim without the constant) U in whitened features.
        predictor: (instrument dim, m) matrix that maps a covariance with the instrument to the prediction's factor space.
        predicted: (message dim without the constant, m) prediction of θ in the factor space.
        strengths: (message dim,) canonical correlations.
        significant: number of statistically significant dimensions of the message.
    """

    features: Tensor
    directions: Tensor
    predictor: Tensor
    predicted: Tensor
    strengths: Tensor
    significant: int


class Compression(NamedTuple):
    """Leading directions of a predicted feature.

    Args:
        directions: (..., d, r) orthonormal directions U in whitened feature space.
        predicted: (..., r, m) the prediction along them, UᵀM.
        strengths: (..., r) canonical correlations, largest first.
        all_strengths: (..., min(d, m)) canonical correlations of all directions.
    """

    directions: Tensor
    predicted: Tensor
    strengths: Tensor
    all_strengths: Tensor


def compress_messages(systems: Iterable[PredictedCores], penalty: float) -> dict[int, Message]:
    """Ridge regression on each instrument, and compression of the prediction.

    Args:
        systems: covariances of all separators.
        penalty: λ of the ridge regression.

    Returns:
        node -> its message.
    """
    result: dict[int, Message] = {}
    for system in systems:
        factor = ridge_factor(system.gram, penalty)
        compression = compress(system.cross @ factor, system.rank - 1)
        # Rounding leaves a component along the mean, which whitening would amplify in weak directions; it is projected out.
        directions = orthogonal_to(system.constant, compression.directions)
        features = torch.cat([system.ones.unsqueeze(-1), apply_whitener(system.whitener, directions)], dim=-1)
        predictor = system.scale.unsqueeze(-1) * factor
        strengths = torch.nn.functional.pad(compression.strengths, (1, 0), value=1.0)
        significant = significant_ranks(system, factor, compression.all_strengths)
        parts = (features, directions, predictor, compression.predicted, strengths)
        for node, u, d, p, g, s, count in zip(system.nodes, *(x.unbind() for x in parts), significant, strict=True):
            result[node] = Message(u, d, p, g, s, count)
    return result


def compress(prediction: Tensor, rank: int) -> Compression:
    """Reduced-rank regression: the leading ``rank`` left singular directions of a whitened prediction [JT, U_i].

    Args:
        prediction: (..., d, m) stage-1 prediction of the whitened feature, E[φηᵀ]F.
        rank: dimensions to keep, at most min(d, m).
    """
    u, s, vh = torch.linalg.svd(prediction, full_matrices=False)
    leading = s[..., :rank]
    return Compression(u[..., :rank], leading.unsqueeze(-1) * vh[..., :rank, :], leading, s)


def ridge_factor(gram: Tensor, penalty: float, tolerance: float = 1e-12) -> Tensor:
    """A factor F with F Fᵀ = (C + λI)⁻¹ C (C + λI)⁻¹, where C = E[ηηᵀ].

    Ridge regression of y on η predicts E[yηᵀ](C + λI)⁻¹η. All that stage 2 needs of two such predictions ḡ, h̄ are
    second moments such as E[h̄ḡᵀ] = (E[y₁ηᵀ]F)(E[y₂ηᵀ]F)ᵀ [PBP Steps 3-4], so E[yηᵀ]F stands for the prediction.
    Directions without variance of the instrument are excluded.

    Args:
        gram: (..., d, d) second moment of the instrument.
        penalty: λ.
        tolerance: eigenvalues below this share of the largest count as zero.

    Returns:
        (..., d, d) factor.
    """
    if gram.shape[-1] == 0:
        return gram
    values, vectors = torch.linalg.eigh(gram)
    varying = values > tolerance * values.amax(dim=-1, keepdim=True)
    safe = torch.where(varying, values, torch.ones_like(values))
    scale = torch.where(varying, safe.sqrt() / (safe + penalty), torch.zeros_like(values))
    return vectors * scale.unsqueeze(-2)


def significant_ranks(system: PredictedCores, factor: Tensor, strengths: Tensor) -> list[int]:
    """Numbers of significant dimensions, including the constant, by Bartlett's test of the remaining correlations.

    Args:
        system: covariances of separators. Replicates are not tested.
        factor: (separators, instrument dim, instrument dim) ridge factors of their instruments.
        strengths: (separators, correlations) all canonical correlations, largest first.
    """
    if system.gram.ndim > 3:
        return [system.rank] * len(system.gram)
    most, correlations = system.rank, _array(strengths)  # numpy is several times faster on tiny arrays
    if float(system.rows[0]) < 2:
        return [min(most, 1 + int(n)) for n in (correlations > 1e-8).sum(axis=1)]
    tested = min(most - 1, correlations.shape[1])
    if not tested:
        return [most] * len(correlations)
    varying = _array(system.cross.any(dim=2))
    inside = varying.sum(axis=1, keepdims=True) - 1
    outside = _array(factor.any(dim=1)).sum(axis=1, keepdims=True)
    rest = np.cumsum(correlations[:, ::-1] ** 2, axis=1)[:, ::-1][:, :tested] * _array(system.rows)[:, None]
    k = np.arange(tested)
    freedom = np.maximum(np.maximum(inside, 1) - k, 1) * np.maximum(np.maximum(outside, 1) - k, 1)
    noise = gammaincc(freedom / 2, rest / 2) > SIGNIFICANCE  # p-values of χ²
    return [most if not row.any() else int(row.argmax()) + 1 for row in noise]


def _array(figures: Tensor) -> npt.NDArray[Any]:
    """A few numbers of each separator as a numpy array."""
    return figures.cpu().numpy()


def apply_whitener(whitener: Tensor, matrix: Tensor) -> Tensor:
    """Whiteners, diagonal (…, d) or full (…, d, d), times matrices (…, d, m)."""
    return whitener.unsqueeze(-1) * matrix if whitener.ndim == matrix.ndim - 1 else whitener @ matrix


def orthogonal_to(direction: Tensor, matrix: Tensor) -> Tensor:
    """Columns of (…, d, m) matrices made orthogonal to (…, d, 1) directions."""
    return matrix - direction @ (direction.mT @ matrix) / (direction.mT @ direction)
