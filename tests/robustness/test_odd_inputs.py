"""Whatever is passed as data, evidence or query gives a valid answer or an error of the library, never anything else."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.robustness.odd_values import odd_columns
from tests.robustness.pipeline import check_distribution
from torchpbp import EM, PBP, Continuous, DiscreteNetwork, LatentGraph, PBPLayer, templates
from torchpbp.errors import DataError, QueryError, ShapeError, TorchPBPError, TorchPBPWarning

GRAPH = templates.naive_bayes(3, 2, 2)
NETWORK = DiscreteNetwork.random(GRAPH, seed=0)
DATA = NETWORK.sample(50, seed=1)
NAMES = GRAPH.observed
MODEL = PBP(GRAPH).fit(DATA)
LABELLED = PBP(GRAPH).fit(pd.DataFrame({v: np.array(["no", "yes"])[x] for v, x in DATA.items()}))
MIXED_GRAPH = LatentGraph([("h", "x"), ("h", "y"), ("h", "z")], {"h": 2, "x": 2, "y": Continuous(), "z": 2}, ["h"])
MIXED_DATA = {"x": DATA["x1"], "y": torch.linspace(-1, 1, 50, dtype=torch.float64) + DATA["x2"], "z": DATA["x3"]}
MIXED = PBP(MIXED_GRAPH).fit(MIXED_DATA)


@pytest.mark.parametrize("model", [MODEL, LABELLED], ids=["states", "labels"])
@settings(max_examples=150)
@given(data=st.data())
def test_odd_evidence(model: PBP, data: st.DataObject) -> None:
    value, other = data.draw(odd_columns()), data.draw(st.one_of(st.none(), odd_columns()))
    evidence = {NAMES[0]: value} if other is None else {NAMES[0]: value, NAMES[1]: other}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        try:
            answer = model.posterior(NAMES[2], evidence)
            log_evidence = model.log_evidence(evidence)
        except TorchPBPError:
            return
    check_distribution(answer, (len(answer), 2), "posterior")
    assert log_evidence.shape == (len(answer),)
    assert not log_evidence.isnan().any()


@settings(max_examples=60)
@given(odd_columns())
def test_odd_evidence_on_a_continuous_variable(value: Any) -> None:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        try:
            answer = MIXED.posterior("x", {"y": value})
        except TorchPBPError:
            return
    check_distribution(answer, (len(answer), 2), "posterior")


@settings(max_examples=80)
@given(
    st.one_of(odd_columns(), st.lists(st.integers(0, 1), min_size=50, max_size=50)),
    st.sampled_from(["PBP", "EM", "continuous"]),
)
def test_odd_columns_to_learn_from(column: Any, learner: str) -> None:
    name = "y" if learner == "continuous" else NAMES[0]
    data = {**(MIXED_DATA if learner == "continuous" else DATA), name: column}
    model: Any = {"PBP": PBP(GRAPH), "EM": EM(GRAPH, max_steps=1, restarts=1), "continuous": PBP(MIXED_GRAPH)}[learner]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", TorchPBPWarning)
        try:
            model.fit(data)
        except TorchPBPError:
            return
        answer = model.posterior("z" if learner == "continuous" else NAMES[1])
    check_distribution(answer.detach(), (1, 2), "posterior")


@settings(max_examples=60)
@given(odd_columns())
def test_odd_tables(table: Any) -> None:
    """In place of the whole table, and of the whole evidence."""
    for ask in (PBP(GRAPH).fit, lambda e: MODEL.posterior(NAMES[0], e), MODEL.log_evidence):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", TorchPBPWarning)
            try:
                ask(table)
            except TorchPBPError:
                continue


@settings(max_examples=60)
@given(st.one_of(odd_columns(), st.lists(st.sampled_from([*NAMES, "h", "nobody"]), max_size=3)))
def test_odd_queries(query: Any) -> None:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        try:
            answer = MODEL.posterior(query, {})
        except TorchPBPError:
            return
    check_distribution(answer.flatten(1), (1, answer.numel()), "posterior")


@settings(max_examples=40)
@given(odd_columns())
def test_odd_evidence_for_a_layer(value: Any) -> None:
    layer = PBPLayer(MODEL)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        try:
            answers = layer({NAMES[0]: value})
        except TorchPBPError:
            return
    for v, answer in answers.items():
        valid = ~answer.isnan().all(dim=1)  # a layer answers a row that is out of range with NaN
        check_distribution(answer[valid], (int(valid.sum()), 2), v)


@pytest.mark.parametrize(
    ("evidence", "error", "message"),
    [
        ({NAMES[0]: [0, 2]}, DataError, "row 1: state 2 is out of range"),
        ({NAMES[0]: 10**30}, DataError, "whole number from 0 to 1, got 1e\\+30"),
        ({NAMES[0]: [0.5]}, DataError, "whole number"),
        ({NAMES[0]: [float("inf")]}, DataError, "whole number"),
        ({NAMES[0]: [[0, 1], [1]]}, DataError, "expected states or weights"),
        ({NAMES[0]: ["yes"]}, DataError, "fitted without labels"),
        ({NAMES[0]: torch.zeros(3, 2, 2)}, ShapeError, "one state per row"),
        ({NAMES[0]: torch.zeros(3, 5)}, ShapeError, "expected shape"),
        ({NAMES[0]: [0, 1], NAMES[1]: [0, 1, 1]}, ShapeError, "Give one length"),
        ({"h": [0]}, QueryError, "latent"),
        (pd.DataFrame([[0, 1]], columns=[NAMES[0], NAMES[0]]), DataError, "more than once|twice"),
        ([0, 1], DataError, "expected a mapping"),
    ],
)
def test_messages_about_evidence(evidence: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        MODEL.posterior(NAMES[2], evidence)


def test_a_table_with_a_column_twice_raises() -> None:
    table = pd.DataFrame({v: x.numpy() for v, x in DATA.items()})
    with pytest.raises(ShapeError, match=r"column 'x1': expected one state per row, got shape \(50, 2\)"):
        PBP(GRAPH).fit(pd.concat([table, table[[NAMES[0]]]], axis=1))


def test_an_unseen_label_is_named() -> None:
    with pytest.raises(DataError, match=r"unseen category 'maybe'. Known categories: \['no', 'yes'\]"):
        LABELLED.posterior(NAMES[1], {NAMES[0]: ["maybe"]})
