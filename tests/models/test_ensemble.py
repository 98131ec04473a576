"""Averages of log-evidence over models."""

import pytest
import torch
from torch import nn

from torchpbp import (
    PBP,
    Continuous,
    DiscreteNetwork,
    GenerativeClassifier,
    KernelPBP,
    LatentGraph,
    ScoreAverage,
    templates,
)
from torchpbp.errors import ArgumentError, DataError, StructureError


class Fixed(KernelPBP):
    """A stand-in model with given log-evidence."""

    def __init__(self, *values, graph=None):
        super().__init__(graph or templates.naive_bayes(2))
        self.values, self.rows, self.fitted = torch.tensor(values), None, True

    def fit(self, data):
        self.rows = len(data["x1"])
        return self

    def log_evidence(self, evidence=None):
        return self.values


def test_the_average_by_hand():
    members = [Fixed(-1.0, -4.0), Fixed(-3.0, -2.0), Fixed(-8.0, 0.0)]
    assert ScoreAverage(members).log_evidence().tolist() == pytest.approx([-4.0, -2.0])
    assert ScoreAverage(members, [1, 1, 2]).log_evidence().tolist() == pytest.approx([-5.0, -1.5])
    assert ScoreAverage(members, [0, 3, 0]).log_evidence().tolist() == pytest.approx([-3.0, -2.0])
    assert ScoreAverage(members, [0.5, 0.25, 0.25]).settings.weights == pytest.approx([0.5, 0.25, 0.25])


def test_one_member_cannot_veto_alone():
    average = ScoreAverage([Fixed(-torch.inf, -2000.0), Fixed(-2.0, -2.0)], floor=-100.0)
    assert average.log_evidence().tolist() == pytest.approx([-51.0, -51.0])
    assert ScoreAverage([Fixed(-torch.inf), Fixed(-2.0)]).log_evidence().tolist() == pytest.approx([-501.0])


def test_every_member_is_fitted():
    members = [Fixed(0.0), Fixed(0.0)]
    average = ScoreAverage(members)
    assert average.fit({"x1": torch.zeros(7)}) is average
    assert [m.rows for m in members] == [7, 7]
    assert average.graph is members[0].graph


def test_bad_settings():
    with pytest.raises(StructureError, match="at least one member"):
        ScoreAverage([])
    with pytest.raises(StructureError, match=r"expected models such as KernelPBP\(graph\), got \['Linear'\]"):
        ScoreAverage([nn.Linear(2, 2)])
    with pytest.raises(StructureError, match="same observables"):
        ScoreAverage([Fixed(0.0), Fixed(0.0, graph=templates.naive_bayes(3))])
    with pytest.raises(ArgumentError, match="floor: expected a number, or minus infinity for none, got nan"):
        ScoreAverage([Fixed(0.0)], floor=float("nan"))
    for members, weights, text in [
        ([Fixed(0.0)], [1, 2], "one non-negative weight per member"),
        ([Fixed(0.0), Fixed(0.0)], [1, -1], "one non-negative weight per member"),
        ([Fixed(0.0), Fixed(0.0)], [0, 0], "not all 0"),
        ([Fixed(0.0), Fixed(0.0)], [1, float("nan")], "one non-negative weight per member"),
        ([Fixed(0.0), Fixed(0.0)], [1, float("inf")], "one non-negative weight per member"),
    ]:
        with pytest.raises(ArgumentError, match=text):
            ScoreAverage(members, weights)


def continuous_graph():
    variables = {"h": 2, "x1": Continuous(), "x2": Continuous(), "x3": Continuous()}
    return LatentGraph([("h", f"x{i}") for i in (1, 2, 3)], variables, ["h"])


def rows(count, seed, shift=0.0):
    generator = torch.Generator().manual_seed(seed)
    common = torch.randint(2, (count,), generator=generator) * 3.0 + shift
    return {f"x{i}": common + torch.randn(count, generator=generator) for i in (1, 2, 3)}


def test_real_models_of_different_kinds():
    graph = continuous_graph()
    members = [KernelPBP(graph, bandwidth=0.8), PBP(graph)]
    average = ScoreAverage(members, [3, 1]).fit(rows(120, 0))
    new = rows(10, 1)
    first, second = (m.log_evidence(new) for m in members)
    assert torch.allclose(average.log_evidence(new), 0.75 * first + 0.25 * second, atol=1e-5)
    assert (first - second).abs().max() > 1e-3
    given = {v: new[v] for v in ("x1", "x2")}
    assert torch.equal(average.posterior("x3", given).mean, members[0].posterior("x3", given).mean)
    assert set(average.posteriors(given)) == {"x3"}
    assert torch.equal(average.sample(4, given, seed=0)["x3"], members[0].sample(4, given, seed=0)["x3"])


def test_averages_serve_as_learners_of_a_classifier():
    graph = continuous_graph()
    learner = ScoreAverage([KernelPBP(graph, bandwidth=b) for b in (0.6, 1.2)])
    low, high = rows(60, 0), rows(60, 1, shift=5.0)
    table = torch.cat([torch.stack(list(t.values()), dim=1) for t in (low, high)])
    classes = torch.arange(2).repeat_interleave(60)
    classifier = GenerativeClassifier(learner=learner).fit(table, classes)
    assert classifier.score(table, classes) > 0.85
    assert not learner.members[0].fitted  # copied for each class


def test_a_one_way_iterator_serves_one_member_only():
    network = DiscreteNetwork.random(templates.naive_bayes(3), seed=0)
    average = ScoreAverage([PBP(network.graph), PBP(network.graph)])
    with pytest.raises(DataError, match="empty"):
        average.fit(iter([network.sample(50, seed=0)]))
