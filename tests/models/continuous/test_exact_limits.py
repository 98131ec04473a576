"""Answers approach those of numerical integration and of the Kalman smoother as rows grow."""

import numpy as np
import pytest
import torch

from tests.models.continuous.gaussian_chain import QUERIES, chain_model, kalman_error
from tests.models.continuous.mixed_model import EMISSIONS, PRIOR, STATES, errors_against_quadrature, mixed, mixed_graph
from torchpbp import PBP


def test_a_mixed_graph_against_numerical_integration(model):
    few = np.mean([errors_against_quadrature(PBP(mixed_graph()).fit(mixed(1_000, s))) for s in (1, 2, 3)], axis=0)
    many = errors_against_quadrature(model)  # 20 times the rows
    assert (many < [0.002, 0.03, 0.05]).all(), many
    assert (many < few / [5, 2, 2]).all(), (few, many)  # KL falls like 1/N, the others like its root


def test_densities_are_blurred_and_means_are_not(model, widths):
    """The mean is not blurred: it comes from a regression of the value itself on its features."""
    density = model.posterior("y", {"c": [0]})
    posterior = PRIOR * STATES[:, 0]
    posterior /= posterior.sum()
    means = np.array([d.mean() for d in EMISSIONS["y"]])
    squares = np.array([d.var() + d.mean() ** 2 for d in EMISSIONS["y"]])
    assert density.mean.item() == pytest.approx(posterior @ means, abs=0.05)
    plain = posterior @ squares - (posterior @ means) ** 2
    assert density.variance.item() == pytest.approx(plain, rel=0.06)
    own = torch.trapezoid(density.values * (density.points - density.mean) ** 2, density.points, dim=1)
    assert own.item() == pytest.approx(plain + widths["y"] ** 2, rel=0.06)


def test_a_linear_gaussian_chain_recovers_the_smoothers_means():
    """The spread of these means is 0.4 to 0.6; a width as large as the latent's deviation keeps the variance small."""
    few, many = chain_model(1.0, 1_500, 0), chain_model(1.0, 30_000, 1)
    for query, seen in QUERIES:
        before, after = (kalman_error(m, query, seen, blur=1.0) for m in (few, many))
        assert after < 0.03, (query, seen, after)
        assert after < before / 2, (query, seen, before, after)


def test_narrow_kernels_approach_the_plain_smoother():
    """Bias falls with the width, variance grows; away from the tails 60 000 rows pay for a width of 0.4."""
    wide, narrow = chain_model(1.0, 60_000, 2), chain_model(0.4, 60_000, 2)
    for query, seen in QUERIES:
        plain = [kalman_error(m, query, seen, blur=0.0, limit=2.0) for m in (wide, narrow)]
        assert plain[1] < 0.6 * plain[0], (query, seen, plain)
        assert plain[1] < 0.08, (query, seen, plain)
        assert kalman_error(narrow, query, seen, blur=0.4, limit=2.0) < 0.05
