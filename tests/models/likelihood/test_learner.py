"""MaximumLikelihood: the start from moments, the climb, hidden states, and bad input."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from torchpbp import EM, Continuous, DiscreteNetwork, LatentGraph, MaximumLikelihood, templates
from torchpbp.errors import (
    ArgumentError,
    ConvergenceWarning,
    DataError,
    DataWarning,
    IdentificationWarning,
    StructureError,
)
from torchpbp.models.likelihood import recovery
from torchpbp.models.likelihood.expectation import ExpectationStep
from torchpbp.models.likelihood.moments import FormMoments
from torchpbp.models.likelihood.recovery import Recovery
from torchpbp.models.likelihood.rows import distinct_rows

STRONG = DiscreteNetwork.random(templates.naive_bayes(6, states=3, observed_states=4), seed=4, concentration=0.4)


def population(network: DiscreteNetwork) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """All joint states of the observables, with their probabilities as weights."""
    names = list(network.graph.observed)
    cells = torch.cartesian_prod(*[torch.arange(network.states[v]) for v in names])
    table = {v: cells[:, i] for i, v in enumerate(names)}
    return table, network.log_evidence(table).exp()


def quick(graph: LatentGraph, **settings: Any) -> MaximumLikelihood:
    return MaximumLikelihood(graph, progress=False, **settings)


def objective(model: Any, data: Any, prior: float) -> float:
    tables = model.network.cpts.values()
    return float(model.log_evidence(data).sum()) + prior * sum(float(t.log().sum()) for t in tables)


@pytest.mark.parametrize("name", ["naive_bayes", "diamond"])
def test_exact_moments_give_the_tables_of_three_view_latents(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = {
        "naive_bayes": templates.naive_bayes(4, states=3, observed_states=4),
        "diamond": templates.diamond(observed_states=3, leaves=2),
    }[name]
    truth = DiscreteNetwork.random(graph, seed=2, concentration=0.5)
    table, weights = population(truth)
    states = {v: graph.num_states(v) for v in graph.observed}
    monkeypatch.setattr(recovery, "MIXING", 0.0)
    start = Recovery(graph, FormMoments(states, table, weights * 1e9))
    assert all(h.recovered and len(h.views.groups) == 3 for h in start.starts.values())
    found = DiscreteNetwork(graph, {scope[-1]: t for scope, t in start.tables.items()}).match_states(truth)
    for v, t in truth.cpts.items():  # up to what keeps conditional means from 0
        torch.testing.assert_close(found.cpts[v], t, atol=5e-3, rtol=0.0)


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("name", ["naive_bayes", "hmm", "loopy_network"])
def test_it_is_at_least_as_high_as_em_from_several_starts(name: str, missing: float) -> None:
    graph = getattr(templates, name)(observed_states=4)
    data = DiscreteNetwork.random(graph, seed=21).sample(800, seed=22)
    generator = torch.Generator().manual_seed(23)
    data = {v: torch.where(torch.rand(len(x), generator=generator) < missing, -1, x) for v, x in data.items()}
    model = quick(graph).fit(data)
    assert model.converged
    em = EM(graph, restarts=3, prior=1.0, progress=False).fit(data)
    assert objective(model, data, 1.0) > objective(em, data, 1.0) - 0.5
    assert objective(model, data, 1.0) == pytest.approx(model.objective[-1], abs=1e-4)
    for table in model.network.cpts.values():
        assert bool((table > 0).all())
        assert bool(torch.isfinite(table).all())


def test_memberships_are_those_of_the_truth() -> None:
    data = STRONG.sample(4_000, seed=1, include_latent=True)
    model = quick(STRONG.graph).fit({v: data[v] for v in STRONG.graph.observed}).match_states(STRONG)
    exact = STRONG.predict_proba(data)
    assert float((model.predict_proba(data) - exact).abs().mean()) < 0.01
    assert (
        float((model.predict(data) == data["h"]).double().mean())
        > float((exact.argmax(1) == data["h"]).double().mean()) - 0.01
    )


def test_what_is_identified_is_reported() -> None:
    graph = templates.hmm(4, states=2, observed_states=3)
    data = DiscreteNetwork.random(graph, seed=1, concentration=0.5).sample(500, seed=2)
    model = quick(graph).fit(data)
    table = model.diagnostics().set_index("latent")
    assert table["views"].tolist() == [2, 3, 3, 2]
    assert table["identified"].tolist() == [False, True, True, False]
    assert table["strength"].between(0, 1).all()
    assert table.loc["h1", "conclusion"].startswith("two views")
    with pytest.warns(IdentificationWarning, match=r"The states of \['h1'\] are not identified"):
        model.predict(data, "h1")
    assert model.predict(data, "h2").shape == (500,)
    with pytest.warns(IdentificationWarning):
        frame = model.predict(pd.DataFrame({v: x.numpy() for v, x in data.items()}))
    assert list(frame) == ["h1", "h2", "h3", "h4"]
    factorial = templates.factorial_hmm(2, observed_states=3)
    raced = quick(factorial).fit(DiscreteNetwork.random(factorial, seed=1).sample(200, seed=1))
    assert raced.diagnostics()["views"].tolist() == [0] * 4
    assert raced.diagnostics()["conclusion"].str.startswith("no views").all()


def test_weights_stand_for_repeated_rows() -> None:
    data = STRONG.sample(300, seed=1)
    generator = torch.Generator().manual_seed(0)
    weights = torch.randint(0, 4, (300,), generator=generator)
    repeated = {v: x.repeat_interleave(weights) for v, x in data.items()}
    first, second = quick(STRONG.graph).fit(data, weights=weights), quick(STRONG.graph).fit(repeated)
    for v, table in first.network.cpts.items():
        torch.testing.assert_close(table, second.network.cpts[v], atol=1e-6, rtol=0.0)
    em = [EM(STRONG.graph, restarts=1, max_steps=5, progress=False) for _ in range(2)]
    torch.testing.assert_close(em[0].fit(data, weights).posterior("x1"), em[1].fit(repeated).posterior("x1"))


def test_the_information_is_that_of_the_fitted_tables() -> None:
    data = STRONG.sample(400, seed=1)
    model = quick(STRONG.graph).fit(data)
    for _ in range(2):
        step = ExpectationStep(model.graph, *distinct_rows(data, torch.ones(400).double()))
        expected = step.information(model.parameters_vector())
        assert model.information is not None
        torch.testing.assert_close(model.information, expected)
        model.reordered({"h": [1, 2, 0]})


def test_steps_that_fail_do_not_go_on_with_old_information() -> None:
    """The information of an earlier point led to steps that failed one after the other, up to the limit."""
    graph = templates.hmm(6, states=3, observed_states=4)
    truth = DiscreteNetwork.random(graph, seed=0)
    model = quick(graph, tolerance=1.0).fit(truth.sample(100_000, seed=100))
    assert model.converged
    unseen = truth.sample(20_000, seed=1)
    assert (
        float((truth.log_evidence(unseen) - model.log_evidence(unseen)).mean()) < 6e-4
    )  # half a nat per parameter: 4e-4


@pytest.mark.parametrize("criterion", ["auto", "held_out"])
def test_the_number_of_states_is_chosen(criterion: str) -> None:
    graph = STRONG.graph.with_states({"h": None})
    model = quick(graph, states=criterion, most_states=5).fit(STRONG.sample(2_000, seed=3))
    assert model.graph.num_states("h") == 3
    scores = model.state_scores
    assert scores is not None
    assert scores.loc[scores["chosen"], "h"].tolist() == [3]
    assert {"parameters", "log_likelihood", "AIC", "BIC", "entropy"} <= set(scores)
    assert scores["log_likelihood"].is_monotonic_increasing or criterion == "held_out"
    expected = scores["parameters"] * math.log(2_000) - 2 * scores["log_likelihood"]
    assert criterion == "held_out" or np.allclose(scores["BIC"], expected)


def test_without_latents_it_counts() -> None:
    graph = LatentGraph([("a", "b")], {"a": 2, "b": 3})
    model = quick(graph, prior=0.0).fit({"a": [0, 0, 1, 1, 1], "b": [0, 2, 1, 1, 2]})
    expected = torch.tensor([[0.5, 0.0, 0.5], [0.0, 2 / 3, 1 / 3]], dtype=torch.float64)
    torch.testing.assert_close(model.network.cpts["b"], expected, atol=1e-6, rtol=0.0)


def test_bad_graphs_and_settings_raise() -> None:
    graph = templates.naive_bayes(3)
    with pytest.raises(StructureError, match=r"expected a directed graph.*torchpbp\.PBP learns undirected graphs"):
        MaximumLikelihood(templates.grid(2, 2))
    with pytest.raises(StructureError, match=r"got continuous \['x'\] .*torchpbp\.PBP takes such graphs"):
        MaximumLikelihood(LatentGraph([("h", "x")], {"h": 2, "x": Continuous()}, ["h"]))
    with pytest.raises(StructureError, match=r"\['h'\] have no observables below them"):
        MaximumLikelihood(LatentGraph([("x", "h")], {"h": 2, "x": 2}, ["h"]))
    with pytest.raises(StructureError, match='are chosen with states="auto"'):
        MaximumLikelihood(graph.with_states({"h": None}))
    for settings in ({"prior": -1.0}, {"tolerance": 0.0}, {"max_steps": 0}, {"states": "best"}, {"seed": "a"}):
        with pytest.raises(ArgumentError, match=f"{next(iter(settings))}: expected"):
            MaximumLikelihood(graph, **settings)  # type: ignore[arg-type]


def test_bad_rows_raise_or_warn() -> None:
    data = STRONG.sample(60, seed=1)
    model = quick(STRONG.graph)
    for weights, message in (
        (-torch.ones(60), r"weights, row 0: expected a finite non-negative number, got -1\.0"),
        ([math.nan] * 60, "weights, row 0"),
        (torch.ones(59), "weights: expected one per row, got 59"),
        (torch.ones(61), "weights: expected one per row, got 61 for 60 rows"),
        (torch.ones(60, 1), "weights: expected one non-negative number per row, got shape"),
        (["a"] * 60, "weights: expected one non-negative number per row"),
        (torch.zeros(60), "no row with a value and a positive weight"),
    ):
        with pytest.raises(DataError, match=message):
            model.fit(data, weights=weights)
    with pytest.warns(DataWarning, match=r"Columns \['x1'\] have one value in all rows"):
        model.fit({**data, "x1": torch.zeros(60, dtype=torch.int64)})
    with pytest.warns(DataWarning, match=r"latents \['h'\] have more states than there are rows"):
        model.fit({v: torch.tensor([0, 1]) for v in data})
    assert all(bool((t >= 0).all() and torch.isfinite(t).all()) for t in model.network.cpts.values())
    plain = quick(STRONG.graph, prior=0.0).fit({v: torch.tensor([0, 1, 0, 2, 1, 2] * 5) for v in data})
    with pytest.raises(DataError, match="has probability 0"):
        plain.predict_proba({v: torch.tensor([3]) for v in data})
    with pytest.warns(ConvergenceWarning, match="stopped at the limit of 1 steps"):
        quick(STRONG.graph, max_steps=1).fit(data)
