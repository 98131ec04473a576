"""Labelled contraction against numpy's einsum and plain sums."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchpbp.exact.contraction import contract


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Each test draws the same numbers, whichever ran before it."""
    torch.manual_seed(0)


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[np.ndarray], list[tuple[str, ...]], tuple[str, ...]]:
    sizes = {v: draw(st.integers(1, 3)) for v in "abcdef"}
    scope = st.lists(st.sampled_from("abcdef"), unique=True, max_size=4).map(tuple)
    scopes = draw(st.lists(scope, min_size=1, max_size=7).filter(any))
    output = tuple(draw(st.lists(st.sampled_from(sorted(set().union(*scopes))), unique=True)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return [rng.normal(size=[sizes[v] for v in scope]) for scope in scopes], scopes, output


def brute_force(operands: list[np.ndarray], scopes: list[tuple[str, ...]], output: tuple[str, ...]) -> np.ndarray:
    names = sorted({v for scope in scopes for v in scope})
    table = np.ones([1] * len(names))
    for operand, scope in zip(operands, scopes, strict=True):
        order = sorted(range(len(scope)), key=lambda i: scope[i])
        sizes = iter(operand.transpose(order).shape)
        table = table * operand.transpose(order).reshape([next(sizes) if v in scope else 1 for v in names])
    kept = [v for v in names if v in output]
    summed = table.sum(axis=tuple(i for i, v in enumerate(names) if v not in output))
    return summed.transpose([kept.index(v) for v in output])


@given(problem=problems())
def test_matches_a_product_over_all_cells(problem):
    operands, scopes, output = problem
    result = contract([torch.from_numpy(x) for x in operands], scopes, output)
    np.testing.assert_allclose(result.numpy(), brute_force(operands, scopes, output), atol=1e-12)


def test_one_operand_is_summed_and_permuted():
    table = torch.arange(24.0).reshape(2, 3, 4)
    torch.testing.assert_close(contract([table], ["abc"], "ca"), table.sum(dim=1).T)
    torch.testing.assert_close(contract([table], ["abc"], ""), table.sum())


def test_scalars_and_empty_scopes():
    three, vector = torch.tensor(3.0), torch.tensor([1.0, 2.0])
    assert float(contract([three], [()], ())) == 3.0
    torch.testing.assert_close(contract([three, vector, three], [(), ("a",), ()], ("a",)), vector * 9)


def test_labels_may_be_any_hashable():
    marker = object()
    left, right = torch.rand(5, 2), torch.rand(5, 3)
    torch.testing.assert_close(
        contract([left, right], [(marker, "x"), (marker, ("y", 1))], (marker, "x", ("y", 1))),
        left.unsqueeze(2) * right.unsqueeze(1),
    )


def test_more_labels_than_letters():
    """A long chain has more labels in all than einsum has letters; each step has few."""
    count = 150
    tables = [torch.rand(2, 2, dtype=torch.float64) for _ in range(count)]
    expected = tables[0]
    for table in tables[1:]:
        expected = expected @ table
    scopes = [(f"v{i}", f"v{i + 1}") for i in range(count)]
    torch.testing.assert_close(contract(tables, scopes, ("v0", f"v{count}")), expected)


def test_the_same_form_with_other_labels_and_values_gives_other_results():
    a, b, c = (torch.rand(3, 3) for _ in range(3))
    first = contract([a, b, c], ["xy", "yz", "zw"], "xw")
    second = contract([b, c, a], ["pq", "qr", "rs"], "ps")
    torch.testing.assert_close(first, a @ b @ c)
    torch.testing.assert_close(second, b @ c @ a)


def test_gradients():
    tables = [torch.rand(2, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    scopes = [("a", "b"), ("c", "b"), ("a", "d")]
    assert torch.autograd.gradcheck(lambda *t: contract(t, scopes, ("d", "c")), tables)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_is_kept(dtype):
    assert contract([torch.ones(2, dtype=dtype)] * 3, ["a", "a", "a"], "").dtype == dtype
