"""Whatever is passed as evidence, data or query is answered as the oracle does, or raises an error of the library."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracle import Oracle
from tests.robustness.odd_values import Unreadable, entries, number, odd_columns, plain_columns, weights
from torchpbp import EM, PBP, Continuous, DiscreteNetwork, LatentGraph, PBPLayer, templates
from torchpbp.errors import TorchPBPError, TorchPBPWarning

NETWORK = DiscreteNetwork.random(templates.naive_bayes(3, 2, 2), seed=0)
GRAPH = NETWORK.graph
ROWS = NETWORK.sample(50, seed=1)
LABELS = ("no", "yes")
MIXED = LatentGraph([("h", "x"), ("h", "y"), ("h", "z")], {"h": 2, "x": 2, "y": Continuous(), "z": 2}, ["h"])


@cache
def model(kind: str) -> Any:
    if kind == "network":
        return NETWORK
    if kind == "continuous":
        y = torch.linspace(-1, 1, 50, dtype=torch.float64) + ROWS["x2"]
        return PBP(MIXED).fit({"x": ROWS["x1"], "y": y, "z": ROWS["x3"]})
    learned = PBP(GRAPH).fit_population(NETWORK)
    if kind == "labels":
        learned.labels = dict.fromkeys(GRAPH.observed, LABELS)
    return PBPLayer(learned) if kind == "layer" else learned


def posterior(column: Any, labels: tuple[str, ...] = ("0", "1")) -> np.ndarray:
    given = weights(column, labels)
    rows = [Oracle.of(NETWORK).posterior("x3", {"x1": given}, len(given))] if len(given) else []
    return np.concatenate([*rows, np.zeros((0, 2))])


def posterior_of_tensors(column: torch.Tensor) -> np.ndarray:
    """As a layer answers: rows that cannot be read are NaN."""
    answers = [np.zeros((0, 2))]
    for row in column.split(1):
        try:
            answers.append(posterior(row))
        except Unreadable:
            answers.append(np.full((1, 2), np.nan))
    return np.concatenate(answers)


def log_evidence(column: Any) -> np.ndarray:
    given = weights(column)
    return np.array(Oracle.of(NETWORK).log_evidence({"x1": given}, len(given)))


def joint(query: Any) -> np.ndarray:
    names = [query] if isinstance(query, str) else entries(query)
    if not names or len(set(map(str, names))) < len(names) or not all(n in GRAPH.observed for n in names):
        raise Unreadable
    return Oracle.of(NETWORK).posterior(names, {}).reshape(1, -1)


def values(column: Any) -> np.ndarray:
    return np.array([number(entry) for entry in entries(column)])


def learned(learner: Callable[[LatentGraph], Any], column: Any) -> Any:
    """P(x1, x2), or P(x1), after a fit to as many rows as the column has."""
    count = len(column) if hasattr(column, "__len__") and np.ndim(column) else 3
    fitted = learner(GRAPH).fit({**{v: x[:count] for v, x in ROWS.items()}, "x1": column})
    return fitted.posterior("x1")


def learned_from_states(learner: Callable[[LatentGraph], Any], column: Any) -> Any:
    if isinstance(getattr(column, "dtype", None), pd.CategoricalDtype):  # categories of any type are labels
        column = pd.Categorical(column).codes
    labels = sorted({e for e in entries(column) if isinstance(e, str)})
    given = weights(column, tuple(labels + ["unused"] * (2 - len(labels))), soft=False)
    return learned(learner, np.where(given.all(axis=1), -1, given.argmax(axis=1)))


def one_em(graph: LatentGraph) -> EM:
    return EM(graph, max_steps=1, restarts=1, progress=False)


ENTRIES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "network": (lambda c: model("network").posterior("x3", {"x1": c}), posterior),
    "PBP": (lambda c: model("PBP").posterior("x3", {"x1": c}), posterior),
    "posteriors": (lambda c: model("PBP").posteriors({"x1": c})["x3"], posterior),
    "labels": (lambda c: model("labels").posterior("x3", {"x1": c}), lambda c: posterior(c, LABELS)),
    "layer": (lambda c: model("layer")({"x1": c})["x3"], posterior_of_tensors),
    "log_evidence": (lambda c: model("PBP").log_evidence({"x1": c}), log_evidence),
    "continuous": (
        lambda c: model("continuous").posterior("x", {"y": c}),
        lambda c: model("continuous").posterior("x", {"y": torch.from_numpy(values(c))}),
    ),
    "fit": (lambda c: learned(PBP, c), lambda c: learned_from_states(PBP, c)),
    "EM": (lambda c: learned(one_em, c), lambda c: learned_from_states(one_em, c)),
    "query": (lambda q: model("PBP").posterior(q, {}).flatten(1), joint),
}
"""Entry point -> what it does with a value, and the answer to a plain reading of it."""


@pytest.mark.parametrize("entry", ENTRIES)
@settings(max_examples=60)
@given(data=st.data())
def test_the_oracles_answer_or_an_error_of_the_library(entry: str, data: st.DataObject) -> None:
    names = st.lists(st.sampled_from(["x1", "x2", "h", "nobody"]), max_size=3)
    value = data.draw(st.one_of(names if entry == "query" else plain_columns(entry == "layer"), odd_columns()))
    ask, reference = ENTRIES[entry]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")  # no warning of torch, numpy or pandas either
        warnings.simplefilter("ignore", TorchPBPWarning)
        try:
            found = torch.as_tensor(ask(value)).double()
        except TorchPBPError:
            return
        expected = torch.as_tensor(reference(value)).double()
    torch.testing.assert_close(
        found, expected, rtol=1e-6, atol=1e-6, equal_nan=True, msg=lambda text: f"{value!r}: {text}"
    )


@settings(max_examples=60)
@given(odd_columns())
def test_anything_in_place_of_a_table(table: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TorchPBPWarning)
        with contextlib.suppress(TorchPBPError):  # an array with a column for each variable is a table
            PBP(GRAPH).fit(table)
    if table is not None and not (isinstance(table, dict | pd.Series | pd.DataFrame) and len(table) == 0):
        for ask in (lambda e: model("PBP").posterior("x1", e), model("network").log_evidence):
            with pytest.raises(TorchPBPError):
                ask(table)
