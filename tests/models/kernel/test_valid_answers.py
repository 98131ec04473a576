"""Answers of KernelPBP are densities and probabilities, whatever the evidence, the scale and the range of the data."""

import math

import pytest
import torch

from tests.models.kernel.rows import clique_graph, hidden_parts, settings, stroke_graph, strokes
from torchpbp import Continuous, KernelPBP, LatentGraph


def free_graph():
    """Strokes that may go anywhere."""
    graph = stroke_graph()
    return LatentGraph(graph.edges, {v: d and Continuous() for v, d in graph.variables.items()}, graph.latent)


@pytest.mark.parametrize("positive", [True, False])
def test_densities_are_valid_for_any_evidence(positive):
    model = KernelPBP(free_graph(), **settings(positive=positive, ridge=(1e-3, 1e-3))).fit(strokes(50))
    rows = hidden_parts(40, seed=8)
    rows["x1"][0], rows["y2"][1], rows["x3"][2] = 400.0, -60.0, 7.5  # far from anything seen
    for v, density in model.posteriors(rows).items():
        assert torch.isfinite(density.values).all(), v
        assert (density.values >= 0).all()
        total = torch.trapezoid(density.values, density.points, dim=1)
        assert torch.allclose(total, torch.ones_like(total), atol=1e-3)
        for numbers in (density.mean, density.variance):
            assert torch.isfinite(numbers).all()
        assert ((density.mean >= -9) & (density.mean <= 9)).all()
        assert (density.variance >= 0).all()
    assert torch.isfinite(model.log_evidence(rows)).all()


def test_positive_models_have_no_negative_messages():
    data = strokes(50)
    clipped, plain = (
        KernelPBP(stroke_graph(), **settings(positive=p, ridge=(1e-3, 1e-3))).fit(data) for p in (True, False)
    )
    rows = strokes(40, seed=8)
    everywhere = set(clipped.tree.leaves)

    def least(model):
        up, _ = model._upward(model._comparison(model.read_evidence(rows)))
        down = model._downward(up, everywhere)
        return min(float(m.min()) for m in [*up.values(), *down.values()])

    assert least(clipped) >= 0
    assert least(plain) < -0.01  # otherwise this test shows nothing
    assert (clipped.log_evidence(rows) > -900).all()


def test_offsets_of_the_data_do_not_matter():
    data, new = strokes(60), strokes(8, seed=1)
    graph = free_graph()
    near = KernelPBP(graph, **settings()).fit(data)
    far = KernelPBP(graph, **settings()).fit({v: x + 1e6 for v, x in data.items()})
    del new["x2"]
    a, b = near.posterior("x2", new), far.posterior("x2", {v: x + 1e6 for v, x in new.items()})
    assert torch.allclose(a.mean, b.mean - 1e6, atol=1e-5)
    assert torch.allclose(a.variance, b.variance, atol=1e-5)


def test_ranges_follow_the_evidence_bandwidth():
    data = strokes(30)
    free = {v: Continuous() if v[0] == "x" else Continuous(-9, 9) for v in data}
    graph = LatentGraph(stroke_graph().edges, {**stroke_graph().variables, **free}, stroke_graph().latent)
    model = KernelPBP(graph, bandwidth=0.5, evidence_bandwidth=2.0).fit(data)
    points = model.posterior("x1").points
    assert points[0].item() == pytest.approx(data["x1"].min().item() - 6)
    assert points[-1].item() == pytest.approx(data["x1"].max().item() + 6)
    assert model.posterior("y1").points[[0, -1]].tolist() == pytest.approx([-9, 9])


def test_bandwidths_by_variable_and_by_the_median():
    data = strokes(60)
    by_name = {v: 0.5 + 0.1 * i for i, v in enumerate(data)}
    model = KernelPBP(stroke_graph(), bandwidth=by_name).fit(data)
    assert model.widths.tolist() == pytest.approx(list(by_name.values()))
    model = KernelPBP(stroke_graph()).fit(data)
    x = data["x1"]
    distances = (x.unsqueeze(0) - x.unsqueeze(1)).abs()
    assert model.widths[0].item() == pytest.approx(0.5 * float(distances[distances > 0].median()))
    moved = KernelPBP(stroke_graph(), sequences=[("x1", "x2", "x3")]).fit(data)
    assert model.names[0] == "x1"
    step = data["x1"] - data["x2"]
    distances = (step.unsqueeze(0) - step.unsqueeze(1)).abs()
    assert moved.widths[0].item() == pytest.approx(0.5 * float(distances[distances > 0].median()))
    assert moved.widths[1].item() == pytest.approx(model.widths[1].item())


def test_a_constant_column_with_a_given_bandwidth_is_learned():
    data = {**strokes(40), "x2": torch.full((40,), 3.5)}
    model = KernelPBP(stroke_graph(), **settings()).fit(data)
    density = model.posterior("x2", {"x1": torch.tensor([0.0])})
    assert density.mean.item() == pytest.approx(3.5)
    assert model.posterior("x1", {"x2": torch.tensor([3.5])}).mean.isfinite().all()


def test_rows_far_from_all_training_rows_keep_their_order_in_single_precision():
    """Sixteen coordinates far away come to e^-1000 and less, which float32 cannot hold."""
    torch.manual_seed(0)
    graph = clique_graph(8, 500.0)
    data = {v: 50 + torch.randn(30) for v in graph.observed}
    model = KernelPBP(graph, bandwidth=1.0).fit(data)
    exact = KernelPBP(graph, bandwidth=1.0, dtype=torch.float64).fit(data)
    far = {v: torch.tensor([60.0, 65.0, 80.0, 200.0]) for v in graph.observed}
    found = model.log_evidence(far)
    assert torch.isfinite(found).all()
    assert (found[:-1] > found[1:]).all()
    squared = 0.5 * sum((far[v].double().unsqueeze(1) - data[v].double()) ** 2 for v in graph.observed)
    expected = torch.logsumexp(-squared, dim=1) - math.log(30) - 8 * math.log(2 * math.pi)
    assert torch.allclose(exact.log_evidence(far), expected)
    assert torch.allclose(found, expected, rtol=1e-4)
