"""Continuous and mixed observables: valid densities, exact answers in the limit, one regression in two forms."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from torchpbp import PBP, Continuous, DiscreteNetwork, Laplace, LatentGraph, Matern, Nystroem, RandomFourier, templates
from torchpbp.errors import DataError, QueryError, ShapeError, StructureError
from torchpbp.features import OneHot
from torchpbp.inference.density import GRID, Density, grid_density
from torchpbp.model.learning import learn, required_pairs, required_scopes
from torchpbp.model.thinning import ThinnedRows
from torchpbp.stage2.feature_moments import FeatureMoments
from torchpbp.stage2.joint_tables import JointTables
from torchpbp.stage2.table_moments import TableMoments

NAN = float("nan")

# -- a known mixed model ---------------------------------------------------------------------------------------------
# A latent with three states; x and y have emissions of no common family, c has states.

PRIOR = np.array([0.5, 0.3, 0.2])
STATES = np.array([[0.7, 0.1, 0.1, 0.1], [0.1, 0.6, 0.2, 0.1], [0.05, 0.15, 0.2, 0.6]])
EMISSIONS = {
    "x": [stats.gamma(3, scale=0.5), stats.gamma(9, scale=0.5), stats.norm(8, 1)],
    "y": [stats.norm(0, 1), stats.uniform(1, 4), stats.norm(-3, 0.7)],
}
AXIS = np.linspace(-12, 20, 3201)


def mixed_graph(states=3, x=None, y=None):
    variables = {"h": states, "x": x or Continuous(), "y": y or Continuous(), "c": 4}
    return LatentGraph([("h", "x"), ("h", "y"), ("h", "c")], variables, ["h"])


def mixed(rows, seed):
    rng = np.random.default_rng(seed)
    h = rng.choice(3, p=PRIOR, size=rows)
    table = {v: np.choose(h, [d.rvs(rows, random_state=rng) for d in e]) for v, e in EMISSIONS.items()}
    table["c"] = (rng.random(rows)[:, None] > STATES[h].cumsum(axis=1)).sum(axis=1)
    return {v: torch.from_numpy(x) for v, x in table.items()}


def blurred(name, at, width):
    """(points, states) ∫ k(at, x) p(x | h) dx / ∫ k by quadrature: what an RBF kernel of this width sees."""
    kernel = stats.norm.pdf(np.asarray(at)[:, None], AXIS, width)
    return np.stack([np.trapezoid(kernel * d.pdf(AXIS), AXIS, axis=1) for d in EMISSIONS[name]], axis=1)


@pytest.fixture(scope="module")
def model():
    return PBP(mixed_graph()).fit(mixed(20_000, 0))


@pytest.fixture(scope="module")
def widths(model):
    return {v: float(model.observables[v].map.width) for v in "xy"}


@pytest.fixture(scope="module")
def rough():
    """Few rows and hardly a penalty: an estimate full of negative values."""
    return PBP(mixed_graph(), ridge=(1e-3, 1e-3)).fit(mixed(40, 3))


def random_patterns(rows, seed):
    """Evidence on random subsets, from nothing to everything, some of it where no data is."""
    rng = np.random.default_rng(seed)
    table = mixed(rows, seed)
    share = np.linspace(0, 1, rows)
    for v, column in table.items():
        hidden = torch.from_numpy(rng.random(rows) < share)
        if v != "c":
            column = torch.where(torch.from_numpy(rng.random(rows) < 0.05), column * 40 - 30, column)
        table[v] = torch.where(hidden, torch.tensor(-1) if v == "c" else NAN, column)
    return table


# -- valid densities -------------------------------------------------------------------------------------------------

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
    assert torch.equal(model.posterior("y", given, at=between), density.prob(between))
    assert torch.allclose(density.log_prob(between).exp(), density.prob(between))
    raw = model.posterior("y", given, at=density.points, raw=True)
    total = torch.trapezoid(raw, density.points, dim=1)
    assert torch.allclose(total, torch.ones_like(total), atol=1e-9)
    assert torch.allclose(raw, density.values, atol=0.02)  # with many rows hardly anything is clipped
    assert torch.equal(model.posteriors(given)["y"].values, density.values)


@torch.no_grad()
def test_quantiles_and_distribution_function(model):
    density = model.posterior("y", {"x": [1.0, 4.0], "c": [0, 2]})
    levels = torch.linspace(0, 1, 101, dtype=torch.float64)
    found = density.quantile(levels)
    assert found.shape == (2, 101)
    assert (found.diff(dim=1) >= 0).all()
    cdf = density.cdf()
    assert (cdf.diff(dim=1) >= 0).all()
    assert torch.allclose(cdf[:, [0, -1]], torch.tensor([0.0, 1.0], dtype=torch.float64).expand(2, 2), atol=1e-9)
    for row in range(2):
        back = np.interp(found[row], density.points, cdf[row])
        assert np.allclose(back, levels, atol=1e-6)
    assert torch.equal(density.quantile(0.5), found[:, 50])
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


# -- exact answers in the limit --------------------------------------------------------------------------------------


@torch.no_grad()
def errors_against_quadrature(model):
    """KL of P(c | x, y), mean error of log p(x, y), and mean L1 distance of p(y | x, c), from numerical integration.

    Evidence through an RBF kernel of width σ is evidence of x + N(0, σ²), and so is a density read off it.
    """
    width = {v: float(model.observables[v].map.width) for v in "xy"}
    x, y = (a.ravel() for a in np.meshgrid(np.linspace(0.5, 9, 15), np.linspace(-4, 4.5, 15)))
    likelihood = blurred("x", x, width["x"]) * blurred("y", y, width["y"])
    joint = (PRIOR * likelihood) @ STATES
    weight = joint.sum(axis=1) / joint.sum()
    exact = joint / joint.sum(axis=1, keepdims=True)
    found = model.posterior("c", {"x": x, "y": y}).numpy()
    kl = float((exact * np.log(exact / found)).sum(axis=1) @ weight)
    logs = float(np.abs(model.log_evidence({"x": x, "y": y}).numpy() - np.log(joint.sum(axis=1))) @ weight)
    low, high = model.observables["y"].bounds.tolist()
    at = np.linspace(low, high, 200)
    shapes, distances = blurred("y", at, width["y"]), []
    for c in range(4):
        for value, seen in zip((1.0, 4.0, 8.0), blurred("x", [1.0, 4.0, 8.0], width["x"]), strict=True):
            posterior = PRIOR * STATES[:, c] * seen
            truth = shapes @ (posterior / posterior.sum())
            density = model.posterior("y", {"x": [value], "c": [c]}, at=at)[0].numpy()
            distances.append(np.trapezoid(np.abs(density - truth), at))
    return np.array([kl, logs, np.mean(distances)])


def test_a_mixed_graph_against_numerical_integration(model):
    few = np.mean([errors_against_quadrature(PBP(mixed_graph()).fit(mixed(1_000, s))) for s in (1, 2, 3)], axis=0)
    many = errors_against_quadrature(model)  # 20 times the rows
    assert (many < [0.002, 0.03, 0.05]).all(), many
    assert (many < few / [5, 2, 2]).all(), (few, many)  # KL falls like 1/N, the others like its root


def test_densities_are_blurred_and_means_are_not(model, widths):
    """The mean is not blurred: it comes from a regression of the value itself on its features."""
    density = model.posterior("y", {"c": [0]})
    posterior = PRIOR * STATES[:, 0]
    posterior /= posterior.sum()
    means = np.array([d.mean() for d in EMISSIONS["y"]])
    squares = np.array([d.var() + d.mean() ** 2 for d in EMISSIONS["y"]])
    assert density.mean.item() == pytest.approx(posterior @ means, abs=0.05)
    plain = posterior @ squares - (posterior @ means) ** 2
    assert density.variance.item() == pytest.approx(plain, rel=0.06)
    own = torch.trapezoid(density.values * (density.points - density.mean) ** 2, density.points, dim=1)
    assert own.item() == pytest.approx(plain + widths["y"] ** 2, rel=0.06)


# A hidden linear-Gaussian chain: h_t = a h_{t-1} + noise, stationary with unit variance, x_t = h_t + N(0, r).

LENGTH, DECAY, NOISE = 5, 0.8, 0.5
COVARIANCE = DECAY ** np.abs(np.subtract.outer(np.arange(LENGTH), np.arange(LENGTH))) + NOISE * np.eye(LENGTH)


def gaussian_chain(rows, seed):
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=rows)
    table = {}
    for t in range(1, LENGTH + 1):
        if t > 1:
            hidden = DECAY * hidden + math.sqrt(1 - DECAY**2) * rng.normal(size=rows)
        table[f"x{t}"] = torch.from_numpy(hidden + math.sqrt(NOISE) * rng.normal(size=rows))
    return table


def kalman_means(query, seen, table, blur):
    """E[x_query | seen], from the covariance that the Kalman smoother's recursion amounts to, evidence blurred."""
    chosen = [t - 1 for t in seen]
    values = np.stack([table[f"x{t}"].numpy() for t in seen], axis=1)
    gram = COVARIANCE[np.ix_(chosen, chosen)] + blur**2 * np.eye(len(chosen))
    return values @ np.linalg.solve(gram, COVARIANCE[chosen, query - 1])


def chain_model(width, rows, seed):
    graph = templates.hmm(LENGTH, states=8, observed_states=8)
    graph = LatentGraph(graph.edges, {**graph.variables, **{f"x{t}": Continuous() for t in range(1, 6)}}, graph.latent)
    return PBP(graph, features=Nystroem(24, bandwidth=width)).fit(gaussian_chain(rows, seed))


@torch.no_grad()
def kalman_error(model, query, seen, blur, limit=np.inf):
    """Root mean square distance from the smoother's means over rows whose evidence lies within a limit."""
    new = gaussian_chain(600, 99)
    evidence = {f"x{t}": new[f"x{t}"] for t in seen}
    error = model.posterior(f"x{query}", evidence).mean.numpy() - kalman_means(query, seen, new, blur)
    usual = np.max([x.abs().numpy() for x in evidence.values()], axis=0) < limit
    return float(np.sqrt(np.mean(error[usual] ** 2)))


QUERIES = [(3, (1, 2, 4, 5)), (3, (1, 5)), (5, (1, 2, 3)), (1, (2,))]


def test_a_linear_gaussian_chain_recovers_the_smoothers_means():
    """The spread of these means is 0.4 to 0.6; a width as large as the latent's deviation keeps the variance small."""
    few, many = chain_model(1.0, 1_500, 0), chain_model(1.0, 30_000, 1)
    for query, seen in QUERIES:
        before, after = (kalman_error(m, query, seen, blur=1.0) for m in (few, many))
        assert after < 0.03, (query, seen, after)
        assert after < before / 2, (query, seen, before, after)


def test_narrow_kernels_approach_the_plain_smoother():
    """Bias falls with the width, variance grows; away from the tails 60 000 rows pay for a width of 0.4."""
    wide, narrow = chain_model(1.0, 60_000, 2), chain_model(0.4, 60_000, 2)
    for query, seen in QUERIES:
        plain = [kalman_error(m, query, seen, blur=0.0, limit=2.0) for m in (wide, narrow)]
        assert plain[1] < 0.6 * plain[0], (query, seen, plain)
        assert plain[1] < 0.08, (query, seen, plain)
        assert kalman_error(narrow, query, seen, blur=0.4, limit=2.0) < 0.05


# -- one regression in two forms -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hmm", "diamond", "loopy"])
@pytest.mark.parametrize("compressed", [True, False])
@torch.no_grad()
def test_one_hot_feature_moments_give_the_same_operators_as_tables(name, compressed):
    graph = {
        "hmm": templates.hmm(5, states=2, observed_states=3),
        "diamond": templates.diamond(observed_states=3),
        "loopy": templates.loopy_network(observed_states=3),
    }[name]
    data = DiscreteNetwork.random(graph, seed=0, concentration=2.0).sample(4_000, seed=1)
    tables, features = (PBP(graph, compressed=compressed).fit(data) for _ in range(2))
    tree, specification = tables.tree, tables.specification
    counts = JointTables(required_scopes(tree, specification), tables.states)
    counts.add(torch.stack(list(data.values())))
    batches = [{v: x[i : i + 900] for v, x in data.items()} for i in range(0, 4_000, 900)]
    maps = {v: OneHot(s) for v, s in tables.states.items()}
    moments = FeatureMoments(maps, lambda: iter(batches), required_pairs(specification), whitening=1e-15)
    # Tables scale instruments before they penalise, features do not: compressed models agree without penalties only.
    penalties = (0.0, 0.0) if compressed else (1e-3, 1e-2)
    results = [learn(tree, specification, m, *penalties, compressed) for m in (TableMoments(counts), moments)]
    assert moments.rows == 4_000
    for model, learned in zip((tables, features), results, strict=True):
        for operator, weight in zip(model.operators, learned.operators[1:], strict=True):
            operator.weight.copy_(weight)
        model.root.weight.copy_(learned.root)
    if not compressed:
        for a, b in zip(tables.parameters(), features.parameters(), strict=True):
            assert torch.allclose(a, b, atol=1e-10)
    for a, b in zip(results[0].strengths, results[1].strengths, strict=True):
        assert torch.allclose(a, b, atol=1e-9)
    evidence = {
        v: torch.randint(-1, 3, (40,), generator=torch.Generator().manual_seed(i)) for i, v in enumerate(graph.observed)
    }
    for model in (tables, features):
        model.floor.fill_(1e-15)
    assert torch.allclose(tables.log_evidence(evidence), features.log_evidence(evidence), atol=1e-8)
    a, b = tables.posteriors(evidence, raw=True), features.posteriors(evidence, raw=True)
    for v in a:
        usual = a[v].abs().amax(dim=1) < 5  # a sum near 0 divides rounding errors
        assert usual.float().mean() > 0.9
        assert torch.allclose(a[v][usual], b[v][usual], atol=1e-8), v


# -- learning --------------------------------------------------------------------------------------------------------


def parameters_equal(a, b, atol=0.0):
    return all(torch.allclose(x, y, atol=atol, rtol=0) for x, y in zip(a.parameters(), b.parameters(), strict=True))


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
            assert torch.equal(mine.bounds, theirs.bounds)
            assert torch.equal(mine.map.centres, theirs.map.centres)
        given = {"x": [1.0, 5.0], "c": [2, -1]}
        assert torch.allclose(whole.posterior("y", given).values, other.posterior("y", given).values, atol=1e-8)
    with pytest.raises(DataError, match="one-way iterator"):
        PBP(mixed_graph()).fit(iter(chunks))
    with pytest.raises(DataError, match="one-way iterator"):
        PBP(mixed_graph()).fit(x for x in chunks)


def test_the_order_of_rows_does_not_matter(monkeypatch):
    """Maps are fitted to some of the rows: these must come from everywhere."""
    monkeypatch.setattr("torchpbp.model.fitting.MAP_ROWS", 500)
    data = mixed(4_000, 0)
    order = data["x"].argsort()
    ordered = PBP(mixed_graph()).fit({v: x[order] for v, x in data.items()})
    shuffled = PBP(mixed_graph()).fit(data)
    assert float(ordered.observables["x"].bounds[1]) > float(data["x"].max())
    given = {"x": [1.0, 5.0, 9.0], "c": [2, -1, 3]}
    assert torch.allclose(ordered.posterior("y", given).mean, shuffled.posterior("y", given).mean, atol=0.15)
    chunks = [{v: x[i : i + 333] for v, x in data.items()} for i in range(0, 4_000, 333)]
    streamed = PBP(mixed_graph()).fit(chunks)
    assert torch.equal(streamed.observables["x"].map.centres, shuffled.observables["x"].map.centres)


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
    assert max(p.rank for p in model.specification.plans) == 3
    assert [s.rank for s in model.rank_scores][:3] == [1, 2, 3]
    assert errors_against_quadrature(model)[0] < 0.01


def test_rank_auto_prefers_independence_when_there_is_nothing_to_learn():
    generator = torch.Generator().manual_seed(0)
    noise = {v: torch.randn(1_500, generator=generator).double() for v in "xy"}
    noise["c"] = torch.randint(4, (1_500,), generator=generator)
    model = PBP(mixed_graph(states=None), rank="auto", max_rank=4).fit(noise)
    assert max(p.rank for p in model.specification.plans) == 1


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


# -- samples ---------------------------------------------------------------------------------------------------------


def distribution_function(density):
    cdf = density.cdf()[0].numpy()
    return lambda values: np.interp(values, density.points.numpy(), cdf)


@torch.no_grad()
def test_samples_follow_the_posterior(model):
    count = 8_000
    for evidence in (None, {"x": [1.8]}, {"c": [1], "x": [NAN]}):
        draws = model.sample(count, evidence, seed=1)
        for v in "xyc":
            values = draws[v].flatten()
            assert len(values) == count
            if v in (evidence or {}) and (v != "x" or not math.isnan(evidence["x"][0])):
                assert (values == evidence[v][0]).all()
            elif v == "c":
                expected = model.posterior("c", evidence)[0] * count
                counts = torch.bincount(values, minlength=4)
                assert float(((counts - expected) ** 2 / expected).sum()) < 25
            else:
                density = model.posterior(v, evidence)
                # A draw passes through two clipped densities, so more than sampling error is allowed.
                assert stats.kstest(values.numpy(), distribution_function(density)).statistic < 1.95 / count**0.5 + 0.01
                low, high = model.observables[v].bounds
                assert ((values >= low) & (values <= high)).all()


@torch.no_grad()
def test_samples_follow_dependences(model, widths):
    """Draws are blurred like densities, so their moments are those of the model plus the widths squared."""
    draws = model.sample(20_000, seed=3)
    truth = mixed(200_000, 77)
    for v in "xy":
        assert draws[v].mean().item() == pytest.approx(truth[v].mean().item(), abs=0.1)
        assert draws[v].var().item() == pytest.approx(truth[v].var().item() + widths[v] ** 2, rel=0.05)
    covariance = np.cov(draws["x"], draws["y"])[0, 1]
    assert covariance == pytest.approx(np.cov(truth["x"], truth["y"])[0, 1], abs=0.15)
    for c in range(4):
        assert draws["x"][draws["c"] == c].mean().item() == pytest.approx(
            truth["x"][truth["c"] == c].mean().item(), abs=0.2
        )


def test_sampling_repeats_under_a_seed(model):
    a, b, c = (model.sample(20, seed=s) for s in (1, 1, 2))
    assert all(torch.equal(a[v], b[v]) for v in a)
    assert not torch.equal(a["x"], c["x"])
    empty = model.sample(0)
    assert empty["x"].dtype == torch.float64
    assert empty["c"].dtype == torch.int64


def test_rough_estimates_still_give_valid_samples(rough):
    draws = rough.sample(500, seed=0)
    assert all(torch.isfinite(x).all() for x in draws.values())
    table = rough.diagnostics()
    assert len(table) == 3


# -- ranges, errors, files -------------------------------------------------------------------------------------------


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
        ({**good, "y": ["low"] * 60}, DataError, "column 'y' is continuous: expected numbers"),
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


def test_bad_questions(model):
    for ask, error, text in [
        (lambda: model.posterior("c", at=[0.0]), QueryError, "at= is for continuous variables"),
        (lambda: model.posterior(("x", "c")), QueryError, "'x' is continuous"),
        (lambda: model.posterior(("x", "y")), QueryError, "is continuous"),
        (lambda: model.posterior("h"), QueryError, "it is latent"),
        (lambda: model.posterior("x", {"x": [1.0]}), QueryError, "also in the evidence"),
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
        with pytest.raises(StructureError, match=text):
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
    assert torch.equal(chosen.observables["x"].map.width, same.observables["x"].map.width)
    wide = PBP(graph, features=Nystroem(30, bandwidth_scale=1.0)).fit(data)
    at = torch.tensor([0.0])
    truth = 1 / (2 * torch.pi) ** 0.5
    error = [abs(m.posterior("y", {"x": [0.0]}, at=at).item() - truth) for m in (chosen, wide)]
    assert error[0] < error[1]
    with pytest.raises(DataError, match="needs rows to hold out"):
        PBP(graph, features=Nystroem(3, bandwidth="validate")).fit({"x": [0.0, 1.0, 2.0], "y": [0.0, 2.0, 1.0]})
