"""Regressions of separators: targets, and features of rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from torchpbp.features.maps import Nystroem, OneHot
from torchpbp.learning.regressions import Regression, leading_directions, projected, targets_of
from torchpbp.moments.rows import TrainingRows

STATES = {"a": 2, "b": 3, "c": 4, "d": 3, "e": 2}
GENERATOR = torch.Generator()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Each test draws the same numbers, whichever ran before it."""
    GENERATOR.manual_seed(0)
    torch.manual_seed(0)


def discrete_rows(count: int = 40) -> TrainingRows:
    table = {v: torch.randint(s, (count,), generator=GENERATOR) for v, s in STATES.items()}
    return TrainingRows.of(table, {v: OneHot(s) for v, s in STATES.items()})


def mixed_rows(count: int = 40) -> TrainingRows:
    table = {v: torch.randint(s, (count,), generator=GENERATOR) for v, s in STATES.items() if v != "c"}
    table["c"] = torch.randn(count, generator=GENERATOR, dtype=torch.float64)
    maps = {v: OneHot(s) for v, s in STATES.items()} | {"c": Nystroem(3)}
    maps["c"].fit(table["c"])
    return TrainingRows.of(table, maps)


def regression(rows: TrainingRows, inputs: str, *groups: str, sizes: tuple[int, ...]) -> Regression:
    """Random projections of the groups, with an offset."""
    dims = [torch.Size([rows.maps[v].dim for v in g]).numel() for g in groups]
    matrices = [torch.randn(d, m, dtype=torch.float64, generator=GENERATOR) for d, m in zip(dims, sizes, strict=True)]
    offset = torch.randn(torch.Size(sizes).numel(), dtype=torch.float64, generator=GENERATOR)
    return Regression(inputs, tuple(inputs), tuple(tuple(g) for g in groups), tuple(matrices), offset)


def group_feature(rows: TrainingRows, row: int, group: tuple[str, ...]) -> torch.Tensor:
    """Kronecker product of the variables' features of one row, the slow way."""
    result = torch.ones(1, dtype=torch.float64)
    for v in group:
        value = rows.values[row : row + 1, rows.names.index(v)]
        value = value.long() if isinstance(rows.maps[v], OneHot) else value
        result = torch.kron(result, rows.maps[v].features(value)[0])
    return result


def some_regressions(rows: TrainingRows) -> list[Regression]:
    """Two of one shape, one with two factors, one with fewer inputs and another shape."""
    return [
        regression(rows, "bde", "a", sizes=(2,)),
        regression(rows, "ad", "e", sizes=(2,)),
        regression(rows, "cd", "a", "be", sizes=(2, 3)),
        regression(rows, "a", "cd", sizes=(4,)),
    ]


@pytest.mark.parametrize("make", [discrete_rows, mixed_rows])
def test_targets_equal_products_computed_row_by_row(make):
    rows = make()
    regressions = some_regressions(rows)
    targets = targets_of(regressions, rows)(rows)
    for r, y in zip(regressions, targets, strict=True):
        for row in range(len(rows)):
            expected = torch.ones(1, dtype=torch.float64)
            for group, matrix in zip(r.groups, r.matrices, strict=True):
                expected = torch.kron(expected, matrix.T @ group_feature(rows, row, group))
            torch.testing.assert_close(y[row], expected - r.offset)


@pytest.mark.parametrize("make", [discrete_rows, mixed_rows])
def test_leaves_of_rows_are_features_of_each_variable(make):
    rows = make()
    leaves = rows.leaves()
    assert list(leaves.features) == list(rows.names)
    assert bool(leaves.seen.all())
    for v, features in leaves.features.items():
        expected = torch.stack([group_feature(rows, row, (v,)) for row in range(len(rows))])
        torch.testing.assert_close(features, expected)
        assert torch.equal(leaves.inputs[v], features)


def test_leading_directions_span_what_varies():
    rows = mixed_rows(200)
    wide = regression(rows, "b", "cd", sizes=(12,))
    matrix = torch.linalg.qr(torch.randn(12, 12, dtype=torch.float64, generator=GENERATOR)).Q
    flat = replace(
        wide, matrices=(wide.matrices[0] @ matrix[:, :3] @ matrix[:, :3].T,), offset=torch.zeros(12).double()
    )
    (directions,) = leading_directions([flat], rows, [1])
    assert directions.shape[1] <= 3
    (enough,) = leading_directions([flat], rows, [5])
    assert enough.shape[1] == 5
    y = targets_of([flat], rows)(rows)[0]
    torch.testing.assert_close(targets_of([projected(flat, enough)], rows)(rows)[0], y @ enough)
    torch.testing.assert_close(y @ enough @ enough.T, y)
