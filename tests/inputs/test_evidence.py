"""Evidence: every form that is accepted, every mistake that raises."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from torchpbp import Evidence
from torchpbp.errors import DataError, QueryError, ShapeError
from torchpbp.inputs import read_evidence

STATES = {"x": 3, "y": 4, "b": 2}
COLOURS = {"x": ("red", "green", "blue")}


def states_of(value: object, labels: object = None) -> list[int]:
    evidence = read_evidence({"x": value}, STATES, labels=labels)
    assert set(evidence.hard) == {"x"}
    assert not evidence.soft
    assert evidence.hard["x"].dtype == torch.int64
    assert evidence.batch == len(evidence.hard["x"])
    return evidence.hard["x"].tolist()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2, [2]),
        (np.int8(2), [2]),
        (-1, [-1]),
        (None, [-1]),
        (math.nan, [-1]),
        (1.0, [1]),
        (True, [1]),
        ((1,), [1]),
        (range(3), [0, 1, 2]),
        ([], []),
        (torch.tensor(1), [1]),
        (torch.empty(0), []),
        (pd.Series([1, 2, 1], dtype="category"), [1, 2, 1]),
    ],
)
def test_single_states_and_few_rows(value, expected):
    assert states_of(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("green", [1]),
        (np.array(["green", "red"]), [1, 0]),
        (None, [-1]),
        ([math.nan, math.nan], [-1, -1]),
    ],
)
def test_states_by_label(value, expected):
    assert states_of(value, COLOURS) == expected


def test_integer_labels_are_labels():
    labels = {"x": (10, 20, 30)}
    assert states_of(pd.Series([30, 10], dtype="category"), labels) == [2, 0]
    assert states_of(torch.tensor([2, 0]), labels) == [2, 0]
    for numbers in ([30, 10], np.array([30, 10]), pd.Series([30, 10]), np.array([30.0, 10.0])):
        assert states_of(numbers, labels) == [2, 0]
    assert states_of(pd.Series([30, None]), labels) == [2, -1]
    with pytest.raises(DataError, match=r"expected labels out of \[10, 20, 30\], got plain numbers"):
        states_of([1, 0], labels)


def test_no_evidence_is_one_row():
    for nothing in (None, {}):
        evidence = read_evidence(nothing, STATES)
        assert (evidence.batch, evidence.hard, evidence.soft) == (1, {}, {})


def test_a_data_frame_and_a_row_of_one():
    frame = pd.DataFrame({"x": [0, 1], "y": [np.nan, 3]})
    evidence = read_evidence(frame, STATES)
    assert evidence.batch == 2
    assert evidence.hard["y"].tolist() == [-1, 3]
    row = read_evidence(frame.iloc[1], STATES)
    assert {v: t.tolist() for v, t in row.hard.items()} == {"x": [1], "y": [3]}


def test_evidence_is_passed_through():
    evidence = read_evidence({"x": [0, 1]}, STATES)
    assert read_evidence(evidence, STATES) is evidence


def test_one_row_is_repeated_to_the_length_of_the_others():
    evidence = read_evidence({"x": 2, "y": [0, 1, -1], "b": torch.tensor([[0.5, 1.0]])}, STATES)
    assert evidence.batch == 3
    assert evidence.hard["x"].tolist() == [2, 2, 2]
    assert evidence.soft["b"].tolist() == [[0.5, 1.0]] * 3
    single = read_evidence({"x": 2, "y": [1]}, STATES)
    assert single.batch == 1


def test_one_row_beside_a_batch_without_rows():
    evidence = read_evidence({"x": 2, "y": []}, STATES)
    assert evidence.batch == 0
    assert len(evidence.hard["x"]) == 0


@pytest.mark.parametrize(
    "weights",
    [
        torch.tensor([[0.2, 0.0, 3.0], [1.0, 1.0, 1.0]]),
        np.array([[0.2, 0.0, 3.0], [1.0, 1.0, 1.0]]),
        [[0.2, 0.0, 3.0], [1.0, 1.0, 1.0]],
        pd.DataFrame([[0.2, 0.0, 3.0], [1.0, 1.0, 1.0]]),
    ],
)
def test_weights_over_states(weights):
    evidence = read_evidence({"x": weights}, STATES)
    assert not evidence.hard
    torch.testing.assert_close(evidence.soft["x"].double(), torch.tensor([[0.2, 0.0, 3.0], [1, 1, 1]]).double())


def test_weights_keep_their_gradient():
    weights = torch.rand(2, 3, requires_grad=True)
    evidence = read_evidence({"x": weights, "y": [0, 1]}, STATES)
    evidence.soft["x"].sum().backward()
    assert torch.equal(weights.grad, torch.ones(2, 3))


def test_gradients_pass_through_a_list_of_tensors():
    weights = torch.rand(3, requires_grad=True)
    read_evidence({"x": [weights, 2 * weights]}, STATES).soft["x"].sum().backward()
    assert torch.equal(weights.grad, torch.full((3,), 3.0))


def test_a_labelled_variable_may_have_weights():
    evidence = read_evidence({"x": [[0.5, 0.25, 0.25]]}, STATES, labels=COLOURS)
    assert evidence.soft["x"].tolist() == [[0.5, 0.25, 0.25]]


@pytest.mark.parametrize(
    ("evidence", "error", "message"),
    [
        ({"z": 0}, QueryError, r"unknown variable 'z'\. The model observes: x, y, b"),
        ({"h": 0}, QueryError, "Evidence on 'h': it is latent and cannot be observed"),
        ({"x": 3}, DataError, r"'x', row 0: state 3 is out of range; expected 0 to 2, or -1 for a missing value"),
        ({"x": [0, 1, -2]}, DataError, "'x', row 2: state -2 is out of range"),
        ({"x": [0.0, 7.0]}, DataError, "'x', row 1: state 7 is out of range"),
        ({"x": [0.0, 0.5]}, DataError, "'x', row 1: expected a whole number from 0 to 2, got 0.5"),
        ({"x": torch.tensor([math.nan, 1.5])}, DataError, "row 1: expected a whole number from 0 to 2, got 1.5"),
        ({"x": [math.inf]}, DataError, "'x', row 0: expected a whole number from 0 to 2, got inf"),
        ({"x": torch.tensor([-math.inf])}, DataError, "'x', row 0: expected a whole number from 0 to 2, got -inf"),
        ({"x": [0.2, 0.3, 0.5]}, DataError, "row 0: expected a whole number"),  # weights need two dimensions
        ({"x": [0, 1], "y": [0, 1, 2]}, ShapeError, "Evidence on 'x' has 2 rows, but 'y' has 3. Give one length"),
        ({"x": [0, 1], "y": torch.ones(3, 4)}, ShapeError, "'x' has 2 rows, but 'y' has 3"),
        ({"x": [0, 1], "y": []}, ShapeError, "'y' has 0 rows, but 'x' has 2"),
        ({"x": torch.ones(2, 4)}, ShapeError, r"Soft evidence on 'x': expected shape \(batch, 3\), got \(2, 4\)"),
        ({"x": torch.ones(2, 3).long()}, ShapeError, r"expected one state per row.*got int64 of shape \(2, 3\)"),
        ({"x": [[1, 0, 0]]}, ShapeError, r"floating-point weights of shape \(batch, 3\); got int64 of shape \(1, 3\)"),
        ({"x": torch.ones(2, 3) > 0}, ShapeError, "got bool of shape"),
        ({"x": torch.ones(2, 3, 1)}, ShapeError, r"got float32 of shape \(2, 3, 1\)"),
        ({"x": [[1.0, -0.1, 0.0]]}, DataError, r"'x', row 0: expected finite non-negative weights, got \[1.0, -0.1"),
        ({"x": [[1.0, 0, 0], [0, math.inf, 0]]}, DataError, "row 1: expected finite non-negative weights"),
        ({"x": [[1.0, 0, 0], [0, math.nan, 0]]}, DataError, "row 1: expected finite non-negative weights"),
        ({"x": [[1.0, 0, 0], [0.0, 0, 0]]}, DataError, "'x', row 1: all weights are 0, which rules out every state"),
        ({"x": "red"}, DataError, "'x': expected states from 0 to 2, got 'red'. The model was fitted without labels"),
        ({"x": [1, "red"]}, DataError, "'x': expected states from 0 to 2, got"),
        (
            {"x": pd.Series(["red"], dtype="category")},
            DataError,
            "has category labels, but the model was fitted on plain",
        ),
        ({"x": torch.tensor([1 + 1j])}, DataError, "'x': expected a tensor of real numbers, got complex64 values"),
        ({"x": np.array(["2020-01-01"], dtype="datetime64[D]")}, DataError, "'x': expected states from 0 to 2, got"),
        ({"x": [[0], [1, 2]]}, DataError, "'x': expected states from 0 to 2"),
        ({"x": {"a": 1}}, DataError, "'x': expected"),
        (["x"], DataError, "Evidence: expected a mapping of names to states, or a DataFrame; got list"),
        ("x", DataError, "Evidence: expected a mapping of names to states, or a DataFrame; got str"),
        (torch.zeros(3), DataError, "Evidence: expected a mapping .* got Tensor"),
    ],
)
def test_mistakes_raise(evidence, error, message):
    with pytest.raises(error, match=message):
        read_evidence(evidence, STATES, latent=["h"])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (["red", "pink"], r"unseen category 'pink'\. Known categories: \['red', 'green', 'blue'\]"),
        (pd.Series(["pink"], dtype="category"), "unseen category 'pink'"),
        ("pink", "unseen category 'pink'"),
        ([0, 1], r"expected labels out of \['red', 'green', 'blue'\], got plain numbers. Pass labels"),
        (1, "got plain numbers"),
        ([0.0, math.nan], "got plain numbers"),
        (pd.Series([0, None], dtype="Int64"), "(got plain numbers|unseen category 0)"),
    ],
)
def test_mistakes_with_labels(value, message):
    with pytest.raises(DataError, match=message):
        read_evidence({"x": value}, STATES, labels=COLOURS)


def test_reading_gives_no_warnings_and_does_not_share_memory():
    frame = pd.DataFrame({"x": [0, 1, 2]})
    array = np.array([0, 1, 2])
    array.setflags(write=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert states_of(frame["x"]) == [0, 1, 2]
        assert states_of(array) == [0, 1, 2]
    mine = np.array([0, 1, 2])
    evidence = read_evidence({"x": mine}, STATES)
    mine[0] = 2
    assert evidence.hard["x"].tolist() == [0, 1, 2]


# -- what is made of it ----------------------------------------------------------------------------------------------


def test_weights_of_states():
    evidence = read_evidence({"x": [1, -1], "y": torch.full((2, 4), 0.5)}, STATES)
    assert evidence.weights("x", 3, torch.float64, "cpu").tolist() == [[0, 1, 0], [1, 1, 1]]
    assert evidence.weights("y", 4, torch.float32, "cpu").tolist() == [[0.5] * 4] * 2
    assert evidence.weights("b", 2, torch.float64, "cpu") is None
    assert evidence.weights("x", 3, torch.float32, "cpu").dtype == torch.float32


def test_observed_everywhere():
    evidence = read_evidence({"x": [1, -1], "y": [1, 2], "b": torch.ones(2, 2)}, STATES)
    assert [evidence.observed_everywhere(v) for v in ("x", "y", "b", "z")] == [False, True, False, False]


def test_repeat_interleave():
    evidence = Evidence(2, {"x": torch.tensor([0, 1])}, {"b": torch.tensor([[1.0, 0], [0, 1.0]])}).repeat_interleave(2)
    assert evidence.batch == 4
    assert evidence.hard["x"].tolist() == [0, 0, 1, 1]
    assert evidence.soft["b"].tolist() == [[1, 0], [1, 0], [0, 1], [0, 1]]
