"""Stage 2 as a layer that gradients pass through."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchpbp import LeastSquaresLayer
from torchpbp.errors import ArgumentError, ShapeError


def draws(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


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


def test_bad_input():
    with pytest.raises(ArgumentError, match="penalty: expected a non-negative number"):
        LeastSquaresLayer(-1.0)
    with pytest.raises(ShapeError, match="same rows"):
        LeastSquaresLayer()(draws(3, 2), draws(4, 2))
    with pytest.raises(ShapeError, match="at least one row"):
        LeastSquaresLayer()(draws(0, 2), draws(0, 2))
