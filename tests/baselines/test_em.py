"""Expectation maximisation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch

from tests.closeness import assert_same_up_to_rounding
from torchpbp import EM, Continuous, DiscreteNetwork, LatentGraph, OnlineEM, SpectralJunctionTree, templates
from torchpbp.errors import (
    ArgumentError,
    DataError,
    DataWarning,
    StructureError,
)

GRAPHS = {
    "naive_bayes": templates.naive_bayes(3, states=2, observed_states=3),
    "hmm": templates.hmm(3, states=2, observed_states=2),
    "order 2": templates.hmm(4, states=2, observed_states=2, order=2),
    "diamond": templates.diamond(states=2, observed_states=2, leaves=1),
    "parity": templates.parity(leaves=1, observed_states=2),
    "observed parent": LatentGraph([("a", "h"), ("h", "b"), ("a", "b")], {"a": 2, "h": 3, "b": 2}, latent=["h"]),
}


def with_missing_values(data: dict[str, torch.Tensor], share: float, seed: int) -> dict[str, torch.Tensor]:
    """The data with values missing at random; each row keeps one at least."""
    generator = torch.Generator().manual_seed(seed)
    names = list(data)
    kept = torch.rand(len(names), len(data[names[0]]), generator=generator) >= share
    kept[torch.randint(len(names), (kept.shape[1],), generator=generator), torch.arange(kept.shape[1])] = True
    return {v: torch.where(k, data[v], -1) for v, k in zip(names, kept, strict=True)}


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("prior", [0.0, 0.5])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_objective_never_falls(name, prior, missing):
    graph = GRAPHS[name]
    data = with_missing_values(DiscreteNetwork.random(graph, seed=3).sample(300, seed=4), missing, seed=5)
    model = EM(graph, restarts=3, max_steps=40, relative_tolerance=0.0, prior=prior, progress=False).fit(data)
    assert len(model.runs) == 3
    for run in model.runs:
        nothing_left = run.objective[-1] == pytest.approx(run.objective[-2], rel=1e-12)  # to gain
        assert len(run.objective) == 41 or nothing_left  # the start, and 40 steps
        assert all(b >= a - 1e-10 for a, b in itertools.pairwise(run.objective))
        assert run.objective[-1] > run.objective[0]


@pytest.mark.parametrize("learner", [EM, OnlineEM])
@pytest.mark.parametrize("max_steps", [1, 3, 200])
def test_the_last_objective_is_that_of_the_tables(learner, max_steps):
    graph = GRAPHS["diamond"]
    data = DiscreteNetwork.random(graph, seed=3).sample(300, seed=4)
    model = learner(graph, restarts=2, max_steps=max_steps, prior=0.0, progress=False).fit(data)
    best = max(run.objective[-1] for run in model.runs)
    assert best == pytest.approx(model.score(data), rel=1e-9)
    assert best == model.diagnostics()["objective"].max()


def test_without_hidden_variables_one_iteration_counts():
    graph = LatentGraph([("a", "b")], {"a": 2, "b": 3}, latent=[])
    data = {"a": torch.tensor([0, 0, 1, 1, 1]), "b": torch.tensor([0, 2, 1, 1, 2])}
    model = EM(graph, restarts=1, prior=0.0, progress=False).fit(data)
    cpts = model.network.cpts
    torch.testing.assert_close(cpts["a"], torch.tensor([0.4, 0.6], dtype=torch.float64))
    torch.testing.assert_close(cpts["b"], torch.tensor([[0.5, 0, 0.5], [0, 2 / 3, 1 / 3]], dtype=torch.float64))


def test_it_comes_close_to_the_truth():
    network = DiscreteNetwork.random(templates.diamond(states=2, observed_states=4, leaves=2), seed=0)
    evidence = network.sample(300, seed=9)
    del evidence["d1"]
    exact = network.posterior("d1", evidence)
    errors = []
    for rows in (500, 20_000):
        model = EM(network.graph, restarts=4, relative_tolerance=1e-6, progress=False).fit(network.sample(rows, seed=1))
        learned = model.posterior("d1", evidence)
        errors.append(float((exact * (exact / learned).log()).sum(dim=1).mean()))
    assert errors[1] < 0.002
    assert errors[1] < 0.3 * errors[0]


@pytest.mark.parametrize("seed", range(3))
def test_no_run_starts_at_a_network_that_data_may_come_from(seed):
    """Small seeds are what people give to DiscreteNetwork.random; a run from the truth would prove nothing."""
    graph = templates.naive_bayes(3)
    starts = EM(graph, restarts=5, seed=seed)._starts(EM(graph, restarts=5, seed=seed)._candidates())
    likely = [DiscreteNetwork.random(graph, s) for s in range(50)]
    assert not any(torch.equal(a.cpts["h"], b.cpts["h"]) for a in starts for b in likely)


def test_the_best_start_is_kept_and_seeds_repeat():
    network = DiscreteNetwork.random(templates.naive_bayes(4, states=3, observed_states=3), seed=0, concentration=0.5)
    data = network.sample(500, seed=1)
    model = EM(network.graph, restarts=4, progress=False).fit(data)
    best = max(run.objective[-1] for run in model.runs)
    alone = [EM(network.graph, restarts=k, progress=False).fit(data).runs[-1].objective[-1] for k in (1, 2)]
    assert alone == pytest.approx([run.objective[-1] for run in model.runs[:2]], rel=1e-9)
    log_likelihood = float(model.log_evidence(data).mean())
    prior = 0.01 * sum(float(t.log().sum()) for t in model.network.cpts.values()) / 500
    assert log_likelihood + prior == pytest.approx(best, rel=1e-6)
    other = EM(network.graph, restarts=4, seed=1, progress=False).fit(data)
    assert [r.objective for r in other.runs] != [r.objective for r in model.runs]


def test_bad_input():
    graph = templates.naive_bayes(3)
    with pytest.raises(ArgumentError, match="restarts: expected a whole number of at least 1, got 0"):
        EM(graph, restarts=0)
    with pytest.raises(ArgumentError, match="prior: expected a non-negative number"):
        EM(graph, prior=-1.0)
    with pytest.raises(StructureError, match="expected a directed graph"):
        EM(templates.grid(2, 2))
    with pytest.raises(StructureError, match="continuous"):
        EM(LatentGraph([("h", "x")], {"h": 2, "x": Continuous()}, ["h"]))
    with pytest.raises(DataError, match="missing columns"):
        EM(graph, progress=False).fit({"x1": [0, 1]})
    with pytest.raises(DataError, match="Column 'x2': all 2 values are missing"):
        EM(graph, progress=False).fit({"x1": [0, 1], "x2": [None, None], "x3": [0, 1]})
    with pytest.raises(DataError, match=r"column 'x2', row 1: expected a whole number .* got 0\.5"):
        EM(graph, progress=False).fit({"x1": [0, 1], "x2": [math.nan, 0.5], "x3": [0, 1]})
    with pytest.raises(DataError, match="row 1: state 4 is out of range; expected 0 to 3, or -1 for a missing value"):
        EM(graph, progress=False).fit({"x1": [0, 1], "x2": [-1, 4], "x3": [0, 1]})
    for start in ("truth", DiscreteNetwork.random(templates.grid(2, 2))):
        with pytest.raises(StructureError, match="start: expected a network on the learner's own graph"):
            EM(graph, start=start)
    with pytest.raises(StructureError, match="start: expected a network on the learner's own graph"):
        EM(graph, start=DiscreteNetwork.random(templates.naive_bayes(3, states=2)))
    zeros = {v: torch.eye(3, 4).double() for v in graph.observed}
    start = DiscreteNetwork(graph, {**zeros, "h": [1.0, 0.0, 0.0]})
    with pytest.raises(DataError, match="a row of the data has probability 0"):
        EM(graph, restarts=1, start=start, progress=False).fit({v: [3, 0] for v in graph.observed})


@pytest.mark.parametrize("learner", [EM, OnlineEM])
def test_all_ways_to_write_a_missing_value_are_the_same(learner):
    graph = templates.naive_bayes(3, states=2, observed_states=3)
    network = DiscreteNetwork.random(graph, seed=1, concentration=20.0)  # all states of all variables occur
    data = with_missing_values(network.sample(60, seed=2), 0.3, seed=3)
    frame = pd.DataFrame({v: x.numpy() for v, x in data.items()})
    ways = {
        "floats": frame.astype(float).where(frame >= 0, np.nan),
        "float tensors": {v: torch.where(x < 0, math.nan, x.double()) for v, x in data.items()},
        "pandas integers": frame.astype("Int64").where(frame >= 0, pd.NA),
        "None": {v: [None if i < 0 else i for i in x.tolist()] for v, x in data.items()},
        "labels": {v: [None if i < 0 else "abc"[i] for i in x.tolist()] for v, x in data.items()},
        "categories": {v: pd.Categorical.from_codes(x.numpy(), categories=list("abc")) for v, x in data.items()},
        "mini-batches": [{v: x[part] for v, x in data.items()} for part in (slice(0, 25), slice(25, 60))],
    }

    def tables(given):
        return learner(graph, restarts=2, max_steps=4, progress=False).fit(given).network.cpts

    expected = tables(data)
    for name, given in ways.items():
        for v, table in tables(given).items():
            torch.testing.assert_close(table, expected[v], msg=name)
    with pytest.raises(DataError, match="missing"):
        SpectralJunctionTree(graph).fit(data)


def test_missing_values_carry_information():
    """Half of the values are hidden: all rows together come closer to the truth than the complete ones alone."""
    errors = {"all": [], "complete": []}
    for seed in range(3):
        network = DiscreteNetwork.random(templates.naive_bayes(5, states=2, observed_states=3), seed)
        data = with_missing_values(network.sample(2_000, seed=50 + seed), 0.5, seed=seed)
        complete = torch.stack(list(data.values())).ge(0).all(dim=0)
        evidence = network.sample(200, seed=90 + seed)
        del evidence["x1"]
        exact = network.posterior("x1", evidence)
        for name, rows in (("all", slice(None)), ("complete", complete)):
            model = EM(network.graph, restarts=3, progress=False).fit({v: x[rows] for v, x in data.items()})
            learned = model.posterior("x1", evidence)
            errors[name].append(float((exact * (exact / learned).log()).sum(dim=1).mean()))
    assert sum(errors["all"]) < 0.5 * sum(errors["complete"])


@pytest.mark.parametrize("learner", [EM, OnlineEM])
def test_rows_without_any_value_change_nothing_but_are_mentioned(learner):
    graph = templates.naive_bayes(3, states=2, observed_states=3)
    data = DiscreteNetwork.random(graph, seed=1).sample(50, seed=2)
    longer = {v: torch.cat([torch.full((7,), -1), x]) for v, x in data.items()}
    expected = learner(graph, restarts=2, max_steps=3, progress=False).fit(data)
    with pytest.warns(DataWarning, match="7 of 57 rows have no value at all"):
        found = learner(graph, restarts=2, max_steps=3, progress=False).fit(longer)
    assert [run.seed for run in found.runs] == [run.seed for run in expected.runs]
    assert_same_up_to_rounding([run.objective for run in found.runs], [run.objective for run in expected.runs])


@pytest.mark.parametrize("learner", [EM, OnlineEM])
def test_a_start_is_where_the_first_run_begins(learner):
    truth = DiscreteNetwork.random(templates.diamond(states=2, observed_states=3, leaves=1), seed=4)
    data = truth.sample(3_000, seed=5)
    settings = {"restarts": 2, "max_steps": 3, "prior": 0.0, "progress": False}
    random = learner(truth.graph, **settings).fit(data)
    given = learner(truth.graph, start=truth, **settings).fit(data)
    per_start = len(given.runs) // 2
    later = [[run.objective for run in fitted.runs[per_start:]] for fitted in (given, random)]
    assert_same_up_to_rounding(*later)
    assert all(a.objective[0] > b.objective[0] for a, b in zip(given.runs[:per_start], random.runs, strict=False))
    if learner is EM:  # looked at before the first step
        assert given.runs[0].objective[0] == pytest.approx(float(truth.log_evidence(data).mean()), rel=1e-9)


@pytest.mark.parametrize("learner", [EM, OnlineEM])
def test_zeros_of_a_start_go_away_where_there_is_a_prior(learner):
    """The prior's term is -inf at such a start, and only there; without a prior zeros stay."""
    graph = templates.naive_bayes(3, states=2, observed_states=2)
    start = DiscreteNetwork(graph, {"h": [0.5, 0.5], **{v: np.eye(2) for v in graph.observed}})
    data = {v: [0, 1, 0, 1] for v in graph.observed}
    settings = {"restarts": 1, "start": start, "max_steps": 20, "progress": False}
    model = learner(graph, prior=0.1, **settings).fit(data)
    run = model.runs[0]
    assert learner is OnlineEM or len(run.objective) > 2  # from -inf to a number is no convergence
    assert all(math.isfinite(x) for x in run.objective[1:])
    assert math.isfinite(run.objective[0]) == (learner is OnlineEM)  # which looks after its first pass
    assert all((table > 0).all() for table in model.network.cpts.values())
    assert torch.isfinite(model.log_evidence({"x1": [0], "x2": [1]})).all()
    plain = learner(graph, prior=0.0, **settings).fit(data)
    torch.testing.assert_close(plain.network.cpts["x1"], torch.eye(2, dtype=torch.float64))
