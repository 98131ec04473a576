"""Draws of KernelPBP follow its posteriors."""

import pytest
import torch

from tests.models.kernel.rows import NAN, mixed, mixed_graph, settings, stroke_graph, strokes
from torchpbp import KernelPBP


@pytest.fixture(scope="module")
def model():
    return KernelPBP(stroke_graph(), **settings()).fit(strokes(80))


def kolmogorov(draws, density):
    """Largest gap between the draws' distribution and that of a density with one row."""
    ordered = draws.sort().values
    steps = torch.arange(1, len(draws) + 1, dtype=torch.float64) / len(draws)
    where = torch.searchsorted(density.points, ordered).clamp(1, len(density.points) - 1)
    cdf, points = density.cdf()[0], density.points
    share = (ordered - points[where - 1]) / (points[where] - points[where - 1])
    model = cdf[where - 1] + share * (cdf[where] - cdf[where - 1])
    return float(torch.maximum((steps - model).abs(), (steps - 1 / len(draws) - model).abs()).max())


def test_samples_follow_the_posterior():
    model = KernelPBP(mixed_graph(), bandwidth=0.5, dtype=torch.float64).fit(mixed(200, 0))
    count = 6_000
    for evidence in (None, {"x": torch.tensor([0.4])}, {"c": torch.tensor([2]), "y": torch.tensor([NAN])}):
        draws = model.sample(count, evidence, seed=1)
        seen = [v for v in (evidence or {}) if v != "y"]
        for v in model.names:
            values = draws[v].flatten()
            assert len(values) == count
            if v in seen:
                assert (values == evidence[v]).all()
            elif v == "c":
                expected = model.posterior("c", evidence)[0] * count
                counts = torch.bincount(values, minlength=3)
                assert float(((counts - expected) ** 2 / expected).sum()) < 25
            else:
                assert kolmogorov(values, model.posterior(v, evidence)) < 2.5 / count**0.5
    assert draws["y"].min() >= -1.0
    assert draws["y"].max() <= 1.5
    assert (draws["y"] == 1.5).float().mean() < 0.001  # draws are not heaped at the ends of the range


def test_samples_follow_dependences():
    model = KernelPBP(mixed_graph(), bandwidth=0.5, dtype=torch.float64).fit(mixed(200, 0))
    draws = model.sample(6_000, seed=2)
    near = (draws["x"] - 1.0).abs() < 0.05
    given = model.posterior("c", {"x": torch.tensor([1.0])})[0]
    counts = torch.bincount(draws["c"][near], minlength=3).double()
    assert counts.sum() > 40
    error = (given * (1 - given) / counts.sum()).sqrt()
    assert ((counts / counts.sum() - given).abs() < 5 * error + 0.05).all()


def test_sampling_repeats_under_a_seed(model):
    a, b, c = (model.sample(5, {"x1": torch.tensor([0.2])}, seed=s) for s in (1, 1, 2))
    assert all(torch.equal(a[v], b[v]) for v in a)
    assert not torch.equal(a["x2"], c["x2"])
    assert model.sample(0)["x1"].shape == (0,)
    assert a["x1"].tolist() == [[pytest.approx(0.2)]] * 5
