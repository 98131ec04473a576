"""Values far from the others in models with kernel features: an error while fitting, never NaN in an answer."""

from __future__ import annotations

import pytest
import torch

from torchpbp import PBP, Continuous, LatentGraph, PBPLayer
from torchpbp.errors import DataError, DataWarning
from torchpbp.features import KernelMap, Laplace, Matern, Nystroem, RandomFourier, complete_table

GRAPH = LatentGraph(
    [("h", "x"), ("h", "y"), ("h", "c")], {"h": 2, "x": Continuous(), "y": Continuous(), "c": 3}, latent=["h"]
)
MAPS: dict[str, KernelMap] = {
    "nystroem": Nystroem(6),
    "grid": Nystroem(6, landmarks="grid"),
    "laplace": Nystroem(6, kernel=Laplace()),
    "matern": Nystroem(6, kernel=Matern(2.5)),
    "fourier": RandomFourier(10),
    "width": Nystroem(6, bandwidth=1.0),
}


def rows(count: int = 200, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    h = torch.randint(2, (count,), generator=generator)
    noise = torch.randn(2, count, generator=generator, dtype=torch.float64)
    return {
        "x": 3.0 * h + noise[0],
        "y": 2.0 * h + noise[1],
        "c": (h + torch.randint(2, (count,), generator=generator)) % 3,
    }


@pytest.mark.parametrize("features", MAPS)
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e16, r"Column 'x': value 1e\+16 lies .* bandwidths of .* from the median .* no digits left"),
        (-1e100, r"Column 'x': value -1e\+100 lies .* bandwidths"),
        (1e200, r"column 'x', row 7: value 1e\+200 is too large: its square"),
        (1.7e308, r"column 'x', row 7: value 1\.7e\+308 is too large: its square"),
    ],
)
def test_outliers_beyond_numbers_raise(features: str, value: float, text: str) -> None:
    data = rows()
    data["x"][7] = value
    model = PBP(GRAPH, features=MAPS[features])
    with pytest.raises(DataError, match=text):
        model.fit(data)
    assert not model.fitted


def test_a_range_too_wide_for_densities_is_told() -> None:
    data = rows()
    plain = PBP(GRAPH, features=Nystroem(6)).fit(data)
    data["x"][7] = 1e4
    with pytest.warns(DataWarning, match=r"Ranges too wide for the 513 points .* 'x' \(.* bandwidths\)"):
        model = PBP(GRAPH, features=Nystroem(6)).fit(data)
    evidence = {"y": [0.0, 2.0]}
    with torch.no_grad():
        assert torch.allclose(model.posterior("c", evidence), plain.posterior("c", evidence), atol=0.1)


@torch.no_grad()
@pytest.mark.parametrize("features", MAPS)
@pytest.mark.parametrize("value", [1e9, 1e20, 1e39, 1e200, 1.7e308, -1.7e308])
def test_far_evidence_never_gives_nan(features: str, value: float) -> None:
    """Kernels are 0 there: the model holds such evidence impossible, and answers with the marginal."""
    model = PBP(GRAPH, features=MAPS[features]).fit(rows())
    evidence = {"x": [0.0, value]}
    answer = model.posterior("c", evidence)
    torch.testing.assert_close(answer[1:], model.posterior("c"))
    torch.testing.assert_close(answer[:1], model.posterior("c", {"x": [0.0]}))
    assert model.log_evidence(evidence)[1] == -torch.inf
    density = model.posterior("y", evidence)
    for numbers in (density.values, density.mean, density.variance):
        assert torch.isfinite(numbers).all()
    assert torch.isfinite(model.sample(3, evidence, seed=0)["y"]).all()
    layer = PBPLayer(model)({"x": torch.tensor([0.0, value], dtype=torch.float64)})
    torch.testing.assert_close(layer["c"], answer)


def test_waves_are_as_they_were_within_reach() -> None:
    features = RandomFourier(10)
    values = rows()["x"]
    features.fit(values)
    phase = (values - features.mean) / features.width
    angles = phase.unsqueeze(1) * features.frequencies
    expected = torch.cat([angles.cos(), angles.sin()], dim=1)
    torch.testing.assert_close(features.evidence(values)[:, 1:], expected / len(features.frequencies) ** 0.5)
    far = torch.tensor([1e200, 1.7e308], dtype=torch.float64, requires_grad=True)
    found = features.evidence(far)
    assert (found == 0).all()
    found.sum().backward()
    assert (far.grad == 0).all()


def test_matern_kernels_at_any_distance() -> None:
    distances = torch.tensor([0.0, 1.0, 50.0, 1e5, 1e200, torch.inf], dtype=torch.float64)
    for nu in (0.5, 1.5, 2.5):
        found = Matern(nu).profile(distances)
        assert torch.isfinite(found).all()
        assert (found[3:] == 0).all()
        assert (found.diff() <= 0).all()
        assert Matern(nu).profile(distances.float()).isfinite().all()


def test_rows_are_completed_in_spite_of_an_outlier() -> None:
    """Its square must not drown the distances of all other rows."""
    data = rows(300)
    x, y, c = data["x"], data["y"], data["c"]
    hidden = torch.arange(300) % 3 == 0
    domains = {v: GRAPH.variables[v] for v in ("x", "y", "c")}
    gaps = {"x": x, "y": torch.where(hidden, torch.nan, y), "c": c}
    plain = complete_table(gaps, domains)
    wild = x.clone()
    wild[1] = 1e12
    found = complete_table({**gaps, "x": wild}, domains)

    def dependence(table: dict[str, torch.Tensor]) -> float:
        chosen = hidden.clone()
        chosen[1] = False
        return float(torch.corrcoef(torch.stack([x[chosen], table["y"][chosen]]))[0, 1])

    assert dependence(found) > 0.7 * dependence(plain)
