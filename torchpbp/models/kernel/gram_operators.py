"""Stage 1 and stage 2 in kernel form: one matrix per separator on values of functions at the training rows.

With K_η the Gram matrix of the instrument and K_S that of the core group, stage 1 is B = (K_η + λI)⁻¹K_η and stage 2
gives G = K_S B (BᵀK_S B + λ₂I)⁻¹ Bᵀ; an upward message is G times the product of the messages below [PBP §5].
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class GramOperator(nn.Module):
    """G as a full matrix, or as a product of two thin ones.

    Args:
        left: (rows, rows), or (rows, m) if ``right`` is given.
        right: (m, rows).
    """

    left: Tensor
    right: Tensor | None

    def __init__(self, left: Tensor, right: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("left", left)
        self.register_buffer("right", right)

    def upward(self, values: Tensor) -> Tensor:
        """(batch, rows) -> (batch, rows): G v."""
        return values @ self.left.T if self.right is None else (values @ self.right.T) @ self.left.T

    def downward(self, coefficients: Tensor) -> Tensor:
        """(batch, rows) -> (batch, rows): Gᵀ c."""
        return coefficients @ self.left if self.right is None else (coefficients @ self.left) @ self.right

    def trace(self) -> float:
        """Sum of the eigenvalues of G: its degrees of freedom as a smoother of messages."""
        return float(self.left.trace() if self.right is None else (self.left * self.right.T).sum())


def full_operator(core: Tensor, instrument: Tensor, stage1: float, stage2: float) -> Tensor:
    """G from full Gram matrices, by Cholesky solves in float64.

    Args:
        core: (n, n) Gram matrix of the core group.
        instrument: (n, n) Gram matrix of the instrument.
        stage1: λ.
        stage2: λ₂.
    """
    eye = torch.eye(len(core), dtype=core.dtype, device=core.device)
    b = torch.cholesky_solve(instrument, torch.linalg.cholesky(instrument + stage1 * eye))
    inner = b.T @ core @ b
    factor = torch.linalg.cholesky(0.5 * (inner + inner.T) + stage2 * eye)
    return core @ b @ torch.cholesky_solve(b.T, factor)


def thin_operator(core: Tensor, instrument: Tensor, stage1: float, stage2: float) -> tuple[Tensor, Tensor]:
    """G from features P and H with K_S ≈ PPᵀ and K_η ≈ HHᵀ, without an n × n matrix.

    Args:
        core: P, (n, p).
        instrument: H, (n, h).
        stage1: λ.
        stage2: λ₂.

    Returns:
        P and M with G = PM.
    """
    eye = torch.eye(instrument.shape[1], dtype=core.dtype, device=core.device)
    lower = torch.linalg.cholesky(instrument.T @ instrument + stage1 * eye)
    q = torch.linalg.solve_triangular(lower, instrument.T, upper=False)  # B = QᵀQ
    r = q @ core
    weighted = q @ q.T @ q
    gram = r.T @ (q @ q.T) @ r + stage2 * torch.eye(core.shape[1], dtype=core.dtype, device=core.device)
    return core, torch.cholesky_solve(r.T @ weighted, torch.linalg.cholesky(0.5 * (gram + gram.T)))


def landmark_features(with_landmarks: Tensor, among_landmarks: Tensor) -> Tensor:
    """Features whose products approximate a kernel: k(·, c) K_cc^{-1/2}, without small eigenvalues.

    Args:
        with_landmarks: (n, m) kernel between rows and landmarks.
        among_landmarks: (m, m).
    """
    values, vectors = torch.linalg.eigh(among_landmarks)
    large = values > 1e-8 * values[-1]
    return with_landmarks @ (vectors[:, large] * values[large].rsqrt())
