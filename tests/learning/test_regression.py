"""The linear algebra of the two stages against textbook formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchpbp.learning.compression import compress, ridge_factor
from torchpbp.learning.least_squares import least_squares

sizes = st.integers(1, 6)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# -- stage 2 ---------------------------------------------------------------------------------------------------------


@given(p=sizes, r=sizes, extra=st.integers(0, 10), seed=st.integers(0, 1000))
def test_least_squares_matches_numpy(p, r, extra, seed):
    targets, inputs = normal(p, r + extra, seed=seed), normal(r, r + extra, seed=seed + 1)
    expected = np.linalg.lstsq(inputs.numpy().T, targets.numpy().T, rcond=None)[0].T
    scale = np.abs(expected).max()
    np.testing.assert_allclose(least_squares(targets, inputs, 0.0), expected, atol=1e-9 * scale)


@given(p=sizes, r=sizes, m=st.integers(1, 12), seed=st.integers(0, 1000), penalty=st.sampled_from([1e-3, 0.5, 10.0]))
def test_ridge_matches_the_normal_equations(p, r, m, seed, penalty):
    targets, inputs = normal(p, m, seed=seed), normal(r, m, seed=seed + 1)
    expected = targets @ inputs.T @ torch.linalg.inv(inputs @ inputs.T + penalty * torch.eye(r, dtype=torch.float64))
    torch.testing.assert_close(least_squares(targets, inputs, penalty), expected, atol=1e-9, rtol=1e-9)


def test_batches_of_systems_are_solved_one_by_one():
    targets, inputs = normal(3, 2, 4, 9), normal(3, 2, 5, 9, seed=1)
    together = least_squares(targets, inputs, 0.1)
    assert together.shape == (3, 2, 4, 5)
    for i in range(3):
        for j in range(2):
            torch.testing.assert_close(together[i, j], least_squares(targets[i, j], inputs[i, j], 0.1))


def test_an_operator_that_exists_is_found_through_bad_conditioning():
    """The condition number is not squared: 1e7 still leaves nine digits."""
    truth = normal(3, 4)
    u, _ = torch.linalg.qr(normal(4, 4, seed=1))
    v, _ = torch.linalg.qr(normal(20, 4, seed=2))
    inputs = u @ torch.diag(torch.tensor([1.0, 1e-3, 1e-5, 1e-7], dtype=torch.float64)) @ v.T
    torch.testing.assert_close(least_squares(truth @ inputs, inputs, 0.0), truth, atol=1e-7, rtol=0)


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e6])
def test_rank_deficient_inputs_give_finite_operators_that_still_fit(scale):
    inputs = scale * normal(5, 2) @ normal(2, 12, seed=1)
    targets = normal(3, 5, seed=2) @ inputs
    operator = least_squares(targets, inputs, 0.0)
    assert torch.isfinite(operator).all()
    torch.testing.assert_close(operator @ inputs, targets, atol=1e-9 * scale, rtol=0)


def test_inputs_of_zeros_give_an_operator_of_zeros():
    operator = least_squares(normal(2, 6), torch.zeros(3, 6, dtype=torch.float64), 0.0)
    assert torch.equal(operator, torch.zeros(2, 3, dtype=torch.float64))


def test_one_empty_system_in_a_batch_leaves_the_others_alone():
    inputs = normal(2, 3, 6)
    inputs[0] = 0.0
    targets = normal(2, 2, 6, seed=1)
    together = least_squares(targets, inputs, 0.0)
    assert torch.isfinite(together).all()
    torch.testing.assert_close(together[1], least_squares(targets[1], inputs[1], 0.0))


def test_no_inputs_at_all():
    assert least_squares(normal(4, 6), normal(0, 6), 0.1).shape == (4, 0)


def test_a_growing_penalty_shrinks_the_operator():
    targets, inputs = normal(3, 10), normal(4, 10, seed=1)
    norms = [float(least_squares(targets, inputs, p).norm()) for p in (0.0, 0.1, 1.0, 100.0)]
    assert norms == sorted(norms, reverse=True)
    assert norms[-1] < 0.1 * norms[0]


@pytest.mark.parametrize("penalty", [0.0, 0.3])
def test_least_squares_is_differentiable(penalty):
    targets, inputs = normal(2, 7).requires_grad_(), normal(3, 7, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda h, g: least_squares(h, g, penalty), (targets, inputs))


# -- compression -----------------------------------------------------------------------------------------------------


@given(d=sizes, m=sizes, data=st.data())
def test_compression_keeps_the_leading_directions(d, m, data):
    rank = data.draw(st.integers(1, min(d, m)))
    prediction = normal(2, d, m, seed=d * 10 + m)
    directions, predicted, strengths, every = compress(prediction, rank)
    assert every.shape == (2, min(d, m))
    torch.testing.assert_close(every[:, :rank], strengths)
    assert directions.shape == (2, d, rank)
    assert predicted.shape == (2, rank, m)
    eye = torch.eye(rank, dtype=torch.float64).expand(2, -1, -1)
    torch.testing.assert_close(directions.mT @ directions, eye)
    torch.testing.assert_close(predicted, directions.mT @ prediction)
    torch.testing.assert_close(predicted.norm(dim=-1), strengths)
    assert (strengths[..., :-1] >= strengths[..., 1:]).all()
    residual = prediction - directions @ predicted
    left_out = torch.linalg.svdvals(prediction)[..., rank:]
    torch.testing.assert_close(residual.norm(dim=(-2, -1)), left_out.norm(dim=-1), atol=1e-12, rtol=1e-9)


def test_nothing_is_lost_at_the_true_rank():
    prediction = normal(6, 2) @ normal(2, 9, seed=1)
    directions, predicted, _, _ = compress(prediction, 2)
    torch.testing.assert_close(directions @ predicted, prediction)


# -- stage 1 ---------------------------------------------------------------------------------------------------------


@given(d=sizes, seed=st.integers(0, 1000), penalty=st.sampled_from([0.0, 1e-3, 0.5, 7.0]))
def test_the_ridge_factor_is_a_root_of_the_ridge_solution(d, seed, penalty):
    root = normal(d, d + 3, seed=seed)
    gram = root @ root.T
    factor = ridge_factor(gram, penalty)
    inverse = torch.linalg.inv(gram + penalty * torch.eye(d, dtype=torch.float64))
    expected = inverse @ gram @ inverse
    torch.testing.assert_close(factor @ factor.T, expected, atol=1e-8 * float(expected.abs().max()), rtol=1e-6)


def test_the_ridge_factor_stands_for_predictions_of_data():
    """E[h̄ḡᵀ] of two ridge regressions on the same instrument is the product of what stands for them."""
    rows, penalty = 50, 0.2
    eta, y1, y2 = normal(rows, 4), normal(rows, 3, seed=1), normal(rows, 2, seed=2)
    gram = eta.T @ eta / rows
    solve = torch.linalg.inv(gram + penalty * torch.eye(4, dtype=torch.float64))
    prediction1, prediction2 = (eta @ solve @ (eta.T @ y / rows) for y in (y1, y2))
    factor = ridge_factor(gram, penalty)
    one, two = (y.T @ eta / rows @ factor for y in (y1, y2))
    torch.testing.assert_close(one @ two.T, prediction1.T @ prediction2 / rows)


def test_directions_without_variation_are_left_out():
    root = normal(5, 2)
    gram = root @ root.T
    factor = ridge_factor(gram, 0.0)
    assert torch.isfinite(factor).all()
    torch.testing.assert_close(factor @ factor.T, torch.linalg.pinv(gram, rtol=1e-10), atol=1e-9, rtol=1e-7)


def test_a_batch_of_ridge_factors():
    root = normal(3, 4, 6)
    gram = root @ root.mT
    together = ridge_factor(gram, 0.1)
    for i in range(3):
        alone = ridge_factor(gram[i], 0.1)
        torch.testing.assert_close(together[i] @ together[i].T, alone @ alone.T)


def test_an_instrument_of_zeros():
    assert torch.equal(ridge_factor(torch.zeros(3, 3), 0.0), torch.zeros(3, 3))
