"""Operators between training rows: the formula itself, and its low-rank form."""

import numpy as np
import pytest
import torch

from torchpbp import RBF
from torchpbp.models.kernel.gram_operators import GramOperator, full_operator, landmark_features, thin_operator
from torchpbp.models.kernel.kernel_pbp import _flushed_denormals

PENALTIES = [(0.1, 0.1), (1e-3, 2.0), (5.0, 1e-2)]


def grams(rows=60, seed=0):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    values[:, 1] += values[:, 0]
    core = RBF().gram(values[:, 0], values[:, 0], 0.8)
    instrument = RBF().gram(values[:, 1], values[:, 1], 0.8) * RBF().gram(values[:, 2], values[:, 2], 1.5)
    return core, instrument


def literally(core, instrument, stage1, stage2):
    """B = (K_η + λI)⁻¹K_η, A = B (BᵀK_S B + λ₂I)⁻¹ Bᵀ, up = K_S A."""
    eye = np.eye(len(core))
    b = np.linalg.inv(instrument + stage1 * eye) @ instrument
    a = b @ np.linalg.inv(b.T @ core @ b + stage2 * eye) @ b.T
    return core @ a


@pytest.mark.parametrize(("stage1", "stage2"), PENALTIES)
def test_full_operator_is_the_formula(stage1, stage2):
    core, instrument = grams()
    expected = literally(core.numpy(), instrument.numpy(), stage1, stage2)
    found = full_operator(core, instrument, stage1, stage2)
    assert np.allclose(found.numpy(), expected, atol=1e-8)
    assert np.abs(expected).max() > 1e-3


@pytest.mark.parametrize(("stage1", "stage2"), PENALTIES)
def test_thin_operator_of_exact_features_is_the_full_one(stage1, stage2):
    core, instrument = grams()
    factors = [torch.linalg.cholesky(k + 1e-12 * torch.eye(len(k), dtype=k.dtype)) for k in (core, instrument)]
    left, right = thin_operator(*factors, stage1, stage2)
    assert torch.allclose(left @ right, full_operator(core, instrument, stage1, stage2), atol=1e-6)


def test_all_rows_as_landmarks_give_the_full_operator():
    core, instrument = grams()
    p, h = landmark_features(core, core), landmark_features(instrument, instrument)
    assert torch.allclose(p @ p.T, core, atol=1e-6)
    left, right = thin_operator(p, h, 0.1, 0.1)
    assert left.shape == p.shape
    assert right.shape == (p.shape[1], 60)
    assert torch.allclose(left @ right, full_operator(core, instrument, 0.1, 0.1), atol=1e-5)


def test_more_landmarks_come_closer():
    core, instrument = grams(rows=150)
    full = full_operator(core, instrument, 0.1, 0.1)
    order = torch.randperm(150, generator=torch.Generator().manual_seed(1))
    errors = []
    for count in (15, 30, 60, 120):
        chosen = order[:count]
        p = landmark_features(core[:, chosen], core[chosen][:, chosen])
        h = landmark_features(instrument[:, chosen], instrument[chosen][:, chosen])
        left, right = thin_operator(p, h, 0.1, 0.1)
        errors.append(float((left @ right - full).norm() / full.norm()))
    assert errors[0] > 2 * errors[1] > 4 * errors[2] > 8 * errors[3]
    assert errors[3] < 0.03


def test_equal_landmarks_are_harmless():
    core, _ = grams()
    chosen = torch.tensor([3, 3, 7, 7, 7])
    features = landmark_features(core[:, chosen], core[chosen][:, chosen])
    assert features.shape[1] == 2
    assert torch.isfinite(features).all()


@pytest.mark.parametrize("thin", [False, True])
def test_downward_is_the_adjoint_of_upward(thin):
    core, instrument = grams()
    if thin:
        factor = torch.linalg.cholesky(core + 1e-9 * torch.eye(60))
        operator = GramOperator(*thin_operator(factor, instrument, 0.1, 0.1))
    else:
        operator = GramOperator(full_operator(core, instrument, 0.1, 0.1))
    generator = torch.Generator().manual_seed(2)
    values, coefficients = (torch.randn(4, 60, generator=generator, dtype=torch.float64) for _ in range(2))
    up, down = operator.upward(values), operator.downward(coefficients)
    assert up.shape == down.shape == (4, 60)
    assert torch.allclose((up * coefficients).sum(dim=1), (values * down).sum(dim=1), atol=1e-10)


def test_a_function_that_the_instrument_predicts_passes_unharmed():
    """With weak penalties the operator projects: a core function of an instrument equal to the core is kept."""
    core, _ = grams()
    smooth = core[:, :3].sum(dim=1)
    found = full_operator(core, core, 1e-6, 1e-6) @ smooth
    assert torch.allclose(found, smooth, atol=1e-3)


@pytest.mark.parametrize("before", [False, True])
def test_denormal_numbers_are_flushed_only_within(before):
    small = torch.tensor([torch.finfo(torch.float64).tiny], dtype=torch.float64)
    if not torch.set_flush_denormal(before):
        pytest.skip("this processor cannot flush denormal numbers")
    try:
        with _flushed_denormals():
            assert float(small.mul(0.5)) == 0
        assert (float(small.mul(0.5)) == 0) is before
    finally:
        torch.set_flush_denormal(False)
