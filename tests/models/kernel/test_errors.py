"""Errors of KernelPBP: bad questions, data and settings."""

import copy
import math

import pytest
import torch

from tests.models.kernel.rows import NAN, WIDTH, mixed, mixed_graph, settings, stroke_graph, strokes
from torchpbp import PBP, Continuous, KernelPBP, Laplace, LatentGraph, templates
from torchpbp.errors import ArgumentError, DataError, QueryError, ShapeError, StructureError
from torchpbp.planning import Plan


@pytest.fixture(scope="module")
def model():
    return KernelPBP(stroke_graph(), **settings()).fit(strokes(80))


def test_bad_questions(model):
    for query, evidence, error, text in [
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
    discrete = KernelPBP(mixed_graph()).fit(mixed(30, 0))
    with pytest.raises(QueryError, match="at= is for continuous variables"):
        discrete.posterior("c", at=[0.0])


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
        ({**good, "x1": ["left"] * 20}, DataError, "column 'x1': expected numbers, got .*left"),
    ]:
        model = KernelPBP(graph).fit(good)
        before = model.log_evidence(good)
        with pytest.raises(error, match=text):
            model.fit(bad)
        assert torch.equal(model.log_evidence(good), before)  # nothing overwritten


def test_bad_settings():
    graph = stroke_graph()
    for changes, text in [
        ({"bandwidth": 0.0}, "bandwidth: expected a positive number, .* got 0.0"),
        ({"bandwidth": "mean"}, "bandwidth: expected .* or 'median', got 'mean'"),
        ({"bandwidth": {"x1": 1.0}}, "expected a positive number for each of"),
        ({"evidence_bandwidth": -1.0}, "evidence_bandwidth: expected None or a positive number, .* got -1.0"),
        ({"ridge": (0.0, 0.1)}, "two positive numbers"),
        ({"ridge": (0.1,)}, "two positive numbers"),
        ({"core_leaves": 0}, "core_leaves: expected a whole number of at least 1"),
        ({"instrument_leaves": 0}, "instrument_leaves: expected a whole number of at least 1"),
        ({"landmarks": 0}, "landmarks: expected None or a whole number of at least 1"),
    ]:
        with pytest.raises(ArgumentError, match=text):
            KernelPBP(graph, **changes)


def test_a_plan_of_another_tree_raises():
    chain = templates.hmm(4, states=3, observed_states=3)
    domains = {**chain.variables, **{f"x{t}": Continuous() for t in (1, 3, 4)}}
    graph = LatentGraph(chain.edges, domains, chain.latent)
    finite, gram = PBP(graph, rank=3), KernelPBP(graph)
    assert KernelPBP(graph, plan=gram.plan).plan == gram.plan
    assert finite.tree.cliques != gram.tree.cliques  # otherwise this test shows nothing
    with pytest.raises(StructureError, match="expected a core group below it and an instrument beside it"):
        KernelPBP(graph, plan=finite.plan)
    with pytest.raises(StructureError, match="expected plans for the 5 separators"):
        KernelPBP(graph, plan=Plan(gram.tree, gram.plan.separators[:2]))


def test_copies_and_refits_are_independent(model):
    again = copy.deepcopy(model).fit(strokes(30, seed=9))
    assert len(again.examples) == 30
    assert len(model.examples) == 80
