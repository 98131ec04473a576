"""Values far from the others: an error while fitting where numbers cannot hold them, answered rightly as evidence."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch

from tests.models.kernel.rows import clique_graph
from torchpbp import Continuous, GenerativeClassifier, KernelPBP, LatentGraph, templates
from torchpbp.errors import DataError, DataWarning
from torchpbp.features import Kernel, Laplace, Matern
from torchpbp.features.kernels import most_bandwidths

GRAPH = LatentGraph(
    [("h", "x"), ("h", "y"), ("h", "c")], {"h": 2, "x": Continuous(), "y": Continuous(), "c": 3}, latent=["h"]
)
KERNELS: dict[str, Kernel | None] = {"rbf": None, "laplace": Laplace(), "matern": Matern(2.5)}


def rows(count: int = 80, seed: int = 0) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(seed)
    h = rng.integers(2, size=count)
    return {
        "x": torch.from_numpy(3.0 * h + rng.normal(size=count)),
        "y": torch.from_numpy(2.0 * h + rng.normal(size=count)),
        "c": torch.from_numpy((h + rng.integers(2, size=count)) % 3),
    }


def with_outlier(value: float, row: int = 7) -> dict[str, torch.Tensor]:
    data = rows()
    data["x"][row] = value
    return data


# -- in training -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("value", [1e8, -1e8, 1e20, 1e39, 1e80, 1e150])
def test_outliers_that_leave_no_digits_for_the_others_raise(value: float, kernel: str) -> None:
    for options in ({}, {"landmarks": 10}, {"bandwidth": 1.0}):
        model = KernelPBP(GRAPH, kernel=KERNELS[kernel], **options)
        with pytest.raises(
            DataError, match=r"Column 'x', row 7: value .* lies .* bandwidths of .* from the median"
        ) as info:
            model.fit(with_outlier(value))
        assert "float32 has no digits left" in str(info.value)
        assert ("dtype=torch.float64" in str(info.value)) == (abs(value) < 1e13)
        assert not model.fitted


@pytest.mark.parametrize("value", [1e200, -1.7e308])
def test_outliers_whose_squares_leave_the_range_of_numbers_raise(value: float) -> None:
    for dtype in (torch.float32, torch.float64):
        with pytest.raises(DataError, match=r"column 'x', row 7: value .* is too large: its square"):
            KernelPBP(GRAPH, dtype=dtype).fit(with_outlier(value))


def test_rows_are_counted_as_in_the_data() -> None:
    """Also where a row without any value is left out before."""
    data = with_outlier(1e20)
    for v in ("x", "y"):
        data[v] = torch.cat([torch.full((1,), torch.nan, dtype=torch.float64), data[v]])
    data["c"] = torch.cat([torch.tensor([-1]), data["c"]])
    with pytest.warns(DataWarning, match="1 of 81 rows"), pytest.raises(DataError, match="Column 'x', row 8: value 1e"):
        KernelPBP(GRAPH).fit(data)


@pytest.mark.filterwarnings("ignore:Ranges too wide")
def test_double_precision_takes_wider_columns() -> None:
    wide = KernelPBP(GRAPH, dtype=torch.float64).fit(with_outlier(1e8))
    data = rows()
    plain = KernelPBP(GRAPH, dtype=torch.float64).fit({v: torch.cat([x[:7], x[8:]]) for v, x in data.items()})
    evidence = {"y": [0.0, 2.0], "x": [0.0, 3.0]}
    for model in (wide, plain):
        assert torch.isfinite(model.log_evidence(evidence)).all()
    assert torch.allclose(wide.posterior("c", evidence), plain.posterior("c", evidence), atol=0.05)
    with pytest.raises(DataError, match="float64 has no digits left"):
        KernelPBP(GRAPH, dtype=torch.float64).fit(with_outlier(1e16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("scale", [1e100, 1e-100])
def test_the_unit_of_a_column_does_not_matter(scale: float, kernel: str, dtype: torch.dtype) -> None:
    data, evidence = rows(), {"x": torch.tensor([0.0, 3.0]).double(), "y": torch.tensor([1.0, 2.0]).double()}
    plain = KernelPBP(GRAPH, kernel=KERNELS[kernel], dtype=dtype).fit(data)
    scaled = KernelPBP(GRAPH, kernel=KERNELS[kernel], dtype=dtype).fit({**data, "x": scale * data["x"]})
    given = {**evidence, "x": scale * evidence["x"]}
    torch.testing.assert_close(scaled.posterior("c", given), plain.posterior("c", evidence))
    shift = math.log(scale)
    torch.testing.assert_close(scaled.log_evidence(given) + shift, plain.log_evidence(evidence), atol=1e-4, rtol=1e-4)
    a, b = scaled.posterior("x", {"y": [0.0]}), plain.posterior("x", {"y": [0.0]})
    torch.testing.assert_close(a.mean / scale, b.mean)
    torch.testing.assert_close(a.variance / scale / scale, b.variance)


def test_columns_too_narrow_for_squares_raise() -> None:
    data = rows()
    with pytest.raises(DataError, match=r"Column 'x': all values lie within .*e-200 of each other"):
        KernelPBP(GRAPH).fit({**data, "x": 1e-200 * data["x"]})


@pytest.mark.parametrize("value", [2e3, 2e4])
def test_a_range_too_wide_for_densities_is_told(value: float) -> None:
    with pytest.warns(DataWarning, match=r"Ranges too wide for the 513 points .* 'x' \(.* bandwidths\)\. .*quantiles"):
        model = KernelPBP(GRAPH).fit(with_outlier(value))
    plain = KernelPBP(GRAPH).fit(rows())  # answers about other variables are right
    evidence = {"x": [0.0, 3.0]}
    assert torch.allclose(model.posterior("c", evidence), plain.posterior("c", evidence), atol=0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        KernelPBP(GRAPH).fit(with_outlier(50.0))
    wide = LatentGraph(GRAPH.edges, {**GRAPH.variables, "y": Continuous(0.0, 1e6)}, GRAPH.latent)
    data = rows()
    with pytest.warns(DataWarning, match="'y'"):
        KernelPBP(wide).fit({**data, "y": data["y"].abs()})


# -- in evidence -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [1e3, 1e6, 1e9, 1e20, 1e39, 1e150, 1e200, 1.7e308])
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_far_evidence_speaks_for_the_nearest_row(value: float, sign: float, dtype: torch.dtype) -> None:
    data = rows()
    model = KernelPBP(GRAPH, dtype=dtype).fit(data)
    far = sign * value
    nearest = int((sign * data["x"]).argmax())
    evidence = {"x": [0.0, far]}
    answer = model.posterior("c", evidence)
    expected = model.posterior("c", {"x": [0.0, sign * 1e3]})  # where single precision is enough
    torch.testing.assert_close(answer, expected)
    assert answer[1].argmax() == data["c"][nearest]
    torch.testing.assert_close(answer[:1], model.posterior("c", {"x": [0.0]}))
    density = model.posterior("y", evidence)
    for numbers in (density.values, density.mean, density.variance, model.log_evidence(evidence)):
        assert torch.isfinite(numbers).all()
    drawn = model.sample(4, evidence, seed=0)
    assert torch.isfinite(drawn["y"]).all()
    assert (drawn["x"][:, 1] == far).all()


def test_far_log_evidence_is_that_of_the_kernel() -> None:
    data = rows()
    single, double = (KernelPBP(GRAPH, bandwidth=1.0, dtype=d).fit(data) for d in (torch.float32, torch.float64))
    for value in (1e6, 1e9, 1e100):
        expected = -0.5 * (value - float(data["x"].max())) ** 2
        for model in (single, double):
            assert float(model.log_evidence({"x": [value]})) == pytest.approx(expected, rel=1e-6)
    far = torch.tensor([1e5, 1e6, 1e7, 1e8, 1e30, 1e60], dtype=torch.float64)
    assert (single.log_evidence({"x": far}).diff() < 0).all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_far_evidence_never_gives_nan(kernel: str) -> None:
    model = KernelPBP(GRAPH, kernel=KERNELS[kernel]).fit(rows())
    for value in (1e19, 1e20, 1e38, 1e39, 1e200, 1.7e308):
        evidence = {"x": [value, 0.0], "y": [-value, 1.0]}
        assert torch.isfinite(model.log_evidence(evidence)).all()
        assert torch.allclose(model.posterior("c", evidence).sum(dim=1), torch.ones(2))
        assert torch.isfinite(model.posterior("y", {"x": [value]}).values).all()


def test_far_strokes_in_charts() -> None:
    """A whole stroke far away has the increments of one nearby, and says the same about what is compared by increments."""
    names = [f"{axis}{t}" for t in (1, 2, 3) for axis in "xy"]
    graph = clique_graph(3, 1e300)
    rng = np.random.default_rng(1)
    data = {v: torch.from_numpy(rng.normal(size=60)) for v in names}
    sequences = [[f"{axis}{t}" for t in (1, 2, 3)] for axis in "xy"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        single, double = (
            KernelPBP(graph, sequences=sequences, bandwidth=1.0, dtype=d).fit(data)
            for d in (torch.float32, torch.float64)
        )
    for offset in (1e6, 1e9):
        moved = {v: x[:5] + (offset if v[0] == "x" else 0.0) for v, x in data.items()}
        found = single.log_evidence(moved)
        torch.testing.assert_close(found, double.log_evidence(moved), rtol=1e-6, atol=1e-3)
        values = torch.stack([data[v] for v in names], dim=1)
        place = torch.stack([moved[v] for v in names], dim=1)
        both = place.unsqueeze(1) - values
        both[..., :4] = both[..., :4] - both[..., 2:]
        expected = torch.logsumexp(-0.5 * both.square().sum(dim=-1), dim=1) - math.log(60) - 3 * math.log(2 * math.pi)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-3)


def test_a_classifier_with_a_narrow_class_still_tells_classes_apart() -> None:
    """Rows of one class may lie a million bandwidths from those of the other."""
    rng = np.random.default_rng(0)
    x = np.concatenate([1e-6 * rng.normal(size=(30, 2)), 5 + rng.normal(size=(30, 2))])
    y = np.repeat([0, 1], 30)
    classifier = GenerativeClassifier(templates.mixture, KernelPBP).fit(x, y)
    assert (classifier.predict(x) == y).all()
    assert np.isfinite(classifier.log_scores(x)).all()


def test_limits() -> None:
    assert most_bandwidths(torch.float32) == pytest.approx(1.68e5, rel=0.01)
    assert most_bandwidths(torch.float64) == pytest.approx(9.0e13, rel=0.01)
    assert most_bandwidths(torch.bfloat16) == 1e3
