"""Nets of all separators as one module."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchpbp.features.maps import Nystroem, OneHot
from torchpbp.learning.nets import StageOneNets
from torchpbp.learning.regressions import Regression
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
    nets = StageOneNets(regressions, rows, 1, [3], 0, torch.float64)
    for members, targets in zip(nets.members, nets.targets, strict=True):
        y = targets(rows)
        for s, i in enumerate(members):
            r = regressions[i]
            for row in range(len(rows)):
                expected = torch.ones(1, dtype=torch.float64)
                for group, matrix in zip(r.groups, r.matrices, strict=True):
                    expected = torch.kron(expected, matrix.T @ group_feature(rows, row, group))
                torch.testing.assert_close(y[row, s], expected - r.offset)


@pytest.mark.parametrize("make", [discrete_rows, mixed_rows])
def test_each_net_equals_an_ordinary_one(make):
    """Inputs of a net are its variables' features one after the other; padding does not reach it."""
    rows = make()
    regressions = some_regressions(rows)
    nets = StageOneNets(regressions, rows, 2, [5, 4], 0, torch.float64)
    for parameter in nets.parameters():  # the output starts at 0; make it tell something
        nn.init.normal_(parameter)
    fold = torch.arange(len(rows)) % 2
    predictions = nets.predict(rows, fold)
    for members, bank in zip(nets.members, nets.banks, strict=True):
        outputs = bank.outputs
        for s, i in enumerate(members):
            for row in range(0, len(rows), 7):
                net = s, int(fold[row])
                x = torch.cat([group_feature(rows, row, (v,)) for v in regressions[i].inputs])
                z = bank.first[net][:, : len(x)] @ x + bank.first[net][:, -1]
                h = torch.relu(z[outputs:])
                h = torch.relu(bank.weights[0][net] @ h + bank.biases[0][net].squeeze(1))
                h = bank.weights[1][net] @ h + bank.biases[1][net].squeeze(1)
                torch.testing.assert_close(predictions[i][row], (z[:outputs] + h).detach())


def test_losses_count_the_rows_they_are_told_to():
    rows = discrete_rows()
    nets = StageOneNets(some_regressions(rows), rows, 2, [3], 0, torch.float64)
    counted = torch.zeros(2, len(rows), dtype=torch.float64)
    counted[0, :10], counted[1, 10:] = 1.0, 2.0
    first = nets.losses(rows[:10], torch.ones(2, 10, dtype=torch.float64))
    rest = nets.losses(rows[10:], torch.ones(2, len(rows) - 10, dtype=torch.float64))
    torch.testing.assert_close(nets.losses(rows, counted), torch.stack([first[0], 2 * rest[1]]))


def test_the_best_state_is_kept_for_each_net_by_itself():
    rows = discrete_rows()
    nets = StageOneNets(some_regressions(rows), rows, 2, [3], 0, torch.float64)
    fold = torch.zeros(len(rows), dtype=torch.int64)
    for parameter in nets.parameters():
        nn.init.normal_(parameter)
    early = [nets.predict(rows, fold + k) for k in range(2)]
    assert nets.keep_best(torch.full((2, 4), 5.0)) == 8
    for parameter in nets.parameters():
        nn.init.normal_(parameter)
    late = [nets.predict(rows, fold + k) for k in range(2)]
    loss = torch.full((2, 4), 6.0)
    loss[0, 2] = loss[1, 3] = 4.0
    loss[1, 0] = torch.nan  # no improvement
    assert nets.keep_best(loss) == 2
    nets.restore_best()
    for k in range(2):
        found = nets.predict(rows, fold + k)
        for i in range(4):
            torch.testing.assert_close(found[i], (late if (k, i) in ((0, 2), (1, 3)) else early)[k][i])


def test_nets_without_hidden_layers_are_linear():
    rows = discrete_rows()
    nets = StageOneNets(some_regressions(rows), rows, 1, [], 0, torch.float64)
    assert {name.split(".")[-1] for name, _ in nets.named_parameters()} == {"first"}
    assert all(bool((p == 0).all()) for p in nets.predict(rows, torch.zeros(len(rows), dtype=torch.int64)))
