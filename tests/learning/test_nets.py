"""Nets of all separators as one module."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torchpbp.learning.nets import HiddenNets, Inputs, NetsInTraining

from torchpbp.features.maps import Nystroem, OneHot
from torchpbp.learning.regressions import Regression, families, leading_directions, projected, targets_of
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


def hidden_nets(rows: TrainingRows, regressions: list[Regression], folds: int, hidden: list[int]) -> HiddenNets:
    dims = {v: rows.maps[v].dim for v in rows.names}
    nets = HiddenNets(Inputs([r.inputs for r in regressions], dims), folds, hidden, torch.float64)
    nets.start(torch.Generator().manual_seed(0))
    return nets


def nets_in_training(rows: TrainingRows, folds: int, hidden: list[int]) -> tuple[NetsInTraining, list[torch.Tensor]]:
    """Nets of some regressions, and the targets of all rows by family."""
    regressions = some_regressions(rows)
    members, targets = zip(*families(regressions, rows), strict=True)
    sizes = [t.offset.shape[1] for t in targets]
    return NetsInTraining(hidden_nets(rows, regressions, folds, hidden), members, sizes), [t(rows) for t in targets]


def outputs(nets: NetsInTraining, rows: TrainingRows) -> list[torch.Tensor]:
    """Per separator (K, outputs, rows)."""
    eta = nets.hidden.eta(nets.hidden.inputs.of_rows(rows, torch.float64))
    return [layer @ own for layer, own in zip(nets.last_layers(), eta, strict=True)]


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
def test_each_net_equals_an_ordinary_one(make):
    """Inputs of a net are its variables' features one after the other; padding does not reach it."""
    rows = make()
    regressions = some_regressions(rows)
    nets = hidden_nets(rows, regressions, 2, [5, 4])
    for parameter in nets.parameters():
        nn.init.normal_(parameter)
    eta = nets.eta(nets.inputs.of_rows(rows, torch.float64)).detach()
    for s, r in enumerate(regressions):
        for k in range(2):
            for row in range(0, len(rows), 7):
                x = torch.cat([group_feature(rows, row, (v,)) for v in r.inputs])
                z = nets.weights[0][s, k][:, : len(x)] @ x + nets.weights[0][s, k][:, -1]
                h = nets.weights[1][s, k] @ torch.relu(z) + nets.biases[0][s, k].squeeze(1)
                own = eta[s, k, :, row]
                torch.testing.assert_close(own[: len(x)], x)
                assert float(own[nets.inputs.width - 1]) == 1.0
                torch.testing.assert_close(own[nets.inputs.width :], torch.relu(h).detach())


@pytest.mark.parametrize("make", [discrete_rows, mixed_rows])
def test_rows_and_features_of_evidence_are_read_alike_and_hidden_values_have_no_influence(make):
    rows = make()
    nets = hidden_nets(rows, some_regressions(rows), 2, [5])
    seen = torch.rand(len(rows), len(rows.names), generator=GENERATOR) < 0.6
    columns = {}
    for i, v in enumerate(rows.names):
        values = rows.values[:, i].long() if isinstance(rows.maps[v], OneHot) else rows.values[:, i]
        columns[v] = rows.maps[v].features(values)
    expected = nets.inputs.of_rows(rows, torch.float64, seen)
    torch.testing.assert_close(nets.inputs.of_features(columns, seen, torch.float64), expected)
    noise = {v: torch.where(seen[:, i, None], f, torch.randn_like(f)) for i, (v, f) in enumerate(columns.items())}
    assert torch.equal(
        nets.eta(nets.inputs.of_features(noise, seen, torch.float64)),
        nets.eta(nets.inputs.of_features(columns, seen, torch.float64)),
    )


def test_losses_count_the_rows_they_are_told_to():
    rows = discrete_rows()
    nets, y = nets_in_training(rows, 2, [3])
    for parameter in nets.parameters():
        nn.init.normal_(parameter)
    counted = torch.zeros(2, len(rows), dtype=torch.float64)
    counted[0, :10], counted[1, 10:] = 1.0, 2.0
    first = nets.losses(rows[:10], [t[:10] for t in y], torch.ones(2, 10, dtype=torch.float64))
    rest = nets.losses(rows[10:], [t[10:] for t in y], torch.ones(2, len(rows) - 10, dtype=torch.float64))
    torch.testing.assert_close(nets.losses(rows, y, counted), torch.stack([first[0], 2 * rest[1]]))


def test_losses_are_those_of_the_last_layers():
    rows = mixed_rows()
    nets, y = nets_in_training(rows, 2, [3])
    for parameter in nets.parameters():
        nn.init.normal_(parameter)
    found = nets.losses(rows, y, torch.ones(2, len(rows), dtype=torch.float64))
    predicted = outputs(nets, rows)
    for members, family in zip(nets.members, y, strict=True):
        for s, i in enumerate(members):
            error = (predicted[i] - family[:, s].T).square().mean(dim=1).sum(dim=1)
            torch.testing.assert_close(found[:, i], error)


def test_the_best_state_is_kept_for_each_net_by_itself():
    rows = discrete_rows()
    nets, _ = nets_in_training(rows, 2, [3, 2])
    for parameter in nets.parameters():
        nn.init.normal_(parameter)
    early = outputs(nets, rows)
    assert nets.keep_best(torch.full((2, 4), 5.0)) == 8
    for parameter in nets.parameters():
        nn.init.normal_(parameter)
    late = outputs(nets, rows)
    loss = torch.full((2, 4), 6.0)
    loss[0, 2] = loss[1, 3] = 4.0
    loss[1, 0] = torch.nan  # no improvement
    assert nets.keep_best(loss) == 2
    nets.restore_best()
    found = outputs(nets, rows)
    for k in range(2):
        for i in range(4):
            torch.testing.assert_close(found[i][k], (late if (k, i) in ((0, 2), (1, 3)) else early)[i][k])


def test_nets_without_hidden_layers_are_linear():
    rows = discrete_rows()
    nets, _ = nets_in_training(rows, 1, [])
    assert {name.split(".")[0] for name, p in nets.named_parameters() if p.numel()} == {"linear"}


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
