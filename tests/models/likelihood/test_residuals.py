"""Residuals of pairs: they tell a graph that fits from one that does not, and what they decide in a fit."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import torchpbp
from torchpbp import EM, DiscreteNetwork, LatentGraph, MaximumLikelihood, templates
from torchpbp.datasets import load_digits
from torchpbp.models.likelihood import climb
from torchpbp.models.likelihood.moments import FormMoments
from torchpbp.models.likelihood.residuals import pair_residuals

STRUCTURES = {
    "naive_bayes": templates.naive_bayes(5, states=3, observed_states=4),
    "diamond": templates.diamond(observed_states=3, leaves=2),
    "observed parent": LatentGraph(
        [("h", "x"), ("h", "y"), ("x", "y"), ("h", "z")], {"h": 2, "x": 3, "y": 2, "z": 4}, ["h"]
    ),
}


def moments_of(graph: LatentGraph, rows: dict[str, torch.Tensor]) -> FormMoments:
    states = {v: graph.num_states(v) for v in graph.observed}
    weights = torch.ones(len(next(iter(rows.values()))), dtype=torch.float64)
    return FormMoments(states, {v: rows[v] for v in states}, weights)


SURVEY = templates.naive_bayes(8, states=2, observed_states=2)


def survey_with_a_pair(rows: int) -> dict[str, torch.Tensor]:
    """Answers in two classes, of which the third and the fourth also depend on each other."""
    graph = LatentGraph([*SURVEY.edges, ("x3", "x4")], SURVEY.variables, SURVEY.latent)
    plain = [[0.85, 0.15], [0.15, 0.85]]
    linked = [[[0.95, 0.05], [0.5, 0.5]], [[0.5, 0.5], [0.05, 0.95]]]
    tables = {v: torch.tensor(plain, dtype=torch.float64) for v in SURVEY.observed}
    tables |= {"h": torch.tensor([0.4, 0.6]).double(), "x4": torch.tensor(linked, dtype=torch.float64)}
    return DiscreteNetwork(graph, tables).sample(rows, seed=1)


@pytest.mark.parametrize("rows", [500, 50_000])
@pytest.mark.parametrize("name", STRUCTURES)
def test_where_the_graph_fits_the_misfit_is_about_one(name: str, rows: int) -> None:
    truth = DiscreteNetwork.random(STRUCTURES[name], seed=3)
    model = MaximumLikelihood(truth.graph, progress=False).fit(truth.sample(rows, seed=7))
    assert 0.1 < model.misfit < 1.5
    assert (model.pair_residuals()["residual"] < 4).all()


def test_statistics_have_their_expectations() -> None:
    """Single variables of the data are their own here, not fitted, so that the statistic is that of two samples."""
    truth = DiscreteNetwork.random(STRUCTURES["naive_bayes"], seed=3)
    found = [
        pair_residuals(truth.graph, truth.cpts, moments_of(truth.graph, truth.sample(40_000, seed=s)), seed=s)
        for s in range(40)
    ]
    statistic = torch.stack([x.statistic for x in found]).mean(dim=0)
    cells = torch.full((5, 5), 15.0, dtype=torch.float64).fill_diagonal_(0)
    assert (statistic - cells).abs().max() < 5 * math.sqrt(2 * 15 / 40)


def test_a_pair_that_the_graph_does_not_explain_is_found() -> None:
    rows = survey_with_a_pair(5_000)
    model = MaximumLikelihood(SURVEY, progress=False)
    model.fit(rows)
    worst = model.pair_residuals().iloc[0]
    assert model.misfit > climb.MISFIT
    assert {worst["first"], worst["second"]} == {"x3", "x4"}
    assert len(model.pair_residuals()) == 28


def test_missing_values_leave_the_misfit_of_a_graph_that_fits() -> None:
    truth = DiscreteNetwork.random(STRUCTURES["diamond"], seed=3)
    generator = torch.Generator().manual_seed(0)
    rows = {
        v: torch.where(torch.rand(4_000, generator=generator) < 0.4, -1, x)
        for v, x in truth.sample(4_000, seed=1).items()
    }
    assert 0.1 < MaximumLikelihood(truth.graph, progress=False).fit(rows).misfit < 1.5


def test_one_observable_has_no_pairs() -> None:
    graph = LatentGraph([("h", "x")], {"h": 2, "x": 3}, ["h"])
    model = MaximumLikelihood(graph, progress=False).fit({"x": torch.tensor([0, 1, 2, 2] * 10)})
    assert math.isnan(model.misfit)
    assert model.pair_residuals().empty


def test_residuals_are_kept_in_a_file(tmp_path: Path) -> None:
    model = MaximumLikelihood(SURVEY, progress=False)
    model.fit(survey_with_a_pair(500)).save(tmp_path / "model.pt")
    loaded = torchpbp.load(tmp_path / "model.pt")
    assert isinstance(loaded, MaximumLikelihood)
    assert loaded.misfit == model.misfit
    assert loaded.pair_residuals().equals(model.pair_residuals())


def test_where_the_graph_does_not_fit_the_highest_maximum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heights of six points of pen strokes, in three classes: moments lead to a maximum 28 nats below the highest."""
    graph = templates.naive_bayes(6, states=3, observed_states=3)
    levels = (load_digits().train_x[:1_000].long() // 34).clamp(max=2)
    rows = {v: levels[:, 2 * i + 1] for i, v in enumerate(graph.observed)}
    em = EM(graph, restarts=40, prior=1.0, relative_tolerance=1e-8, max_steps=2_000, progress=False).fit(rows)
    best = max(run.objective[-1] for run in em.runs) * 1_000
    model = MaximumLikelihood(graph, progress=False).fit(rows)
    assert model.misfit > climb.MISFIT
    assert model.objective[-1] > best - 0.1
    monkeypatch.setattr(climb, "MISFIT", math.inf)
    alone = MaximumLikelihood(graph, progress=False).fit(rows)
    assert alone.objective[-1] < best - 10
