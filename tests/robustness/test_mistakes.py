"""Mistakes that people make: each raises a typed error that says what was expected and what came, or warns.

Mistakes in evidence and queries that every model shares are in tests/contract; mistakes in columns are in tests/inputs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch

import torchpbp
from tests.closeness import assert_same_up_to_rounding
from tests.contract.models import GRAPH as CONTRACT
from tests.contract.models import LEARNERS, NAMES, fitted
from torchpbp import (
    EM,
    MLP,
    PBP,
    Continuous,
    DiscreteNetwork,
    Evidence,
    GenerativeClassifier,
    KernelPBP,
    KernelRidge,
    LatentGraph,
    NormalGraphLearner,
    Nystroem,
    PBPLayer,
)
from torchpbp.errors import (
    ArgumentError,
    DataError,
    LabelWarning,
    QueryError,
    QueryWarning,
    ShapeError,
    TorchPBPError,
    TorchPBPWarning,
)

GRAPH = torchpbp.templates.naive_bayes(4, states=2, observed_states=3)
MIXED = LatentGraph([("h", "x"), ("h", "y"), ("h", "z")], {"h": 2, "x": 3, "y": Continuous(0.0, 9.0), "z": 3}, ["h"])


@pytest.fixture(scope="module")
def rows() -> dict[str, torch.Tensor]:
    return DiscreteNetwork.random(GRAPH, seed=1).sample(200, seed=2)


@pytest.fixture(scope="module")
def model(rows) -> PBP:
    return PBP(GRAPH).fit(rows)


# -- arguments ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: PBP([("h", "x1")]), r"PBP: expected a LatentGraph, got list\. Make one: LatentGraph\("),
        (lambda: PBP(nx.DiGraph()), r"got DiGraph\. Make one: LatentGraph\.from_networkx"),
        (lambda: EM(None), "EM: expected a LatentGraph, got NoneType"),
        (lambda: torchpbp.build_junction_tree([]), "build_junction_tree: expected a LatentGraph, got list"),
        (lambda: LatentGraph(None, {"x": 2}), "edges: expected a list of pairs of names, got None"),
        (lambda: LatentGraph([], 2), "variables: expected a mapping or pairs"),
        (lambda: LatentGraph([], {"x": 2}, latent=None), "latent: expected a list of names, got None"),
        (lambda: LatentGraph([("x", "z")], {"x": 2, "y": 2}), "unknown variable"),
        (lambda: Continuous("a"), "low: expected None or a finite number, got 'a'"),
        (lambda: PBP(GRAPH, rank=2.5), "rank: expected None or a whole number of at least 1 or 'auto', got 2.5"),
        (lambda: PBP(GRAPH, ridge=1.0), r"ridge: expected two non-negative numbers \(stage 1, stage 2\), got 1.0"),
        (
            lambda: PBP(GRAPH, features="rbf"),
            r"features: expected Nystroem\(…\), .*an encoder \(nn.Module\).*; got str",
        ),
        (lambda: PBP(GRAPH, features=Nystroem), r"features: expected Nystroem\(…\), .*got the class Nystroem"),
        (lambda: PBP(GRAPH, root="h"), "root: expected None or a list of names of variables, got 'h'"),
        (lambda: PBP(GRAPH, dtype="float32"), "dtype: expected one of torch.float64, torch.float32, got 'float32'"),
        (lambda: PBP(GRAPH, seed=-1), "seed: expected a whole number of at least 0, got -1"),
        (lambda: PBP(GRAPH).fit_population(GRAPH), "network: expected a DiscreteNetwork, got LatentGraph"),
        (lambda: EM(GRAPH, restarts=1.5), "restarts: expected a whole number of at least 1, got 1.5"),
        (lambda: torchpbp.SpectralJunctionTree(GRAPH, rank="x"), "rank: expected None or a whole number .* got 'x'"),
        (lambda: NormalGraphLearner(GRAPH, seed=None), "seed: expected a whole number .* got None"),
        (lambda: KernelRidge(landmarks=1.5), "landmarks: expected a whole number of at least 1, got 1.5"),
        (lambda: MLP(hidden=8), "hidden: expected a list with the width of each hidden layer, got 8"),
        (lambda: MLP(trainer="gpu"), "trainer: expected names and values, such as a dict, got 'gpu'"),
        (lambda: Nystroem(kernel="rbf"), r"kernel: expected None or RBF\(\)"),
        (lambda: KernelPBP(GRAPH, ridge=1.0), "ridge: expected two positive numbers .* got 1.0"),
        (lambda: KernelPBP(GRAPH, root="h"), r"root: expected a list of names, got the string 'h'"),
        (
            lambda: GenerativeClassifier(GRAPH, "PBP").fit([[0, 0, 0, 0], [1, 1, 1, 1]] * 2, [0, 1] * 2),
            r"such as KernelPBP\) or a model, got learner='PBP'",
        ),
        (lambda: PBPLayer(GRAPH), "PBPLayer: expected a PBP model, got LatentGraph"),
    ],
)
def test_arguments_of_another_type_raise(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(TorchPBPError, match=text):
        make()


@pytest.mark.parametrize(
    ("ask", "error", "text"),
    [
        (lambda m: m.fit([], batch_size=0), ArgumentError, "batch_size: expected a whole number of at least 1"),
        (lambda m: m.save(None), ArgumentError, "Expected the path of a model file, got None"),
        (lambda m: torchpbp.load(None), ArgumentError, "Expected the path of a model file, got None"),
        (
            lambda m: m.posterior("x1", {"x2": [0.2, 0.3, 0.5]}),
            DataError,
            r"weights over states, in evidence, have shape \(batch, 3\)",
        ),
        (
            lambda m: m.posterior("x1", {"x2": [torch.ones(3), torch.ones(2)]}),
            DataError,
            "got entries of different lengths",
        ),
        (lambda m: PBPLayer(m)(None), DataError, "a layer takes a dict of tensors by name"),
        (lambda m: PBPLayer(m).estimates({}, ["h"]), QueryError, "Query of 'h': it is latent"),
        (lambda m: PBPLayer(m).estimates({}, "zz"), QueryError, "Query of unknown variable 'zz'"),
        (lambda m: PBPLayer(m).relaxed_sample({}, temperature=0), ArgumentError, "temperature: expected a positive"),
        (lambda m: PBPLayer(m).given({}).sample((-1,)), ArgumentError, r"sample_shape\[0\]: expected a whole number"),
        (lambda m: PBPLayer(m).given({}).log_prob({"x1": [0]}), DataError, "a layer takes tensors"),
    ],
)
def test_unsuitable_calls_raise(model, ask: Callable[[PBP], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        ask(model)


@pytest.mark.parametrize("device", ["cuda:99", "nonsense"])
def test_a_missing_device_is_not_taken_for_a_damaged_file(model, tmp_path, device) -> None:
    model.save(tmp_path / "model.pt")
    with pytest.raises(ArgumentError, match="map_location: expected a device that this machine has"):
        PBP.load(tmp_path / "model.pt", map_location=device)


# -- tables ------------------------------------------------------------------------------------------------------


def test_rows_as_dicts_are_pointed_to_pandas(rows) -> None:
    records = [{v: int(x[i]) for v, x in rows.items()} for i in range(5)]
    with pytest.raises(ShapeError, match=r"pass DataFrame\(rows\)"):
        PBP(GRAPH).fit(records)


def test_states_counted_from_one_are_pointed_to_categories(rows) -> None:
    shifted = {v: x + 1 for v, x in rows.items()}
    with pytest.raises(DataError, match="Count states from 0, or make it a pandas category column"):
        PBP(GRAPH).fit(shifted)
    frame = pd.DataFrame({v: x.numpy() for v, x in shifted.items()}).astype("category")
    assert PBP(GRAPH).fit(frame).posterior("x1", pd.DataFrame(index=[0])).columns.tolist() == [1, 2, 3]


def test_sparse_tensors_are_read(rows, model) -> None:
    again = PBP(GRAPH).fit(torch.stack(list(rows.values()), dim=1).to_sparse())
    assert_same_up_to_rounding(again.posterior("x1"), model.posterior("x1"))


def test_series_that_name_the_same_rows_in_other_places_raise(rows, model) -> None:
    first, second = pd.Series([0, 1], index=["Ann", "Ben"]), pd.Series([2, 0], index=["Ben", "Ann"])
    with pytest.raises(DataError, match="Evidence on 'x3': its index has rows of 'x2' in other places"):
        model.posterior("x1", {"x2": first, "x3": second})
    aligned = model.posterior("x1", pd.DataFrame({"x2": first, "x3": second}))  # pandas aligns the two
    expected = model.posterior("x1", {"x2": first, "x3": [0, 2]})
    assert_same_up_to_rounding(torch.tensor(aligned.to_numpy()), expected.detach())
    columns = {v: pd.Series(x.numpy()) for v, x in rows.items()}
    with pytest.raises(DataError, match="column 'x2': its index has rows of 'x1' in other places"):
        PBP(GRAPH).fit({**columns, "x2": columns["x2"].sort_values()})


# -- evidence that once gave wrong answers without a word --------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_evidence_made_by_hand_is_checked(name: str) -> None:
    model = fitted(name)
    small = Evidence(2, {"x2": torch.tensor([2, 0], dtype=torch.uint8)})
    torch.testing.assert_close(model.posterior("x3", small), model.posterior("x3", {"x2": [2, 0]}))
    for wrong in (torch.tensor([2, 3]), torch.tensor([0, 255], dtype=torch.uint8)):
        for ask in (lambda e: model.posterior("x3", e), model.log_evidence, model.posteriors):
            with pytest.raises(DataError, match=r"Evidence on 'x2', row 1: state .* is out of range"):
                ask(Evidence(2, {"x2": wrong}))
    with pytest.raises(DataError, match="Evidence on 'x2', row 0: state 4 is out of range"):
        model.posterior(
            "x3", Evidence(1, {"x2": torch.tensor([4])})
        )  # exact networks answer single rows in another way


@pytest.mark.parametrize("size", [1e300, 5e-324])
@pytest.mark.parametrize("name", NAMES)
def test_weights_of_any_size_mean_the_same(name: str, size: float) -> None:
    model = fitted(name)
    hot = torch.nn.functional.one_hot(torch.tensor([2, 0]), 3).double()
    found = model.posterior("x4", {"x2": size * hot, "x3": size * hot})
    torch.testing.assert_close(found, model.posterior("x4", {"x2": hot, "x3": hot}))
    log = model.log_evidence({"x2": size * hot, "x3": hot})
    assert torch.allclose(log, model.log_evidence({"x2": hot, "x3": hot}) + np.log(size), rtol=1e-6)


@pytest.mark.parametrize("name", ["PBP", "KernelPBP"])
def test_evidence_outside_the_declared_range_raises(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    h, x, z = torch.randint(2, (3, 200), generator=generator)
    y = 3.0 * h + torch.rand(200, generator=generator, dtype=torch.float64)
    model = {"PBP": PBP, "KernelPBP": KernelPBP}[name](MIXED).fit({"x": h + x, "y": y, "z": h + z})
    values = [1.0, 8.9, 9.5]
    made = Evidence(3, real={"y": torch.tensor(values, dtype=torch.float64)})
    for evidence in ({"y": values}, pd.DataFrame({"y": values}), {"y": torch.tensor(values)}, made):
        for ask in (
            lambda e: model.posterior("x", e),
            model.posteriors,
            model.log_evidence,
            lambda e: model.sample(2, e),
        ):
            with pytest.raises(DataError, match=r"Evidence on 'y', row 2: value 9\.5 lies outside .* \[0\.0, 9\.0\]"):
                ask(evidence)
    assert torch.isfinite(model.posterior("x", {"y": [0.0, 8.9, 9.0, np.nan]})).all()


def test_a_classifier_rejects_rows_outside_the_declared_range() -> None:
    graph = LatentGraph([("h", "a"), ("h", "b")], {"h": None, "a": Continuous(0.0, 1.0), "b": Continuous()}, ["h"])
    x = np.random.default_rng(0).random((40, 2))
    y = np.arange(40) % 2
    classifier = GenerativeClassifier(graph, KernelPBP).fit(x, y)
    x[3, 0] = 1.5
    with pytest.raises(DataError, match=r"X, column 'a', row 3: value 1\.5 lies outside the declared range"):
        classifier.predict(x)
    with pytest.raises(DataError, match=r"column 'a', row 3: value 1\.5 lies outside the declared range"):
        GenerativeClassifier(graph, KernelPBP).fit(x, y)


def test_complete_rows_warn_where_the_model_was_called(model, rows) -> None:
    with pytest.warns(QueryWarning, match=r"nothing is left to ask .* leave out a column") as noted:
        assert list(model(rows)) == []
    assert noted[0].filename == __file__  # not within torch, whose module calls the model
    some = {**rows, "x2": rows["x2"].clone().index_fill(0, torch.tensor([3]), -1)}
    assert set(model.posteriors(some)) == {"x2"}


# -- fewer labels than states ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def labelled() -> pd.DataFrame:
    """Two variables of three states with one and two labels, two with all three."""
    words = {"x1": ["no", "yes"], "x2": ["low", "high"], "x3": ["a", "b", "c"], "x4": ["d", "e", "f"]}
    data = DiscreteNetwork.random(CONTRACT, seed=0).sample(200, seed=1)
    return pd.DataFrame({v: np.array(words[v])[x.numpy() % len(words[v])] for v, x in data.items()})


@pytest.mark.parametrize("name", LEARNERS)
def test_fewer_labels_than_states_are_reported_once(name: str, labelled: pd.DataFrame) -> None:
    learner = LEARNERS[name]()
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        learner.fit(labelled)
    found = [w for w in noted if issubclass(w.category, LabelWarning)]
    assert [w.filename for w in found] == [__file__]  # where fit was called
    assert "'x1' (2 of 3), 'x2' (2 of 3)." in str(found[0].message)
    assert "category column with all its categories" in str(found[0].message)
    answer = learner.posterior("x3", {"x2": ["low", "high"]})
    assert torch.allclose(answer.sum(dim=1).double(), torch.ones(2, dtype=torch.float64), atol=1e-5)


def test_all_categories_leave_nothing_to_report(labelled: pd.DataFrame) -> None:
    frame = labelled.astype("category")
    complete = frame.assign(**{v: frame[v].cat.add_categories("never") for v in ("x1", "x2")})
    with warnings.catch_warnings():
        warnings.simplefilter("error", LabelWarning)
        PBP(CONTRACT).fit(complete)


def test_further_rows_batches_and_classes_report_it_once(labelled: pd.DataFrame) -> None:
    frame, model = labelled.astype("category"), PBP(CONTRACT)
    with pytest.warns(LabelWarning, match=r"'x1' \(2 of 3\)"):
        model.partial_fit(frame)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LabelWarning)
        model.partial_fit(frame)
        model.count(frame)
    with pytest.warns(LabelWarning, match=r"'x1' \(2 of 3\), 'x2' \(2 of 3\)\."):
        PBP(CONTRACT).fit([frame[:100], frame[100:]])
    with pytest.warns(LabelWarning) as noted:
        classifier = GenerativeClassifier(CONTRACT, KernelPBP).fit(labelled, np.arange(200) % 3)
    assert len([w for w in noted if issubclass(w.category, TorchPBPWarning)]) == 1
    assert classifier.predict(labelled).shape == (200,)
