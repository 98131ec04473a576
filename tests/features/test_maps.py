"""The contract of feature maps, held by all of them, and what each kind adds."""

import pytest
import torch

from torchpbp import RBF, Laplace, Matern, Nystroem, RandomFourier
from torchpbp.errors import ArgumentError, DataError, NotFittedError
from torchpbp.features import KernelMap, OneHot

KERNELS = [RBF(), Laplace(), Matern(1.5)]
KERNEL_MAPS = {
    **{f"Nystroem, k-means, {k}": (lambda k=k: Nystroem(24, k)) for k in KERNELS},
    **{f"Nystroem, grid, {k}": (lambda k=k: Nystroem(24, k, landmarks="grid")) for k in KERNELS},
    **{f"RandomFourier, {k}": (lambda k=k: RandomFourier(200, k)) for k in KERNELS},
}
MAPS = {"OneHot": lambda: OneHot(5), **KERNEL_MAPS}


def training_values(name, rows=400, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if name == "OneHot":
        return torch.randint(5, (rows,), generator=generator)
    centre = torch.where(torch.rand(rows, generator=generator) < 0.3, -2.0, 1.0)
    return (centre + torch.randn(rows, generator=generator)).double()


@pytest.mark.parametrize("name", MAPS)
class TestEveryMap:
    def fitted(self, name):
        feature_map = MAPS[name]()
        values = training_values(name)
        feature_map.fit(values)
        return feature_map, values

    def test_shapes(self, name):
        feature_map, values = self.fitted(name)
        for rows in (values, values[:1], values[:0]):
            assert feature_map.features(rows).shape == (len(rows), feature_map.dim)
            assert feature_map.evidence(rows).shape == (len(rows), feature_map.dim)
        assert feature_map.missing().shape == (feature_map.dim,)
        assert feature_map.features(values).dtype == torch.float64

    def test_missing_stands_for_the_constant(self, name):
        feature_map, values = self.fitted(name)
        new = training_values(name, seed=9)
        for rows in (values, new):
            ones = feature_map.features(rows) @ feature_map.missing()
            assert torch.allclose(ones, torch.ones_like(ones), atol=1e-12)

    def test_evidence_is_a_likelihood_of_values(self, name):
        """Evidence x, applied to the features of x', says how well they agree: most for x' = x, hardly far away."""
        feature_map, values = self.fitted(name)
        usual = values.sort().values[40:360:8]
        agreement = feature_map.evidence(usual) @ feature_map.features(usual).T
        assert torch.allclose(agreement, agreement.T, atol=1e-12)
        assert (agreement <= 1 + 1e-9).all()
        assert (agreement.diagonal() > 0.6).all()
        assert agreement[0, -1].abs() < 0.2

    def test_features_do_not_depend_on_their_neighbours(self, name):
        feature_map, values = self.fitted(name)
        assert torch.allclose(feature_map.features(values)[7:9], feature_map.features(values[7:9]), atol=1e-14)

    def test_fitting_again_forgets(self, name):
        feature_map, values = self.fitted(name)
        before = feature_map.features(values)
        if name != "OneHot":
            feature_map.fit(values * 3 + 1)
            assert not torch.allclose(feature_map.features(values), before)
        feature_map.fit(values)
        assert torch.equal(feature_map.features(values), before)

    def test_state_dict_round_trip(self, name):
        feature_map, values = self.fitted(name)
        again = MAPS[name]()
        again.load_state_dict(feature_map.state_dict())
        assert torch.equal(again.features(values), feature_map.features(values))
        assert torch.equal(again.evidence(values), feature_map.evidence(values))


class TestOneHot:
    def test_features_are_indicators_and_their_own_evidence(self):
        feature_map = OneHot(4)
        states = torch.tensor([2, 0, 3])
        assert torch.equal(feature_map.features(states), torch.eye(4, dtype=torch.float64)[states])
        assert torch.equal(feature_map.evidence(states), feature_map.features(states))
        assert feature_map.missing().tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("name", KERNEL_MAPS)
class TestKernelMaps:
    def test_the_constant_comes_first_and_is_no_evidence(self, name):
        feature_map, values = KERNEL_MAPS[name](), training_values(name)
        feature_map.fit(values)
        features, evidence = feature_map.features(values), feature_map.evidence(values)
        assert (features[:, 0] == 1).all()
        assert (evidence[:, 0] == 0).all()
        assert torch.equal(features[:, 1:], evidence[:, 1:])
        assert feature_map.missing().tolist() == [1.0] + [0.0] * (feature_map.dim - 1)

    def test_shift_and_scale_of_the_data_do_not_matter_under_the_median_rule(self, name):
        values = training_values(name)
        plain, moved = KERNEL_MAPS[name](), KERNEL_MAPS[name]()
        plain.fit(values)
        moved.fit(500 - 0.01 * values)
        assert float(moved.width) == pytest.approx(0.01 * float(plain.width), rel=1e-9)
        if "Fourier" in name or "k-means" in name:  # a mirrored grid lists its landmarks the other way round
            mirrored = training_values(name, seed=3)
            a, b = plain.evidence(mirrored), moved.evidence(500 - 0.01 * mirrored)
            assert torch.allclose(a @ a.T, b @ b.T, atol=1e-6)
        moved.fit(500 + 0.01 * values)
        new = training_values(name, seed=3)
        assert torch.allclose(moved.features(500 + 0.01 * new), plain.features(new), atol=1e-6)

    def test_the_bandwidth_scale_multiplies_the_median_rule(self, name):
        values = training_values(name)
        saved = KERNEL_MAPS[name]().to_dict()
        one, two = (KernelMap.from_dict({**saved, "bandwidth_scale": s}) for s in (0.2, 0.6))
        one.fit(values)
        two.fit(values)
        assert float(two.width) == pytest.approx(3 * float(one.width))

    def test_a_given_bandwidth_is_in_units_of_the_data(self, name):
        values = 10 + 4 * training_values(name)
        feature_map = KernelMap.from_dict({**KERNEL_MAPS[name]().to_dict(), "size": 400, "bandwidth": 3.0})
        feature_map.fit(values)
        evidence = feature_map.evidence(values[:50])
        exact = feature_map.kernel.gram(values[:50], values[:50], 3.0)
        assert (evidence @ evidence.T - exact).abs().mean() < 0.03

    def test_settings_round_trip(self, name):
        feature_map = KERNEL_MAPS[name]()
        saved = feature_map.to_dict()
        again = KernelMap.from_dict(saved)
        assert type(again) is type(feature_map)
        assert again.to_dict() == saved
        assert again.settings() == feature_map.settings()
        values = training_values(name)
        feature_map.fit(values)
        again.fit(values)
        assert torch.equal(again.features(values), feature_map.features(values))
        assert again.to_dict() == saved  # fitting does not change settings

    def test_unfitted_maps_raise(self, name):
        with pytest.raises(NotFittedError, match="not fitted"):
            KERNEL_MAPS[name]().features(torch.zeros(3))
        with pytest.raises(NotFittedError, match="not fitted"):
            KERNEL_MAPS[name]().evidence(torch.zeros(3))

    def test_a_constant_column_has_no_median_distance(self, name):
        with pytest.raises(DataError, match="constant column"):
            KERNEL_MAPS[name]().fit(torch.full((20,), 2.5))

    def test_gradients_reach_the_values(self, name):
        feature_map = KERNEL_MAPS[name]()
        feature_map.fit(training_values(name))
        values = torch.tensor([0.37, -1.21], dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(feature_map.evidence, (values,))


def test_a_constant_column_with_a_given_bandwidth_has_finite_features():
    for feature_map in (Nystroem(4, bandwidth=2.0), RandomFourier(10, bandwidth=2.0)):
        feature_map.fit(torch.full((20,), 2.5))
        features = feature_map.features(torch.tensor([2.5, 4.5]))
        assert torch.isfinite(features).all()
        assert float(features[0, 1:].square().sum()) == pytest.approx(1.0)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
@pytest.mark.parametrize("landmarks", ["kmeans", "grid"])
def test_nystroem_with_all_values_as_landmarks_is_the_kernel(kernel, landmarks):
    distinct = torch.linspace(-1, 2, 16, dtype=torch.float64)
    values = distinct[torch.randint(16, (300,), generator=torch.Generator().manual_seed(0))]
    values[:16] = distinct
    feature_map = Nystroem(16, kernel, bandwidth=0.4, landmarks=landmarks)
    feature_map.fit(values)
    z = feature_map.evidence(distinct)
    assert torch.allclose(z @ z.T, kernel.gram(distinct, distinct, 0.4), atol=1e-8)


def test_more_landmarks_than_values_are_harmless():
    values = torch.tensor([0.0, 1.0, 1.0, 4.0], dtype=torch.float64)
    feature_map = Nystroem(30, bandwidth=0.8)
    feature_map.fit(values)
    z = feature_map.evidence(values)
    assert torch.allclose(z @ z.T, RBF().gram(values, values, 0.8), atol=1e-8)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
@pytest.mark.parametrize("landmarks", ["kmeans", "grid"])
def test_nystroem_errors_fall_as_landmarks_grow(kernel, landmarks):
    values = training_values("continuous")
    errors = []
    for size in (4, 8, 16, 32):
        feature_map = Nystroem(size, kernel, bandwidth=1.0, landmarks=landmarks)
        feature_map.fit(values)
        z = feature_map.evidence(values)
        errors.append(float((z @ z.T - kernel.gram(values, values, 1.0)).square().mean().sqrt()))
    assert errors[0] > 1.5 * errors[1] > 1.5**2 * errors[2] > 1.5**3 * errors[3]
    assert errors[-1] < 0.02


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_fourier_errors_fall_like_one_over_root_size(kernel):
    values = training_values("continuous")[:100]
    exact = kernel.gram(values, values, 0.8)
    errors = []
    for size in (40, 4_000):
        squares = []
        for seed in range(8):
            feature_map = RandomFourier(size, kernel, bandwidth=0.8, seed=seed)
            feature_map.fit(values)
            z = feature_map.evidence(values)
            squares.append(float((z @ z.T - exact).square().mean()))
        errors.append((sum(squares) / len(squares)) ** 0.5)
    assert errors[0] / 20 < errors[1] < errors[0] / 5  # a hundred times the features, a tenth of the error
    assert errors[1] < 0.03


def test_kmeans_puts_landmarks_where_the_values_are():
    generator = torch.Generator().manual_seed(0)
    values = torch.cat([torch.randn(900, generator=generator) * 0.1, 10 + torch.randn(100, generator=generator) * 0.1])
    centres, grid = Nystroem(10, bandwidth=1.0), Nystroem(10, bandwidth=1.0, landmarks="grid")
    centres.fit(values)
    grid.fit(values)
    found = centres.centres * centres.scale + centres.mean
    assert ((found < 1) | (found > 9)).all()
    assert (found < 1).sum() >= 4
    assert (found > 9).sum() >= 1
    even = (grid.centres * grid.scale + grid.mean).diff()
    assert torch.allclose(even, even[:1].expand(9), atol=1e-9)


def test_fourier_frequencies_follow_the_seed():
    a, b, c = (RandomFourier(20, seed=s).frequencies for s in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Nystroem(0), "size: expected a whole number of at least 1, got 0"),
        (lambda: RandomFourier(-2), "size: expected a whole number of at least 1, got -2"),
        (lambda: RandomFourier(7), "expected an even number of features, got 7"),
        (
            lambda: Nystroem(5, bandwidth="mean"),
            "bandwidth: expected one of 'median', 'validate' or a positive number, got 'mean'",
        ),
        (lambda: Nystroem(5, bandwidth=0.0), r"expected one of 'median', 'validate' or a positive number, got 0\.0"),
        (
            lambda: RandomFourier(4, bandwidth=-1.0),
            r"expected one of 'median', 'validate' or a positive number, got -1\.0",
        ),
        (
            lambda: Nystroem(5, bandwidth=float("nan")),
            "expected one of 'median', 'validate' or a positive number, got nan",
        ),
        (
            lambda: Nystroem(5, bandwidth=float("inf")),
            "expected one of 'median', 'validate' or a positive number, got inf",
        ),
        (lambda: Nystroem(5, bandwidth_scale=0.0), "bandwidth_scale: expected a positive number"),
        (lambda: RandomFourier(4, bandwidth_scale=float("nan")), "bandwidth_scale: expected a positive number"),
        (lambda: RandomFourier(4, seed=2**64), "seed: .*beyond the range of 64-bit numbers"),
        (lambda: RandomFourier(4, seed="a"), "seed: expected a whole number of at least 0, got 'a'"),
        (lambda: Nystroem(5, landmarks="random"), "landmarks: expected one of 'kmeans', 'grid', got 'random'"),
    ],
)
def test_bad_settings(make, text):
    with pytest.raises(ArgumentError, match=text):
        make()
