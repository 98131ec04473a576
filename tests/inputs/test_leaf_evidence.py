"""Vectors and images in evidence, and in the evidence of a layer."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.robustness.odd_values import odd_columns
from torchpbp import Continuous, Evidence
from torchpbp.errors import DataError, ShapeError, TorchPBPError
from torchpbp.inputs import ColumnReader, observed, read_evidence
from torchpbp.inputs.evidence import read_layer_evidence

NAN = math.nan
DOMAINS = {"pen": Continuous(low=-9.0, high=9.0, shape=(2,)), "picture": Continuous(shape=(1, 2, 3)), "x": 2}
PEN = torch.tensor([[1.0, 2.0], [NAN, NAN], [3.0, 4.0]], dtype=torch.float64)
HIDDEN = torch.tensor([[1.0, 2.0], [99.0, NAN], [3.0, 4.0]], dtype=torch.float64)
SEEN = torch.tensor([True, False, True])


def pens(value: Any) -> list[Any]:
    evidence = read_evidence({"pen": value}, DOMAINS)
    (values,) = evidence.real.values()
    assert values.shape == (evidence.batch, 2)
    return [row if seen else None for row, seen in zip(values.tolist(), observed(values).tolist(), strict=True)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([[1, 2], None], [[1.0, 2.0], None]),
        (torch.tensor([1.0, 2.0]), [[1.0, 2.0]]),
        ([1, 2], [[1.0, 2.0]]),
        ((1, 2), [[1.0, 2.0]]),
        (([1, 2], True), [[1.0, 2.0]]),
        (([1, 2], False), [None]),
        (([1, 2], [3, 4]), [[1.0, 2.0], [3.0, 4.0]]),
        ([NAN, NAN], [None]),
        (None, [None]),
        (NAN, [None]),
        (pd.NA, [None]),
        ([], []),
        (torch.zeros(0, 2), []),
        ((torch.zeros(0, 2), torch.zeros(0, dtype=torch.bool)), []),
        (pd.Series([NAN, NAN]), [None, None]),
    ],
)
def test_single_vectors_and_few_rows(value: Any, expected: list[Any]) -> None:
    assert pens(value) == expected


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        ([1.0, NAN], DataError, r"Evidence on 'pen', row 0: 1 of 2 entries are NaN"),
        (
            torch.tensor([[1, 2], [3, math.inf]]),
            DataError,
            r"Evidence on 'pen', row 1, entry \(1,\): expected finite values",
        ),
        (
            [[1, 2], [3, 10]],
            DataError,
            r"row 1, entry \(1,\): value 10.0 lies outside the declared range \[-9.0, 9.0\]",
        ),
        ((PEN, torch.ones(3, dtype=torch.bool)), DataError, "row 1: the value is marked as seen"),
        ((HIDDEN, SEEN.long()), DataError, "booleans as seen.*got int64"),
        ((HIDDEN, SEEN[:2]), ShapeError, r"seen of shape \(3,\).*got shape \(2,\)"),
        (
            1.0,
            ShapeError,
            r"expected values of shape \(rows, 2\), or one value of shape \(2,\); got float64 of shape \(\)",
        ),
        (torch.zeros(3, 3), ShapeError, r"expected values of shape \(rows, 2\).*got float32 of shape \(3, 3\)"),
        ([[1, 2], [3]], ShapeError, r"row 1: expected numbers of shape \(2,\)"),
        ("red", ShapeError, r"expected values of shape \(rows, 2\)"),
    ],
)
def test_mistakes_raise(value: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        pens(value)


def test_one_row_stands_for_all() -> None:
    picture = torch.ones(1, 2, 3)
    evidence = read_evidence({"pen": PEN, "picture": picture, "x": 1}, DOMAINS)
    assert evidence.batch == 3
    assert evidence.real["picture"].shape == (3, 1, 2, 3)
    assert evidence.real["picture"].dtype == torch.float32
    with pytest.raises(ShapeError, match="Give one length"):
        read_evidence({"pen": PEN, "picture": torch.ones(2, 1, 2, 3)}, DOMAINS)


def test_a_frame_with_columns_of_arrays() -> None:
    pictures = np.arange(12, dtype=np.uint8).reshape(2, 1, 2, 3)
    evidence = read_evidence(pd.DataFrame({"pen": [None, np.ones(2)], "picture": list(pictures), "x": [0, 1]}), DOMAINS)
    assert observed(evidence.real["pen"]).tolist() == [False, True]
    assert evidence.real["picture"].tolist() == pictures.tolist()
    row = read_evidence(pd.Series({"pen": np.ones(2), "x": 1}), DOMAINS)
    assert (row.batch, row.real["pen"].tolist()) == (1, [[1.0, 1.0]])


def test_rows_of_evidence() -> None:
    evidence = read_evidence({"pen": PEN, "x": [0, 1, 1]}, DOMAINS)
    assert not evidence.observed_everywhere("pen")
    assert evidence.rows(slice(0, 1)).observed_everywhere("pen")
    assert evidence.rows(slice(1, 3)).real["pen"].shape == (2, 2)
    twice = evidence.repeat_interleave(2)
    assert twice.batch == 6
    assert observed(twice.real["pen"]).tolist() == [True, True, False, False, True, True]
    assert twice.real["pen"][4:].tolist() == [[3.0, 4.0], [3.0, 4.0]]


def test_evidence_made_by_hand_is_checked() -> None:
    whole = Evidence(3, real={"pen": PEN})
    assert read_evidence(whole, DOMAINS) is whole
    with pytest.raises(DataError, match="row 0: 1 of 2 entries are NaN"):
        read_evidence(Evidence(1, real={"pen": torch.tensor([[1.0, NAN]])}), DOMAINS)
    with pytest.raises(ShapeError, match=r"expected values of shape \(rows, 2\); got float64 of shape \(2,\)"):
        read_evidence(Evidence(1, real={"pen": PEN[0]}), DOMAINS)
    with pytest.raises(ShapeError, match="batch=2"):
        read_evidence(Evidence(2, real={"pen": PEN}), DOMAINS)


@pytest.mark.parametrize("form", ["tensor", "pair", "list"])
def test_gradients_pass_to_what_is_seen(form: str) -> None:
    values = HIDDEN.clone() if form == "pair" else PEN.clone()
    rows = [row.clone().requires_grad_() for row in PEN]
    values.requires_grad_()
    given: Any = {"tensor": values, "pair": (values, SEEN), "list": [rows[0], None, rows[2]]}[form]
    read = read_evidence({"pen": given}, DOMAINS).real["pen"]
    torch.where(observed(read).unsqueeze(1), read, 0.0).square().sum().backward()
    found = values.grad if form != "list" else torch.stack([rows[0].grad, torch.zeros(2), rows[2].grad])
    assert found is not None
    torch.testing.assert_close(found, torch.tensor([[2.0, 4.0], [0.0, 0.0], [6.0, 8.0]], dtype=torch.float64))


# -- layers ----------------------------------------------------------------------------------------------------------


def test_a_layer_marks_invalid_rows() -> None:
    values = torch.tensor([[1.0, 2.0], [NAN, NAN], [NAN, 2.0], [math.inf, 0.0], [10.0, 0.0]], dtype=torch.float32)
    read, invalid = read_layer_evidence({"pen": values}, DOMAINS)
    assert invalid.tolist() == [False, False, True, True, True]
    assert read.real["pen"].dtype == torch.float32
    assert observed(read.real["pen"]).tolist() == [True, False, False, False, False]
    read, invalid = read_layer_evidence({"pen": (values, torch.tensor([True, True, False, False, False]))}, DOMAINS)
    assert invalid.tolist() == [False, True, False, False, False]  # NaN in a seen value; the others are ignored
    assert observed(read.real["pen"]).tolist() == [True, False, False, False, False]


@pytest.mark.parametrize("pair", [False, True])
def test_gradients_through_a_layer_are_finite(pair: bool) -> None:
    values = torch.tensor([[1.0, 2.0], [NAN, NAN], [NAN, 2.0], [3.0, 4.0]], requires_grad=True)
    seen = torch.tensor([True, False, False, True])
    read, _ = read_layer_evidence({"pen": (values, seen) if pair else values}, DOMAINS)
    pen = read.real["pen"]
    torch.where(observed(pen).unsqueeze(1), pen, 0.0).square().sum().backward()
    assert values.grad is not None
    torch.testing.assert_close(values.grad, torch.tensor([[2.0, 4.0], [0.0, 0.0], [0.0, 0.0], [6.0, 8.0]]))


def test_evidence_of_a_layer_compiles() -> None:
    def total(pen: torch.Tensor, picture: torch.Tensor, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        read, invalid = read_layer_evidence({"pen": pen, "picture": (picture, seen)}, DOMAINS)
        return sum(torch.where(x.isnan(), 0.0, x).sum() for x in read.real.values()), invalid  # type: ignore[return-value]

    given = (PEN, torch.ones(3, 1, 2, 3), SEEN)
    compiled = torch.compile(total, fullgraph=True, backend="eager")
    for found, expected in zip(compiled(*given), total(*given), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_layer_on_the_meta_device() -> None:
    given = {
        "pen": (PEN.to("meta"), SEEN.to("meta")),
        "picture": torch.zeros(3, 1, 2, 3, dtype=torch.uint8, device="meta"),
    }
    read, invalid = read_layer_evidence(given, DOMAINS, device="meta")
    assert (invalid.shape, read.real["picture"].shape) == ((3,), (3, 1, 2, 3))
    assert read.real["picture"].dtype == torch.float32


@pytest.mark.parametrize("rows", [0, 1])
def test_few_rows_in_a_layer(rows: int) -> None:
    read, invalid = read_layer_evidence({"picture": torch.zeros(rows, 1, 2, 3, dtype=torch.uint64)}, DOMAINS)
    assert read.real["picture"].shape == (rows, 1, 2, 3)
    assert invalid.tolist() == [False] * rows


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (torch.zeros(3), ShapeError, r"expected values of shape \(rows, 2\); got float32 of shape \(3,\)"),
        (torch.zeros(3, 3), ShapeError, r"expected values of shape \(rows, 2\); got float32 of shape \(3, 3\)"),
        ((PEN, SEEN.float()), DataError, "booleans as seen.*got float32"),
        ((PEN, SEEN[:2]), ShapeError, r"seen of shape \(3,\).*got shape \(2,\)"),
        (
            (PEN, [True, False, True]),
            DataError,
            r"takes tensors of values, or pairs of tensors \(values, seen\), got tuple",
        ),
        (PEN.numpy(), DataError, "takes tensors of values"),
        ((torch.tensor(1.0), torch.tensor([True])), ShapeError, r"\(rows, 2\); got float32 of shape \(\)"),
    ],
)
def test_mistakes_in_the_evidence_of_a_layer_raise(value: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        read_layer_evidence({"pen": value}, DOMAINS)


def test_pairs_are_for_variables_with_a_shape() -> None:
    pair: Any = (torch.tensor([0, 1]), torch.tensor([True, False]))
    with pytest.raises(DataError, match=r"states .* or weights, got tuple"):
        read_layer_evidence({"x": pair}, DOMAINS)


# -- whatever is passed ------------------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(st.one_of(odd_columns(), st.tuples(odd_columns(), odd_columns())))
def test_odd_values_are_read_or_raise(value: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            evidence = read_evidence({"pen": value}, DOMAINS)
        except TorchPBPError:
            pass
        else:
            pen = evidence.real["pen"].detach()
            assert pen.shape == (evidence.batch, 2)
            assert not pen[observed(pen)].isnan().any()
        try:
            (table,) = ColumnReader({"pen": DOMAINS["pen"]}, missing=True).tables({"pen": value})
        except TorchPBPError:
            pass
        else:
            assert table["pen"].shape[1:] == (2,)
        try:
            read, invalid = read_layer_evidence({"pen": value}, DOMAINS)
        except TorchPBPError:
            return
        assert read.real["pen"].shape == (len(invalid), 2)
