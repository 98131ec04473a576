"""The spectral algorithm for latent junction trees."""

from __future__ import annotations

import warnings

import pytest
import torch

from tests.models.structures import STRUCTURES
from tests.models.test_population_exactness import patterns
from torchpbp import Continuous, DiscreteNetwork, LatentGraph, SpectralJunctionTree, templates
from torchpbp.baselines import spectral
from torchpbp.errors import (
    ArgumentError,
    DataError,
    QueryError,
    RankWarning,
    StructureError,
)
from torchpbp.moments.joint_tables import JointTables
from torchpbp.moments.table_moments import TableMoments
from torchpbp.planning.ranks import StructureProbe
from torchpbp.planning.spans import numerical_rank

TOLERANCE = 1e-8
EXACT = {
    **STRUCTURES,
    "second order": templates.hmm(6, states=2, observed_states=4, order=2),
    "third order": templates.hmm(7, states=2, observed_states=4, order=3),
    "factorial, 16 states": templates.factorial_hmm(4, chains=2, states=2, observed_states=16),
    "synthetic junction tree": templates.synthetic_junction_tree(),
}


@pytest.mark.parametrize("name", EXACT)
def test_exact_tables_give_exact_joints(name):
    graph = EXACT[name]
    model = SpectralJunctionTree(graph, strict=True)
    for seed in (0, 1):
        network = DiscreteNetwork.random(graph, seed=seed)
        model.fit_population(network)
        complete = network.sample(50, seed=seed)
        partial = patterns(graph, 50, seed)
        for rows in (complete, partial):
            exact = network.log_evidence(rows)
            torch.testing.assert_close(model.log_evidence(rows), exact, atol=TOLERANCE, rtol=0)
            torch.testing.assert_close(model.estimates(rows), exact.exp(), atol=0, rtol=TOLERANCE)
            assert model.negatives(rows) == 0


@pytest.mark.parametrize("name", ["diamond", "chain, order 2", "observables with children", "undirected grid"])
def test_exact_tables_give_exact_posteriors(name):
    graph = EXACT[name]
    network = DiscreteNetwork.random(graph, seed=4)
    model = SpectralJunctionTree(graph).fit_population(network)
    evidence = patterns(graph, 20, 4)
    learned, exact = model.posteriors(evidence), network.posteriors(evidence)
    assert learned.keys() == exact.keys()
    for v in exact:
        torch.testing.assert_close(learned[v], exact[v], atol=TOLERANCE, rtol=0)
    first, second, third = graph.observed[:3]
    weights = torch.rand(5, graph.num_states(third), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    soft = {third: weights, second: torch.tensor([0, -1, 1, -1, 0])}
    pair = (first, second)
    torch.testing.assert_close(model.posterior(pair, soft), network.posterior(pair, soft), atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(model.posterior(third, soft), network.posterior(third, soft), atol=TOLERANCE, rtol=0)


def test_outside_groups_are_valid_alone_all_there_and_of_the_smallest_size():
    model = SpectralJunctionTree(EXACT["chain, order 3"])
    probe = StructureProbe(model.tree, 99)  # another draw than the one that chose
    sizes = set()
    for plan in model.plan.separators:
        groups, factor = model.choices[plan.node], probe.core_factor(plan.node, plan.core)
        near = [v for _, v in model.tree.distances(plan.node, 6)][:6]
        size = len(groups[0])
        sizes.add(size)
        for width in range(1, size + 1):
            for group in torch.combinations(torch.arange(len(near)), width).tolist():
                names = tuple(near[i] for i in group)
                valid = numerical_rank(probe.instrument_block(plan.node, factor, names)) >= plan.needed
                assert valid == (names in groups)
        assert not {v for g in groups for v in g} & model.tree.inside[plan.node]
    assert len(sizes) > 1  # wide separators need larger groups


@pytest.mark.parametrize("name", ["diamond", "chain, order 2"])
def test_any_single_valid_choice_is_exact_and_the_stack_is_the_better_estimate(name):
    graph = EXACT[name]
    model = SpectralJunctionTree(graph)
    network = DiscreteNetwork.random(graph, seed=3)
    rows = network.sample(200, seed=1)
    exact = network.log_evidence(rows).exp()
    for position in (0, -1):
        model.choices = {n: (groups[position],) for n, groups in model.outside_choices().items()}
        model.fit_population(network)
        torch.testing.assert_close(model.estimates(rows), exact, atol=0, rtol=TOLERANCE)
    errors = {"single": 0.0, "stacked": 0.0}
    for seed in range(4):
        network = DiscreteNetwork.random(graph, seed=10 + seed)
        data, rows = network.sample(5_000, seed=seed), network.sample(200, seed=99)
        exact = network.log_evidence(rows).exp()
        for kind in errors:
            model.choices = {n: g[:1] if kind == "single" else g for n, g in model.outside_choices().items()}
            errors[kind] += float((model.fit(data).estimates(rows) / exact - 1).abs().mean())
    assert errors["stacked"] < errors["single"]


def test_the_projections_are_those_of_the_largest_singular_values():
    graph = EXACT["diamond"]
    network = DiscreteNetwork.random(graph, seed=0)
    model = SpectralJunctionTree(graph)
    tables = JointTables(model.required_tables(), model.states)
    tables.fill(network.joint)
    _, singular_values = model.representation(TableMoments(tables))
    for plan in model.plan.separators:
        pair = torch.cat(
            [network.joint((*plan.core, *g)).reshape(-1, 4 ** len(g)) for g in model.choices[plan.node]], 1
        )
        expected = torch.linalg.svdvals(pair)[: plan.rank]
        torch.testing.assert_close(singular_values[plan.node - 1], expected)


def test_the_error_falls_as_rows_grow():
    network = DiscreteNetwork.random(templates.synthetic_junction_tree(observed_states=8), seed=5)
    rows = network.sample(300, seed=1)
    exact = network.log_evidence(rows)
    errors = []
    for size in (2_000, 50_000):
        model = SpectralJunctionTree(network.graph).fit(network.sample(size, seed=2))
        errors.append(float(((model.log_evidence(rows) - exact).exp() - 1).abs().mean()))
    assert errors[1] < 0.4 * errors[0]  # 1/√25 = 0.2


def test_negative_estimates_are_counted_and_clipped():
    network = DiscreteNetwork.random(templates.factorial_hmm(4, observed_states=16), seed=0)
    data, rows = network.sample(150, seed=1), network.sample(500, seed=2)
    model = SpectralJunctionTree(network.graph).fit(data)
    seen = torch.stack([torch.isin(rows[v], data[v]) for v in data]).all(dim=0)
    assert bool(torch.isneginf(model.log_evidence({v: x[~seen] for v, x in rows.items()})).all())
    assert bool((model.estimates({v: x[~seen] for v, x in rows.items()}) == 0).all())
    rows = {v: x[seen] for v, x in rows.items()}
    signed = model.estimates(rows)
    negative = signed <= 0
    assert 0 < int(negative.sum()) == model.negatives(rows) < len(signed)
    logs = model.log_evidence(rows)
    assert bool(logs.isfinite().all())
    raised = logs.exp() > signed * (1 + 1e-9)  # those below the floor
    assert bool(raised[negative].all())
    assert int(raised.sum()) < 2 * int(negative.sum())
    torch.testing.assert_close(logs[~raised].exp(), signed[~raised])
    sign, size = model.log_evidence(rows, raw=True)
    torch.testing.assert_close(sign * size.exp(), signed)
    posterior = model.posterior("x1", {v: x for v, x in rows.items() if v != "x1"})
    assert bool((posterior > 0).all())
    torch.testing.assert_close(posterior.sum(dim=1), torch.ones(len(signed), dtype=torch.float64))


def test_tables_of_too_low_a_rank_are_reported():
    graph = templates.hmm(4, states=3, observed_states=4)
    cpts = DiscreteNetwork.random(graph, seed=0).cpts
    cpts["h3"] = cpts["h3"][:1].expand(3, 3).clone()  # the past is forgotten: the halves are independent
    network = DiscreteNetwork(graph, cpts)
    with pytest.warns(RankWarning, match=r"of lower rank than the structure implies, .*\(rank 1, implied 3\)"):
        model = SpectralJunctionTree(graph).fit_population(network)
    rows = network.sample(50, seed=0)
    torch.testing.assert_close(model.estimates(rows), network.log_evidence(rows).exp(), atol=0, rtol=TOLERANCE)
    with pytest.raises(StructureError, match="inverses exist on that part only"):
        SpectralJunctionTree(graph, strict=True).fit_population(network)


def test_structures_without_a_representation_are_reported():
    graph = EXACT["diamond"]
    with pytest.warns(RankWarning, match=r"instrument rank \d, needs \d"):
        model = SpectralJunctionTree(graph, pool=1)
    network = DiscreteNetwork.random(graph, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankWarning)
        model.fit_population(network)
    rows = patterns(graph, 60, 0)
    assert float((model.estimates(rows) / network.log_evidence(rows).exp() - 1).abs().max()) > 1e-4
    with pytest.raises(StructureError, match=r"instrument rank \d, needs \d"):
        SpectralJunctionTree(graph, pool=1, strict=True)


def test_unknown_numbers_of_states_take_the_rank_given():
    truth = DiscreteNetwork.random(templates.hmm(4, states=2), seed=0)
    rows = truth.sample(50, seed=0)
    model = SpectralJunctionTree(templates.hmm(4, states=None), rank=2).fit_population(truth)
    torch.testing.assert_close(model.estimates(rows), truth.log_evidence(rows).exp(), atol=0, rtol=TOLERANCE)
    with pytest.raises(StructureError, match=r"have no number of states. Pass rank="):
        SpectralJunctionTree(templates.hmm(4, states=None))


def test_mini_batches_labels_and_files(tmp_path):
    network = DiscreteNetwork.random(templates.naive_bayes(4, states=2, observed_states=3), seed=0)
    data = network.sample(400, seed=1)
    whole = SpectralJunctionTree(network.graph, root=["h"], pool=3).fit(data)
    parts = [{v: x[i : i + 150] for v, x in data.items()} for i in range(0, 400, 150)]
    torch.testing.assert_close(
        whole.estimates(data), SpectralJunctionTree(network.graph, pool=3).fit(parts).estimates(data)
    )
    names = ["low", "middle", "top"]
    labelled = {v: [names[int(i)] for i in x] for v, x in data.items()}
    model = SpectralJunctionTree(network.graph, root=["h"], pool=3).fit(labelled)
    expected = model.posterior("x1", {"x2": ["top", None]})
    torch.testing.assert_close(expected, whole.posterior("x1", {"x2": [2, -1]}))
    model.save(tmp_path / "spectral.pt")
    loaded = SpectralJunctionTree.load(tmp_path / "spectral.pt")
    assert torch.equal(loaded.posterior("x1", {"x2": ["top", None]}), expected)
    assert torch.equal(loaded.log_evidence(labelled), model.log_evidence(labelled))
    assert (loaded.rows, float(loaded.operators.floor), loaded.choices) == (400, 3 / 400, model.choices)
    assert (loaded.plan, loaded.options, loaded.tree.cliques) == (
        model.plan,
        model.options,
        model.tree.cliques,
    )
    assert torch.equal(loaded.fit(labelled).log_evidence(labelled), model.log_evidence(labelled))


def test_bad_input(monkeypatch):
    graph = templates.naive_bayes(3)
    with pytest.raises(StructureError, match="got continuous"):
        SpectralJunctionTree(LatentGraph([("h", "x")], {"h": 2, "x": Continuous()}, ["h"]))
    with pytest.raises(ArgumentError, match="pool: expected a whole number of at least 1"):
        SpectralJunctionTree(graph, pool=0)
    with pytest.raises(StructureError, match="must be the same"):
        SpectralJunctionTree(graph).fit_population(DiscreteNetwork.random(templates.naive_bayes(4)))
    with pytest.raises(DataError, match="missing columns"):
        SpectralJunctionTree(graph).fit({"x1": [0, 1]})
    with pytest.raises(DataError, match="empty"):
        SpectralJunctionTree(graph).fit({v: torch.zeros(0, dtype=torch.int64) for v in graph.observed})
    model = SpectralJunctionTree(graph).fit_population(DiscreteNetwork.random(graph))
    monkeypatch.setattr(spectral, "LARGEST_QUERY", 15)
    with pytest.raises(QueryError, match=r"16 joint states, each of which takes .* at most 15"):
        model.posterior(("x1", "x2"))
