"""Learning from continuous values: batches, order, ranks, scale, precision, gradients, bandwidths."""

import math

import pytest
import torch

from tests.closeness import assert_same_up_to_rounding
from tests.models.continuous.mixed_model import NAN, errors_against_quadrature, mixed, mixed_graph
from torchpbp import PBP, Continuous, LatentGraph, Nystroem
from torchpbp.errors import DataError
from torchpbp.inference.density import Density
from torchpbp.moments.thinning import ThinnedRows


def test_mini_batches_give_the_same_model_as_one_table():
    data = mixed(3_000, 0)
    whole = PBP(mixed_graph()).fit(data)
    chunks = [{v: x[i : i + 700] for v, x in data.items()} for i in range(0, 3_000, 700)]
    loader = torch.utils.data.DataLoader([{v: x[i] for v, x in data.items()} for i in range(3_000)], batch_size=512)
    for other in (
        PBP(mixed_graph()).fit(chunks),
        PBP(mixed_graph()).fit(data, batch_size=999),
        PBP(mixed_graph()).fit(loader),
    ):
        assert int(other.rows) == 3_000
        for v in "xy":
            mine, theirs = whole.observables[v], other.observables[v]
            assert_same_up_to_rounding(mine.bounds, theirs.bounds)
            assert_same_up_to_rounding(mine.map.centres, theirs.map.centres)
        given = {"x": [1.0, 5.0], "c": [2, -1]}
        assert torch.allclose(whole.posterior("y", given).values, other.posterior("y", given).values, atol=1e-8)
    with pytest.raises(DataError, match="one-way iterator"):
        PBP(mixed_graph()).fit(iter(chunks))
    with pytest.raises(DataError, match="one-way iterator"):
        PBP(mixed_graph()).fit(x for x in chunks)


def test_the_order_of_rows_does_not_matter(monkeypatch):
    """Maps are fitted to some of the rows: these must come from everywhere."""
    monkeypatch.setattr("torchpbp.learning.feature_fitting.MAP_ROWS", 500)
    data = mixed(4_000, 0)
    order = data["x"].argsort()
    ordered = PBP(mixed_graph()).fit({v: x[order] for v, x in data.items()})
    shuffled = PBP(mixed_graph()).fit(data)
    assert float(ordered.observables["x"].bounds[1]) > float(data["x"].max())
    given = {"x": [1.0, 5.0, 9.0], "c": [2, -1, 3]}
    assert torch.allclose(ordered.posterior("y", given).mean, shuffled.posterior("y", given).mean, atol=0.15)
    chunks = [{v: x[i : i + 333] for v, x in data.items()} for i in range(0, 4_000, 333)]
    streamed = PBP(mixed_graph()).fit(chunks)
    assert_same_up_to_rounding(streamed.observables["x"].map.centres, shuffled.observables["x"].map.centres)


def test_rows_are_thinned_evenly_whatever_the_batches():
    for most in (2, 7, 100):
        column = torch.arange(1_000, dtype=torch.float64)
        for sizes in ([1_000], [1] * 1_000, [3, 0, 500, 497]):
            rows = ThinnedRows(["v"], most)
            for part in column.split(sizes):
                rows.add({"v": part})
            kept = rows.values("v")
            assert most / 2 <= len(kept) <= most
            assert kept[0] == 0
            assert len(set(kept.diff().tolist())) <= 1
            assert kept[-1] + kept[1] >= 1_000
            assert rows.extent("v") == (0, 999)


def test_rank_auto_finds_the_number_of_latent_states():
    model = PBP(mixed_graph(states=None), rank="auto", max_rank=5).fit(mixed(6_000, 0))
    assert max(p.rank for p in model.plan.separators) == 3
    assert [s.rank for s in model.rank_scores][:3] == [1, 2, 3]
    assert errors_against_quadrature(model)[0] < 0.01


def test_rank_auto_prefers_independence_when_there_is_nothing_to_learn():
    generator = torch.Generator().manual_seed(0)
    noise = {v: torch.randn(1_500, generator=generator).double() for v in "xy"}
    noise["c"] = torch.randint(4, (1_500,), generator=generator)
    model = PBP(mixed_graph(states=None), rank="auto", max_rank=4).fit(noise)
    assert max(p.rank for p in model.plan.separators) == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@torch.no_grad()
def test_shift_and_scale_of_the_data_do_not_matter(dtype):
    data = mixed(2_000, 0)
    reference = PBP(mixed_graph()).fit(data)
    given = {"x": torch.tensor([1.0, 4.0, 8.0], dtype=torch.float64), "c": torch.tensor([0, 2, -1])}
    expected = reference.posterior("y", given)
    for shift, scale in ((0.0, 1.0), (1e3, 1.0), (1e6, 1.0), (-5.0, 1e-6), (1e9, 1e5)):
        moved = {v: x if v == "c" else shift + scale * x for v, x in data.items()}
        model = PBP(mixed_graph(), dtype=dtype).fit(moved)
        found = model.posterior("y", {**given, "x": shift + scale * given["x"]})
        assert torch.allclose((found.mean - shift) / scale, expected.mean, atol=1e-3)
        assert torch.allclose(found.variance / scale**2, expected.variance, rtol=1e-2)
        assert torch.allclose(found.values * scale, expected.values.to(dtype), atol=1e-3)
        assert torch.allclose((found.quantile(0.3) - shift) / scale, expected.quantile(0.3), atol=1e-3)
        total = torch.trapezoid(found.values, found.points, dim=1)
        assert torch.allclose(total, torch.ones_like(total), atol=1e-3)
        logs = model.log_evidence({**given, "x": shift + scale * given["x"]}) + math.log(scale) * torch.ones(3)
        assert torch.allclose(logs.double(), reference.log_evidence(given), atol=1e-2)


@torch.no_grad()
def test_single_precision(model):
    data = mixed(20_000, 0)
    single = PBP(mixed_graph(), dtype=torch.float32).fit(data)
    given = {"x": [1.0, 4.0, NAN], "c": [0, -1, 3]}
    a, b = model.posterior("y", given), single.posterior("y", given)
    assert b.values.dtype == torch.float32
    assert single.posterior("y", given, at=[0.0, 1.0]).dtype == torch.float32
    assert torch.allclose(a.values.float(), b.values, atol=1e-4)
    assert torch.allclose(a.mean, b.mean.double(), atol=1e-4)
    assert torch.allclose(model.posterior("c", {"x": [1.0]}).float(), single.posterior("c", {"x": [1.0]}), atol=1e-4)
    assert torch.allclose(model.log_evidence(given), single.log_evidence(given).double(), atol=1e-3)
    assert single.sample(3, given, seed=0)["y"].dtype == torch.float64
    cast = PBP(mixed_graph()).fit(data).float()
    assert torch.allclose(cast.posterior("y", given).mean.double(), a.mean, atol=1e-3)


def test_gradients_reach_operators_and_evidence():
    model = PBP(mixed_graph()).fit(mixed(500, 0))
    x = torch.tensor([1.3, 4.2], dtype=torch.float64, requires_grad=True)
    at = torch.tensor([0.11, 2.03], dtype=torch.float64)

    def answers(x):
        density = model.posterior("y", {"x": x, "c": torch.tensor([0, 2])})
        return density.prob(at), density.mean, model.log_evidence({"x": x})

    assert torch.autograd.gradcheck(answers, (x,))
    model.log_evidence({"x": [1.0], "y": [0.5]}).sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


def test_each_variable_has_a_map_of_its_own(model):
    one, other = (model.observables[v].map for v in "xy")
    assert one is not other
    assert float(one.width) != float(other.width)
    assert isinstance(model.posterior("x"), Density)


def test_bandwidth_chosen_on_held_out_rows():
    """Two clusters far apart, each narrow: the median distance is far too wide, and held-out rows say so."""
    graph = LatentGraph([("h", "x"), ("h", "y")], {"h": 2, "x": Continuous(), "y": Continuous()}, ["h"])
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randint(2, (3_000,), generator=generator)
    data = {v: 20.0 * hidden + torch.randn(3_000, generator=generator) for v in ("x", "y")}
    chosen = PBP(graph, features=Nystroem(30, bandwidth="validate")).fit(data)
    assert sorted(chosen.bandwidth_scores) == [0.1, 0.2, 0.35, 0.6, 1.0]
    best = max(chosen.bandwidth_scores, key=chosen.bandwidth_scores.__getitem__)
    assert best < 0.35
    same = PBP(graph, features=Nystroem(30, bandwidth_scale=best)).fit(data)
    assert_same_up_to_rounding(chosen.observables["x"].map.width, same.observables["x"].map.width)
    wide = PBP(graph, features=Nystroem(30, bandwidth_scale=1.0)).fit(data)
    at = torch.tensor([0.0])
    truth = 1 / (2 * torch.pi) ** 0.5
    error = [abs(m.posterior("y", {"x": [0.0]}, at=at).item() - truth) for m in (chosen, wide)]
    assert error[0] < error[1]
    with pytest.raises(DataError, match="needs rows to hold out"):
        PBP(graph, features=Nystroem(3, bandwidth="validate")).fit({"x": [0.0, 1.0, 2.0], "y": [0.0, 2.0, 1.0]})
