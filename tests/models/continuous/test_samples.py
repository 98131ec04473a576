"""Samples of continuous and mixed models."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from tests.models.continuous.mixed_model import NAN, mixed


def distribution_function(density):
    cdf = density.cdf()[0].numpy()
    return lambda values: np.interp(values, density.points.numpy(), cdf)


@torch.no_grad()
def test_samples_follow_the_posterior(model):
    count = 8_000
    for evidence in (None, {"x": [1.8]}, {"c": [1], "x": [NAN]}):
        draws = model.sample(count, evidence, seed=1)
        for v in "xyc":
            values = draws[v].flatten()
            assert len(values) == count
            if v in (evidence or {}) and (v != "x" or not math.isnan(evidence["x"][0])):
                assert (values == evidence[v][0]).all()
            elif v == "c":
                expected = model.posterior("c", evidence)[0] * count
                counts = torch.bincount(values, minlength=4)
                assert float(((counts - expected) ** 2 / expected).sum()) < 25
            else:
                density = model.posterior(v, evidence)
                # A draw passes through two clipped densities, so more than sampling error is allowed.
                assert stats.kstest(values.numpy(), distribution_function(density)).statistic < 1.95 / count**0.5 + 0.01
                low, high = model.observables[v].bounds
                assert ((values >= low) & (values <= high)).all()


@torch.no_grad()
def test_samples_follow_dependences(model, widths):
    """Draws are blurred like densities, so their moments are those of the model plus the widths squared."""
    draws = model.sample(20_000, seed=3)
    truth = mixed(200_000, 77)
    for v in "xy":
        assert draws[v].mean().item() == pytest.approx(truth[v].mean().item(), abs=0.1)
        assert draws[v].var().item() == pytest.approx(truth[v].var().item() + widths[v] ** 2, rel=0.05)
    covariance = np.cov(draws["x"], draws["y"])[0, 1]
    assert covariance == pytest.approx(np.cov(truth["x"], truth["y"])[0, 1], abs=0.15)
    for c in range(4):
        assert draws["x"][draws["c"] == c].mean().item() == pytest.approx(
            truth["x"][truth["c"] == c].mean().item(), abs=0.2
        )


def test_sampling_repeats_under_a_seed(model):
    a, b, c = (model.sample(20, seed=s) for s in (1, 1, 2))
    assert all(torch.equal(a[v], b[v]) for v in a)
    assert not torch.equal(a["x"], c["x"])
    empty = model.sample(0)
    assert empty["x"].dtype == torch.float64
    assert empty["c"].dtype == torch.int64


def test_rough_estimates_still_give_valid_samples(rough):
    draws = rough.sample(500, seed=0)
    assert all(torch.isfinite(x).all() for x in draws.values())
    table = rough.diagnostics()
    assert len(table) == 3
