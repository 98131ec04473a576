"""Rows of evidence: tables without columns, values outside a declared range, evidence made by hand, weights of any size."""

from __future__ import annotations

import math
import re

import numpy as np
import pandas as pd
import pytest
import torch

from torchpbp import Continuous, Evidence
from torchpbp.errors import DataError, QueryError, ShapeError
from torchpbp.inputs import read_evidence

STATES = {"x": 3, "y": 4, "r": Continuous(0.0, 100.0), "s": Continuous(low=-1.0), "t": Continuous()}


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_a_table_without_columns_has_its_rows(rows: int) -> None:
    evidence = read_evidence(pd.DataFrame(index=range(rows)), STATES)
    assert (evidence.batch, evidence.hard, evidence.soft, evidence.real) == (rows, {}, {}, {})


def test_other_forms_of_no_evidence_are_one_row() -> None:
    for nothing in (None, {}, pd.Series(dtype=float)):
        assert read_evidence(nothing, STATES).batch == 1
    assert read_evidence(pd.DataFrame(), STATES).batch == 0  # no columns, no rows


@pytest.mark.parametrize(
    ("name", "value", "bounds"),
    [
        ("r", 100.5, r"\[0\.0, 100\.0\]"),
        ("r", -0.01, r"\[0\.0, 100\.0\]"),
        ("s", -1.01, r"\[-1\.0, None\]"),
        ("r", 1e200, r"\[0\.0, 100\.0\]"),
    ],
)
def test_values_outside_the_declared_range_raise(name: str, value: float, bounds: str) -> None:
    text = rf"Evidence on '{name}', row 1: value {re.escape(str(value))} lies outside the declared range {bounds}"
    columns = [
        [0.5, value],
        np.array([0.5, value]),
        torch.tensor([0.5, value], dtype=torch.float64),
        pd.Series([0.5, value]),
        np.array([0.5, value], dtype=object),
    ]
    for column in columns:
        with pytest.raises(DataError, match=text):
            read_evidence({name: column}, STATES)
    with pytest.raises(DataError, match=text):
        read_evidence(pd.DataFrame({name: columns[0]}), STATES)
    with pytest.raises(DataError, match=text):
        read_evidence(Evidence(2, real={name: torch.tensor([0.5, value], dtype=torch.float64)}), STATES)


def test_values_within_the_range_or_outside_by_rounding_are_taken() -> None:
    single = torch.tensor([0.0, 100.0, math.nan, 100.00001])  # what scaling in single precision makes of 100
    assert read_evidence({"r": single}, STATES).real["r"][:2].tolist() == [0.0, 100.0]
    assert read_evidence({"s": [1e9, -1.0]}, STATES).real["s"].tolist() == [1e9, -1.0]
    assert read_evidence({"t": [1e200, -1e200]}, STATES).real["t"].tolist() == [1e200, -1e200]
    tenth = {"v": Continuous(0.0, 0.1)}
    assert len(read_evidence({"v": torch.tensor([0.1])}, tenth).real["v"]) == 1  # as float32 it is above 0.1


@pytest.mark.parametrize(
    ("evidence", "error", "text"),
    [
        (Evidence(2, {"x": torch.tensor([0, 3])}), DataError, "Evidence on 'x', row 1: state 3 is out of range"),
        (Evidence(2, {"x": torch.tensor([0, 200], dtype=torch.uint8)}), DataError, "row 1: state 200 is out of range"),
        (Evidence(1, {"x": torch.tensor([-2])}), DataError, "row 0: state -2 is out of range"),
        (Evidence(1, {"q": torch.tensor([0])}), QueryError, "unknown variable 'q'"),
        (Evidence(1, {"h": torch.tensor([0])}), QueryError, "'h': it is latent"),
        (Evidence(3, {"x": torch.tensor([0, 1])}), ShapeError, "'x' has 2 rows, but batch=3"),
        (Evidence(1, {"x": torch.tensor([[0]])}), ShapeError, "expected one state per row"),
        (Evidence(1, soft={"x": torch.zeros(1, 3)}), DataError, "all weights are 0"),
        (
            Evidence(1, soft={"x": torch.tensor([1])}),
            DataError,
            r"'x': expected a tensor of states \(hard\) or weights",
        ),
        (Evidence(1, {"x": torch.ones(1, 3)}), DataError, r"'x': expected a tensor of states \(hard\) or weights"),
        (Evidence(1, soft={"x": torch.ones(1, 2)}), ShapeError, r"expected shape \(batch, 3\)"),
        (Evidence(1, soft={"x": torch.tensor([[1.0, -1.0, 0.0]])}), DataError, "finite non-negative weights"),
        (Evidence(1, {"t": torch.tensor([0])}), DataError, r"'t': expected a tensor of values \(real\)"),
        (
            Evidence(1, real={"x": torch.tensor([0.0])}),
            DataError,
            r"'x': expected a tensor of states \(hard\) or weights \(soft\)",
        ),
        (Evidence(1, real={"t": torch.tensor([math.inf])}), DataError, "'t', row 0: expected a finite value or NaN"),
    ],
)
def test_evidence_made_by_hand_is_checked(evidence: Evidence, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        read_evidence(evidence, STATES, latent=["h"])


def test_evidence_made_by_hand_is_brought_into_form() -> None:
    made = Evidence(2, {"x": torch.tensor([2, 0], dtype=torch.uint8)}, real={"t": torch.tensor([1, 2])})
    read = read_evidence(made, STATES)
    assert read.hard["x"].dtype == torch.int64
    assert read.hard["x"].tolist() == [2, 0]
    assert read.real["t"].dtype == torch.float64
    assert read_evidence(read, STATES) is read


def test_extreme_weights_are_brought_to_a_moderate_size() -> None:
    weights = torch.tensor([[1.0, 2.0, 3.0], [1e300, 0.0, 1e299], [0.0, 5e-324, 0.0]], dtype=torch.float64)
    read = read_evidence({"x": weights}, STATES)
    assert torch.equal(read.soft["x"][0], weights[0])  # left as they are
    torch.testing.assert_close(read.soft["x"][1:], torch.tensor([[1.0, 0.0, 0.1], [0.0, 1.0, 0.0]]).double())
    expected = torch.tensor([0.0, 300 * math.log(10), math.log(5e-324)], dtype=torch.float64)
    torch.testing.assert_close(read.scaled(torch.zeros(3, dtype=torch.float64)), expected)
    assert read.rows(slice(1, 3)).scaled(torch.zeros(2)).shape == (2,)
    assert read.repeat_interleave(2).scaled(torch.zeros(6)).shape == (6,)
    assert read_evidence({"x": weights[:1]}, STATES).log_scale is None
    ones = weights.clone().requires_grad_()
    read_evidence({"x": ones}, STATES).soft["x"].sum().backward()
    assert torch.isfinite(ones.grad[:2]).all()
