"""PBP.refine: the operators of the maximum-likelihood network, for undirected graphs and unknown ranks too."""

from __future__ import annotations

import pytest
import torch

from tests.models.structures import STRUCTURES
from torchpbp import PBP, Continuous, DiscreteNetwork, LatentGraph, MaximumLikelihood, templates
from torchpbp.errors import StructureError

CYCLE = LatentGraph(
    [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")] + [(h, f"{x}{h}") for h in "abcd" for x in "xy"],
    {**dict.fromkeys("abcd", 2), **{f"{x}{h}": 3 for h in "abcd" for x in "xy"}},
    list("abcd"),
    directed=False,
)


def divergence(truth, model):
    """Mean KL of posteriors given half a row."""
    rows = truth.sample(300, seed=9)
    half = {v: x for v, x in rows.items() if v in truth.graph.observed[::2]}
    with torch.no_grad():
        exact, learned = truth.posteriors(half), model.posteriors(half)
    return sum(float((p * (p / learned[v]).log()).sum(dim=1).mean()) for v, p in exact.items()) / len(exact)


def test_an_undirected_graph_becomes_more_precise():
    truth = DiscreteNetwork.random(CYCLE, seed=502)
    rows = truth.sample(5_000, seed=1)
    model = PBP(CYCLE).fit(rows)
    before = divergence(truth, model)
    assert model.refine(rows, progress=False) is model
    assert divergence(truth, model) < 0.75 * before
    assert model.counts is None
    assert "fitted on 5000 rows" in str(model)


def test_a_directed_graph_answers_as_the_network_does():
    graph = STRUCTURES["diamond"]
    frame = DiscreteNetwork.random(graph, seed=4).sample_frame(4_000, seed=1).astype("category")
    model = PBP(graph).refine(frame, progress=False)
    network = MaximumLikelihood(graph, progress=False).fit(frame)
    assert model.labels == network.labels
    with torch.no_grad():
        half = {v: frame[v].cat.codes.to_numpy()[:20] for v in graph.observed[:3]}
        assert torch.allclose(model.log_evidence(half), network.log_evidence(half), atol=1e-4)  # of two climbs


def test_the_chosen_rank_gives_the_number_of_states():
    truth = DiscreteNetwork.random(templates.naive_bayes(4, 2, 3), seed=1)
    model = PBP(truth.graph.with_states({"h": None}), rank="auto", max_rank=3).fit(truth.sample(1_000, seed=0))
    states = model.tree.graph.num_states("h")
    assert states > 1
    model.refine(truth.sample(1_000, seed=0), progress=False)
    assert model.tree.graph.num_states("h") == states


def test_models_that_cannot_be_refined_raise():
    rows = DiscreteNetwork.random(templates.naive_bayes(4, 2, 3), seed=1).sample(50, seed=0)
    with pytest.raises(
        StructureError,
        match="refine: expected discrete variables, one operator tree and no nets of leaves, got condition='x1'",
    ):
        PBP(templates.naive_bayes(4, 2, 3), condition="x1").refine(rows)
    mixed = LatentGraph([("h", v) for v in "xyz"], {"h": 2, "x": Continuous(), "y": 2, "z": 2}, ["h"])
    with pytest.raises(StructureError, match="got continuous variables"):
        PBP(mixed).refine(rows)
