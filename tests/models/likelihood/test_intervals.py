"""Intervals of maximum likelihood: derivatives, known standard errors, and what is not identified."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch

import torchpbp
from torchpbp import DiscreteNetwork, LatentGraph, MaximumLikelihood, templates
from torchpbp.errors import ArgumentError, IdentificationWarning, NotFittedError, StructureError
from torchpbp.models.likelihood.intervals import DeltaMethod
from torchpbp.models.likelihood.layout import FamilyLayout

TRUTH = DiscreteNetwork.random(templates.naive_bayes(4, 2, 3), seed=3)
ROWS = TRUTH.sample(3_000, seed=1)


@pytest.fixture(scope="module")
def model() -> MaximumLikelihood:
    return MaximumLikelihood(TRUTH.graph, progress=False).fit(ROWS)


def test_scores_are_derivatives_of_the_log_evidence():
    """Against differences of the log-evidence along each logit, with latents observed, weights and missing values."""
    network = DiscreteNetwork.random(templates.diamond(2, 3), seed=1)
    layout = FamilyLayout(network.graph)
    vector = layout.vector(dict(network.factors))
    weights = torch.tensor([[1.0, 0.5, 0.2], [0.3, 1.0, 0.0]], dtype=torch.float64)
    given = network.read_evidence({"a1": [0, -1], "B": [1, -1], "d1": [2, 2], "c2": weights})
    information = torch.eye(layout.parameters, dtype=torch.float64)
    found = DeltaMethod(network, layout, information, rows=1.0, prior=1.0).expected_scores(given)
    step = 1e-5
    for column, entry in enumerate(layout.free.nonzero().flatten().tolist()):
        logs = []
        for sign in (1, -1):
            move = torch.zeros_like(vector)
            move[entry] = sign * step
            moved = DiscreteNetwork(network.graph, layout.named(layout.moved(vector, move)))
            logs.append(moved.log_evidence(given))
        assert torch.allclose(found[:, column], (logs[0] - logs[1]) / (2 * step), atol=1e-8)


def test_without_latents_errors_are_those_of_proportions():
    """A table entry of a complete network is a share of rows, whose standard error is known."""
    graph = LatentGraph([("x", "y")], {"x": 2, "y": 2})
    x = torch.tensor([0] * 400 + [1] * 600)
    y = torch.tensor([0] * 100 + [1] * 300 + [0] * 450 + [1] * 150)
    model = MaximumLikelihood(graph, prior=0.0, progress=False).fit({"x": x, "y": y})
    for query, given, share, rows in (("x", None, 0.4, 1000), ("y", {"x": 0}, 0.25, 400), ("y", {"x": 1}, 0.75, 600)):
        estimate, lower, upper = (end[0, 0].item() for end in model.interval(query, given, level=0.9))
        width = 1.6449 / math.sqrt(rows * share * (1 - share))  # of the logit
        assert math.isclose(estimate, share, abs_tol=1e-6)
        for end, sign in ((lower, -1), (upper, 1)):
            assert math.isclose(math.log(end / (1 - end)), math.log(share / (1 - share)) + sign * width, rel_tol=1e-3)
    log = model.interval(None, {"x": 0, "y": 0})
    assert math.isclose(float(log.upper - log.lower), 2 * 1.96 * math.sqrt((1 - 0.1) / 0.1 / 1000), rel_tol=1e-3)


def test_profiles_joint_answers_and_tables(model, tmp_path):
    lower, upper = model.interval("x1", {"h": [0, 1]})[1:]
    profile = model.network.posterior("x1", {"h": [0, 1]})
    assert bool(((lower < profile) & (profile < upper)).all())
    joint = model.interval(["x1", "h"], {"x2": [0, 1, -1]})
    assert joint.lower.shape == (3, 3, 2)
    assert torch.allclose(joint.estimate.sum(dim=(1, 2)), torch.ones(3, dtype=torch.float64))
    known = model.interval("x1", {"x1": [2, -1], "x2": [0, 0]})
    assert torch.allclose(known.lower[0], torch.tensor([0, 0, 1.0]).double())
    assert torch.equal(known.lower[0], known.upper[0])
    frame = model.interval("h", pd.DataFrame({"x1": [0, 1]}, index=["p", "q"]))
    assert list(frame.index) == ["p", "q"]
    assert model.interval("h", pd.DataFrame({"x1": []})).shape == (0, 6)
    model.save(tmp_path / "model.pt")
    again = torchpbp.load(tmp_path / "model.pt").interval("h", pd.DataFrame({"x1": [0, 1]}, index=["p", "q"]))
    assert np.allclose(again, frame, atol=1e-10)


def test_four_times_the_rows_halve_the_width(model):
    weighted = MaximumLikelihood(TRUTH.graph, progress=False).fit(ROWS, weights=[4.0] * 3_000)
    widths = [float((end.upper - end.lower).mean()) for end in (m.interval("x1", {"x2": 0}) for m in (model, weighted))]
    assert 1.85 < widths[0] / widths[1] < 2.15


def test_what_is_not_identified_has_no_interval():
    """A latent with two observables: any basis gives the same distribution of them, so only they have intervals."""
    graph = LatentGraph([("h", "x"), ("h", "y")], {"h": 2, "x": 3, "y": 3}, ["h"])
    model = MaximumLikelihood(graph, progress=False).fit(DiscreteNetwork.random(graph, seed=1).sample(5_000, seed=0))
    answer = model.interval("x", {"y": [0, 1, -1]})
    assert bool((answer.upper > answer.lower).all())
    with pytest.warns(IdentificationWarning, match="Some intervals are NaN"):
        hidden = model.interval("h", {"y": [0, 1]})
    assert bool(hidden.lower.isnan().all() and hidden.upper.isnan().all() and hidden.estimate.isfinite().all())


def test_bad_questions_raise(model):
    with pytest.raises(ArgumentError, match="level: expected a number between 0 and 1"):
        model.interval("x1", level=95)
    with pytest.raises(NotFittedError):
        MaximumLikelihood(TRUTH.graph).interval("x1")
    large = MaximumLikelihood(TRUTH.graph, progress=False).fit(ROWS)
    large.information = None
    with pytest.raises(StructureError, match=r"interval: the network has 17 free parameters, .* PBP\.interval"):
        large.interval("x1")
