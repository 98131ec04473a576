"""Graphs over the columns of a DataFrame, and how their labels reach the models."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import torchpbp
from torchpbp import EM, PBP, Continuous, DiscreteNetwork, GenerativeClassifier, LatentGraph
from torchpbp.errors import ArgumentError, DataError, DataWarning, StructureError

ROWS = pd.DataFrame(
    {
        "scale": [1, 2, 3, 5, 2, 1],
        "gaps": [1.0, None, 2.0, 2.0, 1.0, None],
        "codes": [0, 1, 2, 0, 1, 2],
        "word": ["b", "a", None, "b", "a", "a"],
        "bool": [True, False, True, True, False, False],
        "maybe": pd.array([True, None, False, True, False, True], dtype="boolean"),
        "kind": pd.Categorical(["x", "x", "y", "x", "y", "y"], categories=["y", "x", "never"]),
        "value": [0.5, 1.5, np.nan, 2.0, 3.0, 4.0],
    }
)


def test_states_and_labels_of_columns():
    graph = LatentGraph.from_frame(ROWS, latent={"class": 3})
    states = {"scale": 4, "gaps": 2, "codes": 3, "word": 2, "bool": 2, "maybe": 2, "kind": 3, "value": Continuous()}
    assert graph.variables == {"class": 3, **states}
    assert graph.labels == {"scale": (1, 2, 3, 5), "gaps": (1, 2), "word": ("a", "b"), "kind": ("y", "x", "never")}
    assert graph.latent == ("class",)
    assert all(graph.parents(v) == ("class",) for v in ROWS)
    assert LatentGraph.from_dict(graph.to_dict()) == graph != LatentGraph(graph.edges, graph.variables, graph.latent)


def test_edges_choose_columns_and_variables_override():
    edges = [("A", "B"), ("A", "word"), ("A", "codes"), ("B", "scale"), ("B", "kind")]
    given = {"scale": Continuous(low=0), "codes": 5, "word": 4}
    graph = LatentGraph.from_frame(ROWS, edges, {"A": 2, "B": None}, variables=given)
    assert graph.variables == {"A": 2, "B": None, **given, "kind": 3}
    assert not LatentGraph.from_frame(ROWS[["word", "bool"]], [("word", "bool")], directed=False).directed


def test_missing_code_is_said():
    with pytest.warns(DataWarning, match="Column 'x': -1 is read as a missing value"):
        graph = LatentGraph.from_frame(pd.DataFrame({"x": [0, 1, -1], "y": [-2, -1, 0]}), latent={"h": 2})
    assert graph.variables == {"h": 2, "x": 2, "y": 3}
    assert graph.labels == {"y": (-2, -1, 0)}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": [1, 1, None]}, r"Column 'x': expected at least 2 different values, got \[1\] in every row"),
        ({"x": ["a"] * 3}, "Column 'x': expected at least 2 different values"),
        ({"x": [0.5] * 3}, "Column 'x': expected at least 2 different values"),
        ({"x": [None] * 3}, "Column 'x': all 3 values are missing"),
        ({"x": range(40)}, r"Column 'x' has 40 different values, .* max_states=20 .* variables={'x': Continuous\(\)}"),
        ({"x": [f"id{i}" for i in range(40)]}, "Drop an identifier"),
        ({"x": pd.date_range("2020", periods=3)}, "got datetime64 values. Convert dates"),
        ({"x": [1, "a", 2]}, "Column 'x': expected labels or numbers, got mixed-integer values"),
        ({3: [0, 1]}, r"Columns \[3\]: expected names that are strings"),
        ({"x": []}, "expected rows and columns, got 0 rows"),
    ],
)
def test_bad_columns(columns, message):
    with pytest.raises(DataError, match=message):
        LatentGraph.from_frame(pd.DataFrame(columns), latent={"h": 2})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"edges": [("h", "wrd")], "latent": {"h": 2}},
            StructureError,
            r"\['wrd'\] are neither columns .* nor latents",
        ),
        ({"latent": {"word": 2}}, StructureError, r"\['word'\] are columns of the table"),
        ({"latent": {"a": 2, "b": 2}}, StructureError, "expected edges, or one latent"),
        ({}, StructureError, "expected edges, or one latent"),
        ({"latent": "h"}, StructureError, "got the string 'h'"),
        ({"latent": {"h": 2}, "variables": {"q": 2}}, StructureError, r"variables: \['q'\] are not among the columns"),
        ({"latent": {"h": 2}, "variables": {"word": 1}}, DataError, "got 2 labels for 1 states"),
        ({"latent": {"h": 2}, "variables": {"value": 3}}, DataError, "expected states, got fractions"),
        ({"latent": {"h": 2}, "max_states": 1}, ArgumentError, "max_states: expected"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        LatentGraph.from_frame(ROWS, **arguments)
    with pytest.raises(DataError, match="expected a pandas DataFrame, got list"):
        LatentGraph.from_frame([1, 2], latent={"h": 2})
    with pytest.raises(DataError, match=r"Columns \['word'\] occur more than once"):
        LatentGraph.from_frame(ROWS[["word", "word"]], latent={"h": 2})


def test_models_take_the_labels(tmp_path):
    """Fitted to whole numbers with missing values, models answer by the numbers, in memory and from a file."""
    truth = DiscreteNetwork.random(torchpbp.templates.naive_bayes(4, 2, 3), seed=3)
    rows = truth.sample_frame(2_000, seed=1) + 1  # answers 1 to 3
    rows = rows.where(np.random.default_rng(0).random(rows.shape) > 0.1)
    graph = LatentGraph.from_frame(rows, latent={"class": 2})
    first = rows.columns[0]
    for model in (PBP(graph), EM(graph, restarts=1, relative_tolerance=0.01, progress=False)):
        answer = model.fit(rows).posterior(first, rows.iloc[:5, 1:])
        assert list(answer.columns) == [1, 2, 3]
        assert dict.fromkeys(rows.columns, (1, 2, 3)) == model.labels
        model.save(tmp_path / "model.pt")
        loaded = torchpbp.load(tmp_path / "model.pt")
        assert loaded.graph == graph
        pd.testing.assert_frame_equal(loaded.posterior(first, rows.iloc[:5, 1:]), answer)
    counts = PBP(graph).count(rows[:1_000]).merge(PBP(graph).count(rows[1_000:]))
    counted = PBP(graph).fit_counts(counts).posterior(first, rows.iloc[:5, 1:])
    pd.testing.assert_frame_equal(counted, PBP(graph).fit(rows).posterior(first, rows.iloc[:5, 1:]))
    classes = np.arange(len(rows)) % 2
    GenerativeClassifier(graph, PBP).fit(rows, classes).predict(rows)
    with pytest.raises(DataError, match=r"expected labels out of \[1, 2, 3\]"):
        PBP(graph).fit(rows.fillna(7))
