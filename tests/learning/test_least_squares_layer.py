"""Stage 2 as a layer that gradients pass through."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchpbp import LeastSquaresLayer
from torchpbp.errors import ArgumentError, ShapeError


def draws(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("shape", [(20, 3, 2), (4, 12, 2, 3)])
def test_gradients_through_the_solve(intercept, shape):
    *lead, rows, r, p = shape
    g, h = draws(*lead, rows, r).requires_grad_(), draws(*lead, rows, p, seed=1).requires_grad_()
    layer = LeastSquaresLayer(penalty=0.1, intercept=intercept)
    assert torch.autograd.gradcheck(layer, (h, g))
    assert torch.autograd.gradgradcheck(layer, (h, g), atol=1e-4)


def test_it_solves_the_normal_equations():
    g, h, penalty = draws(50, 3), draws(50, 2, seed=1), 0.3
    weight = LeastSquaresLayer(penalty)(h, g)
    expected = torch.linalg.solve(g.T @ g / 50 + penalty * torch.eye(3), g.T @ h / 50).T
    torch.testing.assert_close(weight, expected)


def test_the_intercept_is_not_penalised():
    g, h = draws(40, 2), draws(40, 3, seed=1) + 100
    weight = LeastSquaresLayer(penalty=1e6, intercept=True)(h, g)
    torch.testing.assert_close(weight[:, 0], h.mean(dim=0), rtol=1e-4, atol=1e-4)
    assert weight[:, 1:].abs().max() < 1e-4


def test_float32_is_solved_in_double_precision():
    g = draws(30, 1) * torch.tensor([[1.0, 1e-4]], dtype=torch.float64) + draws(30, 2, seed=3) * 1e-5
    h = g @ torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    single = LeastSquaresLayer(0.0)(h.float(), g.float())
    assert single.dtype == torch.float32
    double = LeastSquaresLayer(0.0)(h.float().double(), g.float().double())
    torch.testing.assert_close(single, double.float())


def test_a_feature_extractor_is_trained_through_it():
    """The target is linear in the square of the input: only features that find the square let the layer predict it."""
    x = draws(200, 1)
    y = x.square() + 0.01 * draws(200, 1, seed=2)
    torch.manual_seed(0)
    extractor = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 2)).double()
    layer = LeastSquaresLayer(1e-4, intercept=True)
    optimizer = torch.optim.Adam(extractor.parameters(), 0.02)

    def loss() -> torch.Tensor:
        features = extractor(x)
        weight = layer(y, features)
        return (y - weight[:, 0] - features @ weight[:, 1:].T).square().mean()

    before = float(loss())
    for _ in range(150):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
    assert float(loss()) < 0.05 * before


@pytest.mark.parametrize(
    "penalty",
    [
        torch.tensor(0.3, dtype=torch.float64),
        torch.tensor([0.1, 0.0, 2.0], dtype=torch.float64),
        torch.tensor([[0.1, 0.2, 2.0], [0.0, 1.0, 0.5]], dtype=torch.float64),
        torch.tensor([[0.4], [0.7]], dtype=torch.float64),
    ],
    ids=["scalar", "per dimension", "batched", "one per system"],
)
def test_penalties_as_tensors(penalty):
    """A scalar, one for each predictor, or one for each predictor of each system."""
    lead = penalty.shape[:-1]
    g, h = draws(*lead, 40, 3), draws(*lead, 40, 2, seed=1)
    found = LeastSquaresLayer(penalty)(h, g)
    diagonal = torch.diag_embed(penalty.expand(*lead, 3))
    expected = torch.linalg.solve(g.mT @ g / 40 + diagonal, g.mT @ h / 40).mT
    torch.testing.assert_close(found, expected)
    from_moments = LeastSquaresLayer(penalty).from_moments(h.mT @ g / 40, g.mT @ g / 40)
    torch.testing.assert_close(from_moments, expected)


@pytest.mark.parametrize("lead", [(), (3,)])
def test_moments_and_factors_give_what_rows_give(lead):
    g, h = draws(*lead, 50, 4), draws(*lead, 50, 2, seed=1)
    layer = LeastSquaresLayer(0.05)
    rows = layer(h, g)
    torch.testing.assert_close(layer.from_moments(h.mT @ g / 50, g.mT @ g / 50), rows)
    torch.testing.assert_close(layer.from_factors(h.mT / 50**0.5, g.mT / 50**0.5), rows)
    centred = LeastSquaresLayer(0.05, intercept=True)(h, g)[..., 1:]
    g0, h0 = g - g.mean(dim=-2, keepdim=True), h - h.mean(dim=-2, keepdim=True)
    torch.testing.assert_close(layer.from_moments(h0.mT @ g0 / 50, g0.mT @ g0 / 50), centred)


def test_float32_moments_come_back_in_float32():
    g, h = draws(50, 3).float(), draws(50, 2, seed=1).float()
    found = LeastSquaresLayer(0.1).from_moments(h.T @ g / 50, g.T @ g / 50)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, LeastSquaresLayer(0.1)(h, g))


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_gradients_reach_the_penalty(shape):
    lead = shape[:-1]
    penalty = (draws(*shape, seed=2).abs() + 0.1).requires_grad_()
    g, h = draws(*lead, 20, 3).requires_grad_(), draws(*lead, 20, 2, seed=1).requires_grad_()

    def solved(penalty, h, g):
        return LeastSquaresLayer(penalty)(h, g)

    def from_moments(penalty, h, g):
        return LeastSquaresLayer(penalty).from_moments(h.mT @ g / 20, g.mT @ g / 20)

    assert torch.autograd.gradcheck(solved, (penalty, h, g))
    assert torch.autograd.gradcheck(from_moments, (penalty, h, g))


def test_a_parameter_as_penalty_is_trained_and_kept_in_the_state():
    """A larger ridge is learned for a predictor that is noise than for one that is not."""
    penalty = nn.Parameter(torch.full((2,), 0.1, dtype=torch.float64))
    layer = LeastSquaresLayer(penalty)
    assert list(layer.state_dict()) == ["penalty"]
    assert "penalty=tensor of shape (2,)" in repr(layer)
    g = draws(20, 2)
    h = g[:, :1] + draws(20, 1, seed=1)
    fresh = draws(2000, 2, seed=3)
    optimizer = torch.optim.Adam([penalty], 0.02)
    for _ in range(30):
        optimizer.zero_grad()
        (fresh[:, :1] - fresh @ layer(h, g).T).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            penalty.clamp_(min=0)
    assert float(penalty[1].detach()) > 0.3 > 0.1 > float(penalty[0].detach())


def test_moments_that_lack_rank_give_the_smallest_solution():
    g = draws(30, 2)
    wide = torch.cat([g, g[:, :1]], dim=1)
    h = g @ torch.tensor([[2.0], [1.0]], dtype=torch.float64)
    weight = LeastSquaresLayer(1e-8).from_moments(h.T @ wide / 30, wide.T @ wide / 30)
    torch.testing.assert_close(weight, torch.tensor([[1.0, 1.0, 1.0]], dtype=torch.float64), rtol=1e-4, atol=1e-4)


def test_bad_input():
    with pytest.raises(ArgumentError, match="penalty: expected a non-negative number"):
        LeastSquaresLayer(-1.0)
    for wrong in (torch.tensor([0.1, -1.0]), torch.tensor([1, 2]), torch.tensor([torch.nan])):
        with pytest.raises(ArgumentError, match="penalty: expected non-negative floating-point numbers"):
            LeastSquaresLayer(wrong)
    with pytest.raises(ShapeError, match=r"penalty.*\(…, r\) with r = 2, got \(3,\)"):
        LeastSquaresLayer(torch.ones(3))(draws(5, 2), draws(5, 2))
    with pytest.raises(ShapeError, match=r"cross .* and gram"):
        LeastSquaresLayer().from_moments(draws(2, 3), draws(3, 2))
    with pytest.raises(ShapeError, match=r"cross .* and gram"):
        LeastSquaresLayer().from_moments(draws(2, 3), draws(4, 4))
    with pytest.raises(ShapeError, match=r"cross .* and gram"):
        LeastSquaresLayer().from_moments(draws(3), draws(3, 3))
    with pytest.raises(ShapeError, match="same rows"):
        LeastSquaresLayer()(draws(3, 2), draws(4, 2))
    with pytest.raises(ShapeError, match="at least one row"):
        LeastSquaresLayer()(draws(0, 2), draws(0, 2))
