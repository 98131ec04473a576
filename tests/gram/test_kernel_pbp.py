"""KernelPBP: the recursion spelled out, evidence patterns, densities, samples and refusals."""

import copy
import math

import numpy as np
import pytest
import torch

from torchpbp import PBP, RBF, Continuous, KernelPBP, Laplace, LatentGraph, Matern, templates
from torchpbp.errors import DataError, NotFittedError, QueryError, ShapeError, StructureError
from torchpbp.specification import Specification

NAN = float("nan")
WIDTH = 0.8


def strokes(rows, seed=0, points=5):
    """Pen points of a random walk; x and y of a point depend on each other."""
    rng = np.random.default_rng(seed)
    place = rng.normal(size=(rows, 2))
    table = {}
    for t in range(1, points + 1):
        place = 0.8 * place + 0.6 * rng.normal(size=(rows, 2))
        table[f"x{t}"] = torch.from_numpy(place[:, 0] + 0.3 * rng.normal(size=rows))
        table[f"y{t}"] = torch.from_numpy(place[:, 1] + 0.5 * place[:, 0] + 0.3 * rng.normal(size=rows))
    return table


def stroke_graph(points=5):  # five: the smallest number with separators above more than one leaf
    return templates.pen_strokes(points, low=-9.0, high=9.0)


def settings(**changes):
    return {"bandwidth": WIDTH, "positive": False, "dtype": torch.float64, **changes}


@pytest.fixture(scope="module")
def model():
    return KernelPBP(stroke_graph(), **settings()).fit(strokes(80))


def hidden_parts(rows=12, seed=5):
    """Rows in which each coordinate is hidden with its own probability, from nothing to nearly everything."""
    table = strokes(rows, seed)
    generator = torch.Generator().manual_seed(seed)
    share = torch.linspace(0, 0.9, rows)
    for v in table:
        table[v] = torch.where(torch.rand(rows, generator=generator) < share, NAN, table[v])
    return table


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
    for plan in model.specification.plans:
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
    assert answers["x2"].mean.item() == pytest.approx(high, abs=1e-12)


def test_long_batches_are_cut_into_pieces(model, monkeypatch):
    table = hidden_parts(30)
    del table["y3"]
    whole, density = model.log_evidence(table), model.posterior("y3", table)
    monkeypatch.setattr("torchpbp.gram.kernel_pbp.BATCH_ELEMENTS", 80 * 7)
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
    graph = templates.pen_clique(1, low=-20.0, high=20.0)
    data, new = strokes(30, points=1), strokes(9, seed=1, points=1)
    model = KernelPBP(graph, kernel=kernel, **settings()).fit(data)
    profiles = math.prod(kernel.gram(new[v], data[v], WIDTH) for v in ("x1", "y1"))
    expected = profiles.mean(dim=1).log() - 2 * math.log(WIDTH * kernel.integral)
    assert torch.allclose(model.log_evidence(new), expected, atol=1e-9)
    axis = torch.linspace(-20, 20, 4001, dtype=torch.float64)
    assert torch.trapezoid(model.log_evidence({"x1": axis}).exp(), axis).item() == pytest.approx(1.0, abs=1e-3)


# -- valid answers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("positive", [True, False])
def test_densities_are_valid_for_any_evidence(positive):
    model = KernelPBP(stroke_graph(), **settings(positive=positive, ridge=(1e-3, 1e-3))).fit(strokes(50))
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
    clipped, plain = (KernelPBP(stroke_graph(), **settings(positive=p, ridge=(1e-3, 1e-3))).fit(data) for p in (1, 0))
    rows = strokes(40, seed=8)
    everywhere = set(clipped.tree.leaves)

    def least(model):
        evidence = model._read(rows)
        up = model._upward(evidence)
        down = model._downward(up, everywhere)
        return min(float(m.min()) for m in [*up.messages[1:], *down.values()])

    assert least(clipped) >= 0
    assert least(plain) < -0.01  # otherwise this test shows nothing
    assert (clipped.log_evidence(rows) > -900).all()


def test_offsets_of_the_data_do_not_matter():
    data, new = strokes(60), strokes(8, seed=1)
    free = {v: Continuous() for v in data}
    graph = LatentGraph(stroke_graph().edges, {**stroke_graph().variables, **free}, stroke_graph().latent)
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
    assert model.posterior("y1").points[[0, -1]].tolist() == [-9, 9]


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


# -- samples ---------------------------------------------------------------------------------------------------------


def kolmogorov(draws, density):
    """Largest gap between the draws' distribution and that of a density with one row."""
    ordered = draws.sort().values
    steps = torch.arange(1, len(draws) + 1, dtype=torch.float64) / len(draws)
    where = torch.searchsorted(density.points, ordered).clamp(1, len(density.points) - 1)
    cdf, points = density.cdf()[0], density.points
    share = (ordered - points[where - 1]) / (points[where] - points[where - 1])
    model = cdf[where - 1] + share * (cdf[where] - cdf[where - 1])
    return float(torch.maximum((steps - model).abs(), (steps - 1 / len(draws) - model).abs()).max())


def mixed_graph():
    variables = {"h": None, "x": Continuous(), "y": Continuous(-1.0, 1.5), "c": 3}
    return LatentGraph([("h", "x"), ("h", "y"), ("h", "c")], variables, ["h"])


def mixed(rows, seed):
    rng = np.random.default_rng(seed)
    kind = rng.integers(3, size=rows)
    centre = np.array([-1.5, 0.0, 2.0])[kind]
    c = np.where(rng.random(rows) < 0.8, kind, rng.integers(3, size=rows))
    y = np.clip(0.4 * centre + 0.5 * rng.normal(size=rows), -1.0, 1.5)
    return {
        "x": torch.from_numpy(centre + 0.6 * rng.normal(size=rows)),
        "y": torch.from_numpy(y),
        "c": torch.from_numpy(c),
    }


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


# -- refusals --------------------------------------------------------------------------------------------------------


def test_bad_questions(model):
    for query, evidence, error, text in [
        ("h1", None, QueryError, "it is latent"),
        ("z", None, QueryError, "unknown variable 'z'"),
        ("x1", {"x1": [0.0]}, QueryError, "also in the evidence"),
        (("x1", "x2"), None, QueryError, "one variable at a time"),
        ("x1", {"z": [0.0]}, QueryError, "unknown variable 'z'"),
        ("x1", {"x2": [math.inf]}, DataError, "expected a finite value or NaN"),
        ("x1", {"x2": [0.0, 1.0], "x3": [0.0, 1.0, 2.0]}, ShapeError, "rows"),
    ]:
        with pytest.raises(error, match=text):
            model.posterior(query, evidence)
    with pytest.raises(ShapeError, match=r"at: expected \(n,\) points"):
        model.posterior("x1", at=torch.zeros(2, 2))
    with pytest.raises(QueryError, match="at: expected finite points"):
        model.posterior("x1", at=[0.0, NAN])
    with pytest.raises(ShapeError, match="non-negative number of draws"):
        model.sample(-1)
    discrete = KernelPBP(mixed_graph()).fit(mixed(30, 0))
    with pytest.raises(QueryError, match="at= is for continuous variables"):
        discrete.posterior("c", at=[0.0])


def test_unfitted_models_say_so():
    model = KernelPBP(stroke_graph())
    for ask in (model.log_evidence, model.posteriors, lambda: model.posterior("x1"), lambda: model.sample(2)):
        with pytest.raises(NotFittedError, match="not fitted"):
            ask()


def test_variables_compared_by_increments_have_no_density_of_their_own():
    sequences = [("x1", "x2", "x3")]
    model = KernelPBP(stroke_graph(), sequences=sequences, bandwidth=WIDTH).fit(strokes(30))
    with pytest.raises(QueryError, match="'x2': it is compared by increments"):
        model.posterior("x2", {"x1": [0.0]})
    with pytest.raises(QueryError, match="compared by increments"):
        model.sample(3)
    new = strokes(4, seed=1)
    complete = {v: new[v] for v in ("x1", "x2", "x3")}
    assert model.posterior("y2", complete).mean.shape == (4,)
    assert model.sample(3, complete, seed=0)["y1"].shape == (3, 4)
    with pytest.raises(QueryError, match="compared by increments"):
        model.sample(3, {**complete, "x2": torch.tensor([0.0, NAN, 0.0, 0.0])})


def test_only_gaussian_noise_is_drawn():
    model = KernelPBP(stroke_graph(), kernel=Laplace(), bandwidth=WIDTH).fit(strokes(20))
    with pytest.raises(QueryError, match="needs the RBF kernel"):
        model.sample(2)


def test_memory_is_estimated_before_anything_is_allocated(monkeypatch):
    model = KernelPBP(stroke_graph(), max_bytes=10**6)

    def nothing(*_):
        raise AssertionError("an operator was built")

    monkeypatch.setattr(KernelPBP, "_operator", nothing)
    with pytest.raises(DataError, match=r"would take .* GiB, more than max_bytes=.*landmarks=<number>.*Nystroem"):
        model.fit(strokes(2_000))
    assert not model.fitted
    monkeypatch.undo()
    thin = KernelPBP(stroke_graph(), max_bytes=10**6, landmarks=5).fit(strokes(1_000))
    assert torch.isfinite(thin.log_evidence(strokes(3, seed=1))).all()


def test_bad_training_data():
    graph, good = stroke_graph(), strokes(20)
    for bad, error, text in [
        ({v: x[:1] for v, x in good.items()}, DataError, "at least 2 rows, got 1"),
        ({v: x[:0] for v, x in good.items()}, DataError, "empty"),
        ({**good, "x2": torch.full((20,), 3.5)}, DataError, r"Column 'x2' is constant \(3\.5\): the median rule"),
        ({**good, "y1": torch.full((20,), NAN)}, DataError, "Column 'y1': all 20 values are missing"),
        ({**good, "y1": torch.full((20,), math.inf)}, DataError, "expected a finite number, got inf"),
        ({**good, "y1": good["y1"] + 50}, DataError, r"lies outside the declared range \[-9\.0, 9\.0\]"),
        ({**good, "y1": good["y1"][:10]}, ShapeError, "different lengths"),
        ({v: x for v, x in good.items() if v != "x3"}, DataError, r"missing columns \['x3'\]"),
        ({**good, "x1": ["left"] * 20}, DataError, "column 'x1' is continuous: expected numbers, got .*left"),
    ]:
        model = KernelPBP(graph).fit(good)
        before = model.log_evidence(good)
        with pytest.raises(error, match=text):
            model.fit(bad)
        assert torch.equal(model.log_evidence(good), before)  # nothing overwritten


def test_a_constant_column_with_a_given_bandwidth_is_learned():
    data = {**strokes(40), "x2": torch.full((40,), 3.5)}
    model = KernelPBP(stroke_graph(), **settings()).fit(data)
    density = model.posterior("x2", {"x1": torch.tensor([0.0])})
    assert density.mean.item() == pytest.approx(3.5)
    assert model.posterior("x1", {"x2": torch.tensor([3.5])}).mean.isfinite().all()


def test_bad_settings():
    graph = stroke_graph()
    for changes, text in [
        ({"bandwidth": 0.0}, "bandwidth: expected a positive number, got 0.0"),
        ({"bandwidth": "mean"}, "expected positive numbers or 'median'"),
        ({"bandwidth": {"x1": 1.0}}, "expected a positive number for each of"),
        ({"evidence_bandwidth": -1.0}, "bandwidth: expected a positive number, got -1.0"),
        ({"ridge": (0.0, 0.1)}, "two positive numbers"),
        ({"ridge": (0.1,)}, "two positive numbers"),
        ({"core_leaves": 0}, "core_leaves: expected at least 1"),
        ({"instrument_leaves": 0}, "instrument_leaves: expected at least 1"),
        ({"landmarks": 0}, "landmarks: expected None or at least 1"),
    ]:
        with pytest.raises(StructureError, match=text):
            KernelPBP(graph, **changes)


def test_a_specification_of_another_tree_is_refused():
    chain = templates.hmm(4, states=3, observed_states=3)
    domains = {**chain.variables, **{f"x{t}": Continuous() for t in (1, 3, 4)}}
    graph = LatentGraph(chain.edges, domains, chain.latent)
    finite, gram = PBP(graph, rank=3), KernelPBP(graph)
    assert KernelPBP(graph, specification=gram.specification).specification is gram.specification
    assert finite.tree.cliques != gram.tree.cliques  # otherwise this test shows nothing
    with pytest.raises(StructureError, match="expected a core group below it and an instrument beside it"):
        KernelPBP(graph, specification=finite.specification)
    with pytest.raises(StructureError, match="expected plans for the 5 separators"):
        KernelPBP(graph, specification=Specification(gram.specification.plans[:2]))


def test_copies_and_refits_are_independent(model):
    again = copy.deepcopy(model).fit(strokes(30, seed=9))
    assert len(again.examples) == 30
    assert len(model.examples) == 80


def test_rows_far_from_all_training_rows_keep_their_order_in_single_precision():
    """Sixteen coordinates far away come to e^-1000 and less, which float32 cannot hold."""
    torch.manual_seed(0)
    graph = templates.pen_clique(low=-1000.0, high=1000.0)
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
