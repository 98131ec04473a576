"""Stepwise online EM."""

from __future__ import annotations

import pytest
import torch

from torchpbp import EM, DiscreteNetwork, OnlineEM, templates
from torchpbp.errors import ArgumentError
from torchpbp.models.likelihood.expectation import ExpectationStep

NETWORK = DiscreteNetwork.random(templates.hmm(4, states=2, observed_states=3), seed=0, concentration=0.5)


def test_one_pass_equals_the_update_written_out():
    """Two mini-batches by hand, with step sizes 2^-a and 3^-a."""
    data = NETWORK.sample(10, seed=1)
    model = OnlineEM(NETWORK.graph, exponents=[0.7], batch_size=5, max_steps=1, prior=0.1, progress=False).fit(data)
    start = DiscreteNetwork.random(NETWORK.graph, model.runs[0].seed)
    order = torch.randperm(10, generator=torch.Generator().manual_seed(0))
    for k, batch in enumerate(order.split(5)):
        step = ExpectationStep(NETWORK.graph, {v: x[batch] for v, x in data.items()}, torch.ones(5))
        if k == 0:
            tables = step.layout.vector(dict(start.factors))[None]
            average = step.layout.vector({scope: start.joint(scope) for scope in step.layout.scopes})[None]
        eta = (k + 2) ** -0.7
        average = (1 - eta) * average + eta * step(tables)[1] / 5
        tables = step.layout.maximised(10 * average, 0.1)
    expected = step.layout.named(tables[0])
    model.match_states(DiscreteNetwork(NETWORK.graph, expected))
    for name, table in model.network.cpts.items():
        torch.testing.assert_close(table, expected[name])


def test_candidates_side_by_side_equal_candidates_alone():
    data = NETWORK.sample(150, seed=1)
    settings = {"batch_size": 40, "max_steps": 6, "relative_tolerance": 1e-3, "progress": False}
    together = OnlineEM(NETWORK.graph, exponents=[0.6, 1.0], restarts=2, **settings).fit(data)
    assert len({len(run.objective) for run in together.runs}) > 1  # some stopped before others
    for place, a in enumerate([0.6, 1.0]):
        (alone,) = OnlineEM(NETWORK.graph, exponents=[a], **settings).fit(data).runs
        assert together.runs[place].objective == pytest.approx(alone.objective, rel=1e-10)
        assert (together.runs[place].seed, together.runs[place].exponent) == (alone.seed, a)


def test_it_finds_about_the_likelihood_of_em():
    data = NETWORK.sample(2_000, seed=1)
    batch = EM(NETWORK.graph, restarts=3, progress=False).fit(data)
    online = OnlineEM(NETWORK.graph, progress=False).fit(data)
    assert len(online.runs) == 5
    assert [run.exponent for run in online.runs] == [0.6, 0.7, 0.8, 0.9, 1.0]
    best = max(run.objective[-1] for run in online.runs)
    assert best == pytest.approx(max(run.objective[-1] for run in batch.runs), abs=0.02)
    assert best > online.runs[0].objective[0]
    assert float(online.log_evidence(data).mean()) == pytest.approx(best, abs=0.01)


def test_seeds_repeat():
    data = NETWORK.sample(300, seed=1)
    settings = {"exponents": [0.8], "max_steps": 3, "progress": False}
    first = OnlineEM(NETWORK.graph, seed=2, **settings).fit(data)
    again = OnlineEM(NETWORK.graph, seed=2, **settings).fit(data)
    assert first.runs == again.runs
    assert first.runs != OnlineEM(NETWORK.graph, seed=3, **settings).fit(data).runs


def test_bad_input():
    with pytest.raises(ArgumentError, match=r"above 0\.5 and at most 1"):
        OnlineEM(NETWORK.graph, exponents=[0.5])
    for exponents in ([], 0.7, "0.7", [None]):
        with pytest.raises(ArgumentError, match="exponents: expected one or more"):
            OnlineEM(NETWORK.graph, exponents=exponents)
    with pytest.raises(ArgumentError, match=r"batch_size: expected a whole number of at least 1, got 1\.5"):
        OnlineEM(NETWORK.graph, batch_size=1.5)
    with pytest.raises(ArgumentError, match="batch_size"):
        OnlineEM(NETWORK.graph, batch_size=0)


def test_a_mini_batch_larger_than_the_data_holds_all_of_it():
    data = NETWORK.sample(30, seed=1)
    settings = {"exponents": [0.7], "max_steps": 3, "progress": False}
    large = OnlineEM(NETWORK.graph, batch_size=10_000, **settings).fit(data)
    exact = OnlineEM(NETWORK.graph, batch_size=30, **settings).fit(data)
    assert large.runs == exact.runs
