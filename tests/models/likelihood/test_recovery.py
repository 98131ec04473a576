"""Decomposition of the tensors of three views, and bases of two."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from torchpbp import LatentGraph, MaximumLikelihood
from torchpbp.errors import DataWarning
from torchpbp.models.likelihood.recovery import _attempted, decomposed


def views_of(states: int, directions: tuple[int, ...], generator: torch.Generator) -> tuple[list[Tensor], Tensor]:
    """E[z | h] of three views, and E[z1 ⊗ z2 ⊗ z3]."""
    shares = torch.rand(states, generator=generator, dtype=torch.float64) + 0.3
    shares /= shares.sum()
    views = [
        torch.cat([torch.ones(1, states), torch.randn(n, states, generator=generator)]).double() for n in directions
    ]
    return views, torch.einsum("h,ah,bh,ch->abc", shares, *views)


@pytest.mark.parametrize(("states", "directions"), [(2, (1, 1, 1)), (3, (2, 2, 2)), (4, (3, 3, 3)), (3, (2, 1, 2))])
def test_an_exact_tensor_gives_the_conditional_means_of_a_view(states, directions):
    views, tensor = views_of(states, directions, torch.Generator().manual_seed(states))
    number, matrix = decomposed({"h": tensor}, lambda _: states, np.random.default_rng(0))["h"]
    expected = views[number]
    torch.testing.assert_close(matrix[:, matrix[1].argsort()], expected[:, expected[1].argsort()])


def test_a_tensor_without_enough_directions_is_left_alone():
    _, tensor = views_of(3, (2, 1, 1), torch.Generator().manual_seed(1))
    assert not decomposed({"h": tensor}, lambda _: 3, np.random.default_rng(0))


@pytest.mark.parametrize("seed", range(6))
def test_attempts_do_not_depend_on_each_other(seed):
    """With as many attempts as states, or others, each has the distance and the matrix that it has alone."""
    generator = torch.Generator().manual_seed(seed)
    _, tensor = views_of(3, (2, 2, 2), generator)
    tensors = tensor + 0.003 * torch.randn(8, 3, 3, 3, generator=generator, dtype=torch.float64)
    weights = torch.randn(8, 2, generator=generator, dtype=torch.float64)
    alone = torch.cat([_attempted(t[None, None], w[None, None])[0] for t, w in zip(tensors, weights, strict=True)])
    valid = alone[:, 0].isfinite().nonzero().flatten()
    assert len(valid) >= 3
    for count in range(1, len(valid) + 1):
        together = _attempted(tensors[valid[:count]][None], weights[valid[:count]][None])[0]
        torch.testing.assert_close(together, alone[valid[:count]])


def test_a_latent_with_one_state_and_two_views_is_recovered_from_a_single_distinct_row() -> None:
    graph = LatentGraph([("h", "x"), ("h", "y")], {"h": 1, "x": 2, "y": 2}, ["h"])
    model = MaximumLikelihood(graph, prior=1.0, progress=False)
    with pytest.warns(DataWarning, match="one value in all rows"):
        model.fit({"x": torch.zeros(8, dtype=torch.int64), "y": torch.ones(8, dtype=torch.int64)})
    assert torch.allclose(model.posterior("x"), torch.tensor([[0.9, 0.1]], dtype=torch.float64), atol=1e-3)
