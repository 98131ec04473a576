"""Inputs that once gave wrong answers without a word: each learner gives the right answer, an error, or a warning."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tests.robustness.learners import CONTINUOUS, LEARNERS
from torchpbp import Continuous, DiscreteNetwork, Evidence, GenerativeClassifier, KernelPBP, LatentGraph, templates
from torchpbp.errors import DataError, LabelWarning, QueryWarning, TorchPBPWarning

GRAPH = templates.naive_bayes(3, 2, 4)
NETWORK = DiscreteNetwork.random(GRAPH, seed=0)
DATA = NETWORK.sample(200, seed=1)
MIXED = LatentGraph([("h", "x"), ("h", "y"), ("h", "z")], {"h": 2, "x": 3, "y": Continuous(0.0, 9.0), "z": 3}, ["h"])
TOP = 2**64 - 1
_fitted: dict[str, Any] = {"DiscreteNetwork": NETWORK}


def fitted(name: str) -> Any:
    if name not in _fitted:
        _fitted[name] = LEARNERS[name](GRAPH).fit(DATA)
    return _fitted[name]


def mixed_data(rows: int = 200) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    h = torch.randint(2, (rows,), generator=generator)
    y = (3.0 * h + torch.rand(rows, generator=generator, dtype=torch.float64)).clamp(0, 9)
    other = torch.randint(2, (2, rows), generator=generator)
    return {"x": h + other[0], "y": y, "z": h + other[1]}


EVERY = ["DiscreteNetwork", *LEARNERS]


# -- numbers beyond int64 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LEARNERS)
def test_a_huge_number_is_not_a_missing_value_in_training(name: str) -> None:
    column = DATA["x1"].numpy().astype(np.uint64)
    column[7] = TOP
    for data in ({**DATA, "x1": column}, pd.DataFrame({v: x.numpy() for v, x in DATA.items()}).assign(x1=column)):
        with pytest.raises(DataError, match=f"column 'x1', row 7: state {TOP} is out of range"):
            LEARNERS[name](GRAPH).fit(data)


@pytest.mark.parametrize("name", EVERY)
def test_a_huge_number_is_not_a_missing_value_in_evidence(name: str) -> None:
    column = np.array([0, TOP], dtype=np.uint64)
    for evidence in ({"x1": column}, pd.DataFrame({"x1": column}), {"x1": torch.from_numpy(column)}):
        for ask in (lambda e: fitted(name).posterior("x2", e), fitted(name).log_evidence, fitted(name).posteriors):
            with pytest.raises(DataError, match=f"Evidence on 'x1', row 1: state {TOP} is out of range"):
                ask(evidence)


# -- evidence made by hand ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_evidence_made_by_hand_is_checked(name: str) -> None:
    model = fitted(name)
    small = Evidence(2, {"x1": torch.tensor([3, 0], dtype=torch.uint8)})
    torch.testing.assert_close(model.posterior("x2", small), model.posterior("x2", {"x1": [3, 0]}))
    for wrong in (torch.tensor([3, 4]), torch.tensor([0, 255], dtype=torch.uint8)):
        for ask in (lambda e: model.posterior("x2", e), model.log_evidence, model.posteriors):
            with pytest.raises(DataError, match=r"Evidence on 'x1', row 1: state .* is out of range"):
                ask(Evidence(2, {"x1": wrong}))
    with pytest.raises(DataError, match="Evidence on 'x1', row 0: state 4 is out of range"):
        model.posterior("x2", Evidence(1, {"x1": torch.tensor([4])}))  # one row is a way of its own in exact networks


# -- fewer labels than states ------------------------------------------------------------------------------------


def labelled(kind: str) -> dict[str, Any]:
    """Two variables of four states with two and three labels, one with all four."""
    words = {"x1": ["no", "yes"], "x2": ["low", "middle", "high"], "x3": ["a", "b", "c", "d"]}
    columns = {v: np.array(words[v])[x.numpy() % len(words[v])] for v, x in DATA.items()}
    if kind == "category":
        return pd.DataFrame({v: pd.Categorical(c, categories=words[v]) for v, c in columns.items()})
    return pd.DataFrame(columns) if kind == "strings" else columns


@pytest.mark.parametrize("kind", ["strings", "category", "dict"])
@pytest.mark.parametrize("name", LEARNERS)
def test_fewer_labels_than_states_are_reported_once(name: str, kind: str) -> None:
    learner = LEARNERS[name](GRAPH)
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        learner.fit(labelled(kind))
    told = [str(w.message) for w in noted if issubclass(w.category, LabelWarning)]
    assert len(told) == 1
    assert [w.filename for w in noted if issubclass(w.category, LabelWarning)] == [__file__]  # where fit was called
    assert "'x1' (2 of 4), 'x2' (3 of 4)." in told[0]
    assert "'x3'" not in told[0]
    assert "category column with all its categories" in told[0]
    answer = learner.posterior("x1", {"x2": ["low", "high"]})  # the model works all the same
    assert answer.shape == (2, 4)
    assert torch.allclose(answer.sum(dim=1).double(), torch.ones(2, dtype=torch.float64), atol=1e-5)


@pytest.mark.parametrize("name", LEARNERS)
def test_all_categories_leave_nothing_to_tell(name: str) -> None:
    frame = labelled("category")
    more = {"x1": ["never", "not yet"], "x2": ["highest"]}
    complete = frame.assign(**{v: frame[v].cat.add_categories(x) for v, x in more.items()})
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        LEARNERS[name](GRAPH).fit(complete)
    assert not [w for w in noted if issubclass(w.category, LabelWarning)]


def test_a_classifier_tells_it_once_for_all_classes() -> None:
    classifier = GenerativeClassifier(GRAPH, KernelPBP)
    with pytest.warns(LabelWarning) as noted:
        classifier.fit(labelled("strings"), np.arange(200) % 3)
    assert len([w for w in noted if issubclass(w.category, TorchPBPWarning)]) == 1
    assert "'x1' (2 of 4), 'x2' (3 of 4)." in str(noted[0].message)
    assert classifier.predict(labelled("strings")).shape == (200,)


def test_counts_and_further_rows_tell_it_once() -> None:
    model = LEARNERS["PBP"](GRAPH)
    with pytest.warns(LabelWarning, match=r"'x1' \(2 of 4\)"):
        model.partial_fit(labelled("category"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", LabelWarning)
        model.partial_fit(labelled("category"))
        model.count(labelled("category"))


def test_mini_batches_and_numbers_as_labels() -> None:
    years = pd.DataFrame({v: pd.Categorical(2020 + x.numpy() % 3) for v, x in DATA.items()})
    with pytest.warns(LabelWarning, match=r"'x1' \(3 of 4\), 'x2' \(3 of 4\), 'x3' \(3 of 4\)\."):
        LEARNERS["PBP"](GRAPH).fit([years[:100], years[100:]])


# -- values outside the declared range ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONTINUOUS)
def test_evidence_outside_the_declared_range_raises(name: str) -> None:
    model = LEARNERS[name](MIXED).fit(mixed_data())
    text = r"Evidence on 'y', row 2: value 9\.5 lies outside the declared range \[0\.0, 9\.0\]"
    values = [1.0, 8.9, 9.5]
    made = Evidence(3, real={"y": torch.tensor(values, dtype=torch.float64)})
    for evidence in ({"y": values}, pd.DataFrame({"y": values}), {"y": torch.tensor(values)}, made):
        asked = [
            lambda e: model.posterior("x", e),
            model.posteriors,
            model.log_evidence,
            lambda e: model.sample(2, e, seed=0),
        ]
        for ask in asked:
            with pytest.raises(DataError, match=text):
                ask(evidence)
    assert torch.isfinite(model.posterior("x", {"y": [0.0, 8.9, 9.0, np.nan]})).all()


def test_a_classifier_rejects_rows_outside_the_declared_range() -> None:
    graph = LatentGraph([("h", "a"), ("h", "b")], {"h": None, "a": Continuous(0.0, 1.0), "b": Continuous()}, ["h"])
    x = np.random.default_rng(0).random((40, 2))
    y = np.arange(40) % 2
    classifier = GenerativeClassifier(graph, KernelPBP).fit(x, y)
    x[3, 0] = 1.5
    with pytest.raises(DataError, match=r"Evidence on 'a', row 3: value 1\.5 lies outside the declared range"):
        classifier.predict(x)
    with pytest.raises(DataError, match=r"column 'a', row 3: value 1\.5 lies outside the declared range"):
        GenerativeClassifier(graph, KernelPBP).fit(x, y)


# -- nothing to ask ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_complete_rows_leave_nothing_to_ask(name: str) -> None:
    model = fitted(name)
    frame = pd.DataFrame({v: x.numpy() for v, x in DATA.items()})
    for rows in (DATA, frame, Evidence(200, dict(DATA))):
        with pytest.warns(QueryWarning, match=r"nothing is left to ask .* log_evidence\(\) .* leave out a column"):
            assert list(model.posteriors(rows)) == []
        if name in ("PBP", "KernelPBP"):
            with pytest.warns(QueryWarning, match="nothing is left to ask") as noted:
                assert list(model(rows)) == []
            assert noted[0].filename == __file__  # not within torch, whose module calls the model
    assert set(model.posteriors({v: x for v, x in DATA.items() if v != "x2"})) == {"x2"}
    some = {**DATA, "x2": DATA["x2"].clone().index_fill(0, torch.tensor([3]), -1)}
    assert set(model.posteriors(some)) == {"x2"}
    assert model.log_evidence(DATA).shape == (200,)


# -- weights of any size -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e300, 1e-300, 5e-324])
@pytest.mark.parametrize("name", EVERY)
def test_weights_of_any_size_mean_the_same(name: str, size: float) -> None:
    model = fitted(name)
    states = torch.tensor([2, 0])
    hot = torch.nn.functional.one_hot(states, 4).double()
    found = model.posterior("x3", {"x1": size * hot, "x2": size * hot})
    torch.testing.assert_close(found, model.posterior("x3", {"x1": hot, "x2": hot}))
    if name != "ScoreAverage":  # has a floor
        log = model.log_evidence({"x1": size * hot, "x2": hot})
        assert torch.allclose(log, model.log_evidence({"x1": hot, "x2": hot}) + np.log(size), rtol=1e-6)
