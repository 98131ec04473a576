"""Kernels: their normalisation, spectra and the median rule."""

import pytest
import torch
from scipy.integrate import quad

from tests.closeness import assert_same_up_to_rounding
from torchpbp import RBF, Laplace, Matern
from torchpbp.errors import ArgumentError, DataError
from torchpbp.features import Kernel, median_bandwidth

KERNELS = [RBF(), Laplace(), Matern(0.5), Matern(1.5), Matern(2.5)]
parametrised = pytest.mark.parametrize("kernel", KERNELS, ids=repr)


@parametrised
class TestEveryKernel:
    def test_profile_starts_at_one_and_falls(self, kernel):
        values = kernel.profile(torch.linspace(0, 8, 200, dtype=torch.float64))
        assert values[0].item() == pytest.approx(1, abs=1e-15)
        assert (values.diff() < 0).all()
        assert 0 <= values[-1] < 0.01

    def test_integral_is_that_of_the_profile(self, kernel):
        half, _ = quad(lambda d: float(kernel.profile(torch.tensor(d, dtype=torch.float64))), 0, 60, epsabs=1e-11)
        assert kernel.integral == pytest.approx(2 * half, abs=1e-8)

    def test_gram_is_a_positive_semidefinite_function_of_distance(self, kernel):
        generator = torch.Generator().manual_seed(0)
        a, b = (torch.randn(n, generator=generator, dtype=torch.float64) for n in (40, 25))
        gram = kernel.gram(a, b, 0.7)
        assert gram.shape == (40, 25)
        assert gram[3, 4].item() == pytest.approx(kernel.profile((a[3] - b[4]).abs() / 0.7).item(), abs=1e-14)
        square = kernel.gram(a, a, 0.7)
        assert_same_up_to_rounding(square, square.T)
        assert_same_up_to_rounding(square.diagonal(), torch.ones(40, dtype=torch.float64))
        assert torch.linalg.eigvalsh(square).min() > -1e-12

    def test_spectral_frequencies_reproduce_the_kernel(self, kernel):
        frequencies = kernel.frequencies(40_000, torch.Generator().manual_seed(1))
        assert frequencies.shape == (40_000,)
        distance = torch.tensor([0.0, 0.3, 1.0, 2.5], dtype=torch.float64)
        waves = (frequencies.unsqueeze(1) * distance).cos()
        error = 5 * waves.std(dim=0) / 40_000**0.5 + 1e-12
        assert ((waves.mean(dim=0) - kernel.profile(distance)).abs() < error).all()

    def test_frequencies_follow_the_generator(self, kernel):
        a, b, c = (kernel.frequencies(5, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
        assert torch.equal(a, b)
        assert not torch.equal(a, c)

    def test_saving_round_trip(self, kernel):
        again = Kernel.from_dict(kernel.to_dict())
        assert type(again) is type(kernel)
        assert repr(again) == repr(kernel)
        assert again.to_dict() == kernel.to_dict()
        assert again.integral == kernel.integral


def test_matern_one_half_is_laplace():
    distance = torch.linspace(0, 20, 500, dtype=torch.float64)
    assert torch.allclose(Matern(0.5).profile(distance), Laplace().profile(distance), atol=1e-15, rtol=1e-14)
    assert Matern(0.5).integral == pytest.approx(Laplace().integral, rel=1e-12)


def test_matern_grows_smoother_towards_rbf():
    distance = torch.linspace(0, 4, 100, dtype=torch.float64)
    distances = [float((Matern(nu).profile(distance) - RBF().profile(distance)).abs().max()) for nu in (0.5, 1.5, 2.5)]
    assert distances[0] > distances[1] > distances[2]


def test_matern_knows_three_smoothnesses():
    with pytest.raises(ArgumentError, match=r"nu: expected one of 0\.5, 1\.5, 2\.5, got 1\.0"):
        Matern(1.0)


def test_median_rule_by_hand():
    assert median_bandwidth(torch.tensor([0.0, 1.0, 5.0])) == 4.0  # distances 1, 4, 5
    assert median_bandwidth(torch.tensor([3, 0, 1, 7, 12])) == 5.0  # of 1, 2, 3, 4, 5, 6, 7, 9, 11, 12
    assert median_bandwidth(torch.tensor([2.0, 2.0, 2.0, 5.0])) == 3.0  # equal values do not count
    with pytest.raises(DataError, match="constant column"):
        median_bandwidth(torch.full((10,), 3.0))


def test_median_rule_looks_at_rows_over_the_whole_column():
    ramp = torch.linspace(0, 1, 10_001, dtype=torch.float64)
    expected = 1 - 0.5**0.5  # of the distance between two uniform draws
    assert median_bandwidth(ramp) == pytest.approx(expected, abs=2e-3)
    assert median_bandwidth(ramp, rows=100) == pytest.approx(expected, abs=2e-2)
    assert median_bandwidth(1000 + 7 * ramp) == pytest.approx(7 * median_bandwidth(ramp), rel=1e-9)
