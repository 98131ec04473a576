"""Densities are valid whatever the evidence, and agree with each other however they are asked for."""

import numpy as np
import pytest
import torch
from scipy import stats

from tests.closeness import assert_same_up_to_rounding
from tests.models.continuous.mixed_model import NAN, mixed, mixed_graph, random_patterns
from torchpbp import PBP, Continuous, Laplace, LatentGraph, Matern, Nystroem, RandomFourier
from torchpbp.errors import QueryError
from torchpbp.inference.density import GRID, grid_density

MAPS = {
    "Nystroem": Nystroem(12),
    "Nystroem, grid, Laplace": Nystroem(12, Laplace(), landmarks="grid"),
    "RandomFourier, Matern": RandomFourier(30, Matern(1.5)),
    "narrow": Nystroem(30, bandwidth=0.05),
}


@pytest.mark.parametrize("name", MAPS)
@torch.no_grad()
def test_densities_are_valid_for_any_evidence(name):
    model = PBP(mixed_graph(), features=MAPS[name], ridge=(1e-2, 1e-2)).fit(mixed(150, 1))
    evidence = random_patterns(60, 5)
    raw = model.posterior("y", {v: evidence[v] for v in "xc"}, at=torch.linspace(-4, 5, 50), raw=True)
    assert (raw < 0).any()  # otherwise this test shows nothing
    for given in (None, evidence, {"c": evidence["c"]}, {"x": evidence["x"]}):
        answers = model.posteriors(given)
        assert {"x", "y"} - set(given or ()) <= set(answers)
        for v in set(answers) & {"x", "y"}:
            density = answers[v]
            assert (density.values >= 0).all()
            assert torch.isfinite(density.values).all()
            total = torch.trapezoid(density.values, density.points, dim=1)
            assert torch.allclose(total, torch.ones_like(total), atol=1e-3)
            low, high = model.observables[v].bounds.tolist()
            assert density.points[[0, -1]].tolist() == pytest.approx([low, high])
            assert ((density.mean >= low) & (density.mean <= high)).all()
            assert (density.variance >= 0).all()
            assert torch.isfinite(density.variance).all()
        states = answers["c"]
        assert (states >= 0).all()
        assert torch.allclose(states.sum(dim=1), torch.ones(len(states), dtype=torch.float64))
        assert not model.log_evidence(given).isnan().any()


@pytest.mark.parametrize("name", MAPS)
@torch.no_grad()
def test_densities_at_points_integrate_to_one(name):
    """Over the range, on a grid finer than and not aligned with the one that densities are kept on."""
    model = PBP(mixed_graph(), features=MAPS[name]).fit(mixed(300, 1))
    low, high = model.observables["y"].bounds.tolist()
    fine = torch.linspace(low, high, 7_001, dtype=torch.float64)
    given = {v: x for v, x in random_patterns(10, 2).items() if v != "y"}
    values = model.posterior("y", given, at=fine)
    assert values.shape == (10, 7_001)
    assert (values >= 0).all()
    total = torch.trapezoid(values, fine, dim=1)
    assert torch.allclose(total, torch.ones_like(total), atol=1e-3)
    outside = model.posterior("y", given, at=[low - 0.1, high + 0.1, 1e9])
    assert (outside == 0).all()


@torch.no_grad()
def test_both_ways_to_ask_for_a_density_agree(model):
    given = {"x": [1.0, 4.0, NAN], "c": [-1, 2, 3]}
    density = model.posterior("y", given)
    assert density.points.shape == (GRID,)
    assert torch.allclose(model.posterior("y", given, at=density.points), density.values, atol=1e-12)
    between = torch.tensor([-3.21, 0.123, 2.5])
    assert_same_up_to_rounding(model.posterior("y", given, at=between), density.prob(between))
    assert torch.allclose(density.log_prob(between).exp(), density.prob(between))
    raw = model.posterior("y", given, at=density.points, raw=True)
    total = torch.trapezoid(raw, density.points, dim=1)
    assert torch.allclose(total, torch.ones_like(total), atol=1e-9)
    assert torch.allclose(raw, density.values, atol=0.02)  # with many rows hardly anything is clipped
    assert_same_up_to_rounding(model.posteriors(given)["y"].values, density.values)


@torch.no_grad()
def test_quantiles_and_distribution_function(model):
    density = model.posterior("y", {"x": [1.0, 4.0], "c": [0, 2]})
    levels = torch.linspace(0, 1, 101, dtype=torch.float64)
    found = density.quantile(levels)
    assert found.shape == (2, 101)
    assert (found.diff(dim=1) >= -1e-12).all()
    cdf = density.cdf()
    assert (cdf.diff(dim=1) >= -1e-12).all()
    assert torch.allclose(cdf[:, [0, -1]], torch.tensor([0.0, 1.0], dtype=torch.float64).expand(2, 2), atol=1e-9)
    for row in range(2):
        back = np.interp(found[row], density.points, cdf[row])
        assert np.allclose(back, levels, atol=1e-6)
    assert_same_up_to_rounding(density.quantile(0.5), found[:, 50])
    assert density.batch_shape == (2,)
    for bad in (-0.1, 1.2, NAN):
        with pytest.raises(QueryError, match="levels from 0 to 1"):
            density.quantile(bad)


@torch.no_grad()
def test_rows_with_different_patterns_equal_rows_asked_alone(model):
    evidence = {"x": torch.tensor([1.0, NAN, 4.0, NAN]), "c": torch.tensor([-1, 2, 3, -1])}
    together, logs = model.posterior("y", evidence), model.log_evidence(evidence)
    for row, alone in enumerate([{"x": 1.0}, {"c": 2}, {"x": 4.0, "c": 3}, None]):
        single = model.posterior("y", alone)
        assert torch.allclose(together.values[row], single.values[0], atol=1e-10)
        assert together.mean[row].item() == pytest.approx(single.mean.item(), abs=1e-10)
        assert logs[row].item() == pytest.approx(model.log_evidence(alone).item(), abs=1e-9)
    assert model.log_evidence().abs().item() < 1e-9
    empty = {"x": torch.empty(0)}
    assert model.posterior("y", empty).values.shape == (0, GRID)
    assert model.log_evidence(empty).shape == (0,)
    assert model.posterior("y", {"c": torch.empty(0, 4)}).mean.shape == (0,)  # weights over states


@torch.no_grad()
def test_the_posterior_is_the_normalised_joint():
    """P(y | evidence) ∝ P(y, evidence), also where y shares its leaf with what is seen, and with other kinds."""
    leaf = [("h", "x"), ("h", "y"), ("x", "y"), ("h", "c"), ("y", "c"), ("x", "c")]
    variables = {**mixed_graph().variables, "z": Continuous()}
    shared = LatentGraph([*leaf, ("h", "k"), ("k", "z")], {**variables, "k": 3}, ["h", "k"])
    data = mixed(800, 0)
    data["z"] = data["x"] - data["y"]
    model = PBP(shared, features=Nystroem(8)).fit(data)
    assert model.tree.leaf_of["x"] == model.tree.leaf_of["y"] == model.tree.leaf_of["c"]
    given = {"x": torch.tensor([1.0, NAN, 5.0, NAN]), "c": torch.tensor([0, 2, -1, -1]), "z": torch.tensor(1.2)}
    density = model.posterior("y", given)
    wide = {v: x.expand(4).repeat_interleave(GRID) for v, x in given.items()} | {"y": density.points.repeat(4)}
    sign, size = model.log_evidence(wide, raw=True)
    joint = (sign * size.exp()).reshape(4, GRID).clamp(min=0)
    expected = joint / torch.trapezoid(joint, density.points, dim=1).unsqueeze(1)
    assert torch.allclose(density.values, expected, atol=1e-6)
    assert torch.allclose(model.log_evidence({**given, "y": NAN}), model.log_evidence(given), atol=1e-9)
    states = model.posterior("c", {"x": [1.0], "z": [1.2]}, raw=True)[0]
    alone = model.log_evidence({"x": [1.0] * 4, "z": [1.2] * 4, "c": [0, 1, 2, 3]}, raw=True)
    signed = alone[0] * alone[1].exp()
    assert torch.allclose(states, signed / signed.sum(), atol=1e-8)


def test_a_density_from_an_estimate_by_hand():
    points = torch.linspace(0, 2, 5, dtype=torch.float64)
    density = grid_density(points, torch.tensor([[0.0, 2.0, 4.0, 2.0, -1.0], [-1.0, -2.0, 0.0, -3.0, -1.0]]).double())
    assert density.values[0].tolist() == pytest.approx([0, 0.5, 1, 0.5, 0])
    assert density.values[1].tolist() == pytest.approx([0.5] * 5)  # nothing positive: uniform
    assert density.mean.tolist() == pytest.approx([1.0, 1.0])
    assert density.variance[0].item() == pytest.approx(0.5 * (0.5 * 0.25 + 0.5 * 0.25))
    assert density.prob(torch.tensor([0.25, 0.75, 2.0, 2.1, -0.1]))[0].tolist() == pytest.approx([0.25, 0.75, 0, 0, 0])
    assert density.quantile(0.5).tolist() == pytest.approx([1.0, 1.0])
    assert density.quantile(0.25)[1].item() == pytest.approx(0.5)
    with pytest.raises(QueryError, match="got NaN"):
        density.prob(torch.tensor([NAN]))


def test_quantiles_at_the_ends_in_single_precision():
    values = torch.zeros(1, 9)
    values[0, 4] = 1.0
    density = grid_density(torch.linspace(0, 8, 9, dtype=torch.float64), values)
    ends = density.quantile(torch.tensor([0.0, 1.0]))
    assert torch.isfinite(ends).all()
    assert (ends[0, 0] <= 3) & (ends[0, 1] <= 8)
    assert torch.isfinite(density.sample(2_000, torch.Generator().manual_seed(0))).all()


def test_samples_of_a_density():
    points = torch.linspace(-8, 8, GRID, dtype=torch.float64)
    values = torch.exp(-0.5 * (points - torch.tensor([[1.0], [-2.0]])) ** 2 / torch.tensor([[1.0], [0.25]]))
    density = grid_density(points, values)
    draws = density.sample(20_000, torch.Generator().manual_seed(0))
    assert draws.shape == (20_000, 2)
    for row, truth in enumerate([stats.norm(1, 1), stats.norm(-2, 0.5)]):
        assert stats.kstest(draws[:, row].numpy(), truth.cdf).statistic < 1.95 / 20_000**0.5
