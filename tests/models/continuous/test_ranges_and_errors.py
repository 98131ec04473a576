"""Declared ranges, bad input, and files."""

import math

import pytest
import torch

from tests.models.continuous.mixed_model import NAN, mixed, mixed_graph
from torchpbp import PBP, Continuous, DiscreteNetwork, Matern, Nystroem, RandomFourier, templates
from torchpbp.errors import ArgumentError, DataError, QueryError, ShapeError, StructureError


def parameters_equal(a, b, atol=0.0):
    return all(torch.allclose(x, y, atol=atol, rtol=0) for x, y in zip(a.parameters(), b.parameters(), strict=True))


@torch.no_grad()
def test_declared_ranges_are_kept():
    data = {v: x.clamp(-1, 6) if v != "c" else x for v, x in mixed(1_000, 0).items()}
    model = PBP(mixed_graph(x=Continuous(-1.0, 6.0), y=Continuous(low=-2.5))).fit(
        {**data, "y": data["y"].clamp(min=-2.5)}
    )
    assert model.posterior("x").points[[0, -1]].tolist() == [-1.0, 6.0]
    y = model.posterior("y").points
    assert y[0] == -2.5
    assert y[-1] > data["y"].max()
    assert (model.posterior("x", at=[-1.1, 6.1]) == 0).all()
    assert (model.posterior("x", at=[-1.0, 6.0]) > 0).all()
    draws = model.sample(400, seed=0)
    assert ((draws["x"] >= -1) & (draws["x"] <= 6)).all()
    total = torch.trapezoid(model.posterior("x", {"c": [0, 3]}).values, model.posterior("x").points, dim=1)
    assert torch.allclose(total, torch.ones_like(total), atol=1e-3)


def test_bad_training_data():
    good = mixed(60, 0)
    graph = mixed_graph(x=Continuous(0.0, 20.0))

    def changed(name, value):
        column = good[name].clone()
        column[7] = value
        return {**good, name: column}

    for bad, error, text in [
        ({**good, "x": torch.full((60,), NAN)}, DataError, "Column 'x': all 60 values are missing"),
        (changed("y", math.inf), DataError, "column 'y', row 7: expected a finite number, got inf"),
        (
            changed("x", -0.5),
            DataError,
            r"column 'x', row 7: value -0\.5 lies outside the declared range \[0\.0, 20\.0\]",
        ),
        (changed("x", 21.0), DataError, "lies outside the declared range"),
        ({**good, "y": torch.full((60,), 2.5)}, DataError, r"Column 'y' is constant \(2\.5\)"),
        ({**good, "y": ["low"] * 60}, DataError, "column 'y': expected numbers"),
        ({**good, "c": good["y"]}, DataError, r"column 'c', row 0: expected a whole number.*declare .* Continuous\(\)"),
        ({**good, "y": good["y"][:30]}, ShapeError, "different lengths"),
        ({v: x[:0] for v, x in good.items()}, DataError, "empty"),
        ({"x": good["x"], "c": good["c"]}, DataError, r"missing columns \['y'\]"),
        ({v: x[:1] for v, x in good.items()}, DataError, "is constant"),
    ]:
        model = PBP(graph).fit(good)
        before = model.posterior("y", {"c": [0, 1]}).values
        with pytest.raises(error, match=text):
            model.fit(bad)
        assert torch.equal(model.posterior("y", {"c": [0, 1]}).values, before)  # nothing overwritten


@pytest.mark.filterwarnings("ignore::torchpbp.errors.QueryWarning")
def test_a_row_that_observes_the_query_is_answered_from_its_other_values(model):
    """The same whatever the other rows of the batch observe, and whether the value is in the evidence or left out."""
    rows = {"x": [1.0, NAN, -0.5], "y": [0.5, 1.0, NAN], "c": [0, 1, 1]}
    together = model.posterior("x", rows)
    alone = [model.posterior("x", {v: column[i : i + 1] for v, column in rows.items()}) for i in range(3)]
    left_out = model.posterior("x", {v: rows[v] for v in ("y", "c")})
    for part in ("mean", "variance"):
        found = getattr(together, part)
        torch.testing.assert_close(found, torch.cat([getattr(answer, part) for answer in alone]))
        torch.testing.assert_close(found, getattr(left_out, part))


def test_bad_questions(model):
    for ask, error, text in [
        (lambda: model.posterior("c", at=[0.0]), QueryError, "at= is for continuous variables"),
        (lambda: model.posterior(("x", "c")), QueryError, "'x' is continuous"),
        (lambda: model.posterior(("x", "y")), QueryError, "is continuous"),
        (lambda: model.posterior("h"), QueryError, "it is latent"),
        (lambda: model.posterior("x", at=torch.zeros(2, 2)), ShapeError, r"expected \(n,\) points"),
        (lambda: model.posterior("x", at=[0.0, NAN]), QueryError, "at: expected finite points"),
        (lambda: model.posterior("x", at=[math.inf]), QueryError, "at: expected finite points"),
        (lambda: model.posterior("y", {"x": [math.inf]}), DataError, "expected a finite value or NaN, got inf"),
        (lambda: model.posterior("y", {"x": torch.zeros(2, 3)}), ShapeError, "one real value per row"),
        (lambda: model.posterior("y", {"x": ["wide"]}), DataError, "Evidence on 'x'"),
        (lambda: model.posterior("y", {"x": [1.0, 2.0], "c": [0, 1, 2]}), ShapeError, "has 2 rows"),
    ]:
        with pytest.raises(error, match=text):
            ask()
    for changes, text in [
        ({"whitening": 0.0}, "whitening: expected a positive number"),
        ({"whitening": NAN}, "whitening"),
    ]:
        with pytest.raises(ArgumentError, match=text):
            PBP(mixed_graph(), **changes)
    with pytest.raises(StructureError, match="The network observes"):
        PBP(mixed_graph()).fit_population(DiscreteNetwork.random(templates.naive_bayes(3)))


def test_a_constant_column_with_a_given_bandwidth_is_learned():
    data = {**mixed(500, 0), "y": torch.full((500,), 2.5)}
    model = PBP(mixed_graph(), features=Nystroem(10, bandwidth=0.5)).fit(data)
    density = model.posterior("y", {"c": [0, 3]})
    assert torch.allclose(density.mean, torch.full((2,), 2.5, dtype=torch.float64), atol=0.05)
    assert torch.isfinite(model.posterior("x", {"y": [2.5, 4.0]}).values).all()


@pytest.mark.parametrize(
    "features", [None, Nystroem(9, Matern(2.5), bandwidth=1.5, landmarks="grid"), RandomFourier(20)]
)
@torch.no_grad()
def test_saving_and_loading(tmp_path, features):
    model = PBP(mixed_graph(x=Continuous(low=-1.0)), features=features).fit(mixed(400, 0))
    model.save(tmp_path / "model.pt")
    again = PBP.load(tmp_path / "model.pt")
    given = {"x": [1.0, 4.0, NAN], "c": [0, -1, 3]}
    a, b = model.posterior("y", given), again.posterior("y", given)
    for part in ("points", "values", "mean", "variance"):
        assert torch.equal(getattr(a, part), getattr(b, part))
    assert torch.equal(model.log_evidence(given), again.log_evidence(given))
    assert torch.equal(model.sample(5, given, seed=0)["y"], again.sample(5, given, seed=0)["y"])
    assert again.graph.variables["x"] == Continuous(low=-1.0)
    if features is not None:
        assert again.kernel_map.to_dict() == features.to_dict()
    assert parameters_equal(again.fit(mixed(300, 1)), model.fit(mixed(300, 1)))  # settings came along too
