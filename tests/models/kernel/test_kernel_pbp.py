"""KernelPBP: the recursion spelled out, and evidence of every pattern."""

import math

import numpy as np
import pytest
import torch

from tests.models.kernel.rows import NAN, WIDTH, clique_graph, hidden_parts, settings, stroke_graph, strokes
from torchpbp import RBF, KernelPBP, Laplace, Matern


@pytest.fixture(scope="module")
def model():
    return KernelPBP(stroke_graph(), **settings()).fit(strokes(80))


# -- the recursion ---------------------------------------------------------------------------------------------------


def literal_answers(model, data, row, query=None, at=None, ridge=(0.1, 0.1), width=WIDTH, evidence_width=WIDTH):
    """P(evidence) as a density, and the posterior at a point up to a factor, for one row, in plain numpy."""
    data = {v: x.numpy() for v, x in data.items()}
    rows = len(next(iter(data.values())))

    def kernel(x, y, w):
        return np.exp(-0.5 * ((x - y) / w) ** 2)

    def gram(groups):
        total = np.zeros((rows, rows))
        for group in groups:
            block = np.ones((rows, rows))
            for v in group:
                block = block * kernel(data[v][:, None], data[v][None, :], width)
            total += block
        return total

    tree, operators, up, constant = model.tree, {}, {}, 1.0
    for plan in model.plan.separators:
        core, instrument = gram([plan.core]), gram(plan.instrument)
        b = np.linalg.solve(instrument + ridge[0] * np.eye(rows), instrument)
        operators[plan.node] = core, b @ np.linalg.inv(b.T @ core @ b + ridge[1] * np.eye(rows)) @ b.T
    for node in reversed(range(1, len(tree))):
        if tree.leaf_observables[node]:
            up[node] = np.ones(rows)
            for v in tree.leaf_observables[node]:
                if not math.isnan(row[v]):
                    up[node] = up[node] * kernel(row[v], data[v], evidence_width)
                    constant /= evidence_width * math.sqrt(2 * math.pi)
        else:
            core, a = operators[node]
            up[node] = core @ a @ math.prod(up[c] for c in tree.children[node])
    evidence = np.mean(math.prod(up[c] for c in tree.children[0])) * constant
    if query is None:
        return evidence, None

    def down(node):
        parent = tree.parent[node]
        others = math.prod((up[c] for c in tree.children[parent] if c != node), start=np.ones(rows))
        if parent == 0:
            return others / rows
        core, a = operators[parent]
        return (a @ core @ down(parent)) * others

    leaf = tree.leaf_of[query]
    weights = down(leaf)
    for v in tree.leaf_observables[leaf]:
        if v != query and not math.isnan(row[v]):
            weights = weights * kernel(row[v], data[v], evidence_width)
    return evidence, np.array([weights @ kernel(x, data[query], evidence_width) for x in at])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"core_leaves": 2, "instrument_leaves": 1},
        {"ridge": (0.5, 0.01)},
        {"bandwidth": 1.3, "evidence_bandwidth": 0.6},
        {"root": ["h1"]},
    ],
    ids=str,
)
def test_the_recursion_spelled_out(changes):
    data, new = strokes(40), hidden_parts(6)
    model = KernelPBP(stroke_graph(), **settings(**changes)).fit(data)
    found = model.log_evidence(new)
    densities = {v: model.posterior(v, {u: x for u, x in new.items() if u != v}) for v in ("y1", "x3")}
    literal = {
        "ridge": changes.get("ridge", (0.1, 0.1)),
        "width": changes.get("bandwidth", WIDTH),
        "evidence_width": changes.get("evidence_bandwidth", WIDTH),
    }
    for n in range(6):
        row = {v: float(x[n]) for v, x in new.items()}
        value, _ = literal_answers(model, data, row, **literal)
        assert found[n].item() == pytest.approx(math.log(value), abs=1e-6) if value > 0 else found[n].item() < -500
        for v, density in densities.items():
            at, values = density.points[180:340:10], density.values[n, 180:340:10]
            _, expected = literal_answers(model, data, {**row, v: NAN}, v, at.tolist(), **literal)
            assert np.allclose(values / values.sum(), expected.clip(0) / expected.clip(0).sum(), atol=1e-8)


def test_hidden_values_drop_out(model):
    """∫ P(x, evidence) dx = P(evidence): unless messages are clipped, summing a variable out is exact."""
    given = {v: x[:4] for v, x in hidden_parts(4, seed=2).items()}
    axis = torch.linspace(-9, 9, 361, dtype=torch.float64)
    for v in ("x1", "y2", "x3"):
        rest = {u: x for u, x in given.items() if u != v}
        whole = {u: x.repeat_interleave(len(axis)) for u, x in rest.items()} | {v: axis.repeat(4)}
        signed = model.log_evidence(whole).exp().reshape(4, -1)
        total = torch.trapezoid(signed, axis, dim=1)
        assert torch.allclose(total, model.log_evidence(rest).exp(), rtol=0.02)


def test_the_posterior_is_the_normalised_joint(model):
    given = {v: x for v, x in strokes(5, seed=3).items() if v != "x2"}
    density = model.posterior("x2", given)
    wide = {v: x.repeat_interleave(len(density.points)) for v, x in given.items()}
    joint = model.log_evidence(wide | {"x2": density.points.repeat(5)}).exp().reshape(5, -1)
    expected = joint / torch.trapezoid(joint, density.points, dim=1).unsqueeze(1)
    assert torch.allclose(density.values, expected, atol=1e-6)
    assert density.values.max() > 0.2


def test_nothing_observed_has_probability_one_up_to_the_penalty():
    light, heavy = (KernelPBP(stroke_graph(), **settings(ridge=(r, r))).fit(strokes(80)) for r in (0.01, 1.0))
    assert light.log_evidence().shape == (1,)
    assert abs(light.log_evidence().item()) < 0.02
    assert heavy.log_evidence().item() < light.log_evidence().item()  # penalties shrink probability a little


# -- evidence --------------------------------------------------------------------------------------------------------


def test_rows_with_different_patterns_equal_rows_asked_alone(model):
    table = hidden_parts()
    together = model.log_evidence(table)
    means = model.posterior("x1", {v: x for v, x in table.items() if v != "x1"}).mean
    for n in range(12):
        alone = {v: x[n : n + 1] for v, x in table.items() if not math.isnan(x[n])}
        assert torch.allclose(model.log_evidence(alone), together[n : n + 1], atol=1e-9)
        given = {v: x for v, x in alone.items() if v != "x1"}
        assert torch.allclose(model.posterior("x1", given).mean, means[n : n + 1], atol=1e-9)


def test_partial_evidence_inside_a_leaf_matters(model):
    rest = {"x1": torch.tensor([0.3]), "y1": torch.tensor([0.1])}
    low, high = (model.posterior("x2", {**rest, "y2": torch.tensor([y])}).mean.item() for y in (-1.5, 1.5))
    neither = model.posterior("x2", rest).mean.item()
    assert low < neither - 0.2 < neither + 0.2 < high
    answers = model.posteriors({**rest, "y2": torch.tensor([1.5])})
    assert set(answers) == {"x2", "x3", "y3", "x4", "y4", "x5", "y5"}
    assert answers["x2"].mean.item() == pytest.approx(high, abs=1e-10)


def test_long_batches_are_cut_into_pieces(model, monkeypatch):
    table = hidden_parts(30)
    del table["y3"]
    whole, density = model.log_evidence(table), model.posterior("y3", table)
    monkeypatch.setattr("torchpbp.models.kernel.kernel_pbp.BATCH_ELEMENTS", 80 * 7)
    assert torch.allclose(model.log_evidence(table), whole, atol=1e-12)
    pieces = model.posterior("y3", table)
    for name in ("values", "mean", "variance"):
        assert torch.allclose(getattr(pieces, name), getattr(density, name), atol=1e-12)
    draws = model.sample(3, table, seed=0)
    assert draws["y3"].shape == (3, 30)


def test_an_empty_batch(model):
    nothing = {"x1": torch.empty(0)}
    assert model.log_evidence(nothing).shape == (0,)
    assert model.posterior("x2", nothing).values.shape[0] == 0


def test_single_and_double_precision_agree():
    data, new = strokes(80), strokes(20, seed=1)
    double, single = (KernelPBP(stroke_graph(), **settings(dtype=d)).fit(data) for d in (torch.float64, torch.float32))
    assert torch.allclose(double.log_evidence(new), single.log_evidence(new), atol=1e-2)
    del new["x2"]
    assert torch.allclose(double.posterior("x2", new).mean, single.posterior("x2", new).mean, atol=1e-3)


@pytest.mark.parametrize("kernel", [RBF(), Laplace(), Matern(1.5), Matern(2.5)], ids=repr)
def test_a_clique_is_a_kernel_density(kernel):
    graph = clique_graph(1, 20.0)
    data, new = strokes(30, points=1), strokes(9, seed=1, points=1)
    model = KernelPBP(graph, kernel=kernel, **settings()).fit(data)
    profiles = math.prod(kernel.gram(new[v], data[v], WIDTH) for v in ("x1", "y1"))
    expected = profiles.mean(dim=1).log() - 2 * math.log(WIDTH * kernel.integral)
    assert torch.allclose(model.log_evidence(new), expected, atol=1e-9)
    axis = torch.linspace(-20, 20, 4001, dtype=torch.float64)
    assert torch.trapezoid(model.log_evidence({"x1": axis}).exp(), axis).item() == pytest.approx(1.0, abs=1e-3)
