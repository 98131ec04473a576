"""PBPModule with few rows, odd columns and encoders that fail: the right answer or a clear error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.neural.small import (
    VECTORS,
    Own,
    class_table,
    clone,
    context_model,
    evidence,
    finished,
    mixed_table,
    point_model,
    quiet_trainer,
    train,
)
from torchpbp import PBP, ContextEncoder, Continuous, LatentGraph, Nystroem, PBPModule, PointEncoder, TableLoader
from torchpbp.errors import ArgumentError, DataError, DataWarning, NotFittedError, ShapeError, StructureError
from torchpbp.neural.batches import read_batch


def small_module(graph: LatentGraph, **options: Any) -> PBPModule:
    return PBPModule(point_model(graph, condition="y"), hidden=[4], **options)


def three_classes(graph: LatentGraph) -> LatentGraph:
    variables = {v: graph.variables[v] for v in graph.names}
    return LatentGraph(list(graph.edges), {**variables, "y": 3}, latent=list(graph.latent))


# -- few rows ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [point_model, context_model])
def test_a_class_without_rows(make: Callable[..., PBP]) -> None:
    graph, table = class_table(200, 1)
    module = PBPModule(make(three_classes(graph), condition="y"), hidden=[4])
    with pytest.warns(DataWarning, match="No row has 'y' = 2"):
        train(module, table)
    model = module.model
    with torch.no_grad():
        posterior = model.posterior("y", evidence())
    assert bool(posterior.isfinite().all())
    torch.testing.assert_close(posterior.sum(dim=1), torch.ones(20, dtype=torch.float64))
    assert model.prior.tolist() == pytest.approx([*(torch.bincount(table["y"]) / 200).tolist(), 0.0])
    assert float(posterior[:, 2].max()) < 0.2
    if make is point_model:  # given the class, the model of all rows answers
        answer = model.posterior("e", {"y": torch.full((20,), 2), "a": evidence()["a"]})
        assert bool(answer.isfinite().all())


@pytest.mark.parametrize("make", [point_model, context_model])
def test_one_row_per_class(make: Callable[..., PBP]) -> None:
    graph, table = class_table(50, 1)
    first = [int((table["y"] == c).nonzero()[0]) for c in range(2)]
    rows = {v: x[first] for v, x in table.items()}
    module = PBPModule(make(graph, condition="y"), hidden=[4])
    train(module, rows, 2)
    with torch.no_grad():
        posterior = module.model.posterior("y", evidence())
    assert bool(posterior.isfinite().all())
    assert module.model.class_rows.tolist() == [1, 1]
    assert int(module.skipped) == 0


def test_batches_of_one_row_cannot_be_trained_on_but_can_be_asked_about() -> None:
    graph, table = class_table(3, 1)
    with pytest.raises(DataError, match=r"expected batches of at least 2 rows.*got 1. Raise the batch size"):
        train(small_module(graph), table, batch_size=1)
    model = finished("point-wise").model
    with torch.no_grad():
        one, many = model.posterior("y", {v: x[:1] for v, x in evidence().items()}), model.posterior("y", evidence())
        assert model.posterior("y", {v: x[:0] for v, x in evidence().items()}).shape == (0, 2)
    torch.testing.assert_close(one, many[:1], rtol=1e-5, atol=1e-6)


def test_a_leaf_never_seen_raises_and_one_seen_late_does_not() -> None:
    graph, table = class_table(120, 1)
    never = clone(table)
    never["b"][:] = torch.nan
    with pytest.raises(DataError, match=r"'b' is missing in every row, so nothing can be learned about it. Drop it"):
        train(small_module(graph), never)
    late = clone(table)
    late["b"][:80] = torch.nan
    late["e"][:80] = -1
    module = small_module(graph)
    loader = TableLoader(late, 40, shuffle=False)  # the first two batches do not show it
    quiet_trainer().fit(module, loader)
    assert int(module.skipped) == 0
    assert bool(module.model.posterior("y", evidence()).isfinite().all())


def test_leaves_never_seen_together_raise() -> None:
    """Messages and products need some rows that observe all that they are made of."""
    graph, table = class_table(120, 1)
    for v in VECTORS:
        table[v] = table[v].clone()
    table["a"][::2] = torch.nan
    table["b"][1::2] = torch.nan
    with pytest.raises(DataError, match=r"No row observes all of .*, which must be seen together to be learned"):
        train(small_module(graph), table)


def test_a_leaf_that_is_partly_nan_raises() -> None:
    graph, table = class_table(60, 1)
    table["c"][7, 1] = torch.nan
    module = small_module(graph)
    with pytest.raises(DataError, match=r"batch column 'c', row .*: 1 of 2 entries are NaN"):
        train(module, table)
    with pytest.raises(DataError, match="'c'"):
        module.solve(TableLoader(table, 60, shuffle=False))
    given = evidence()
    given["c"][3, 0] = torch.nan
    with pytest.raises(DataError, match="'c'"):
        finished("point-wise").model.posterior("y", given)


def test_rows_without_any_label_raise() -> None:
    graph, table = class_table(60, 1)
    table["y"][:] = -1
    with pytest.raises(DataError, match=r"'y' is missing in every row"):
        train(small_module(graph), table)


# -- columns -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "leaf"),
    [
        *((kind, "e") for kind in (torch.uint8, torch.uint64, torch.int16, torch.float16, torch.float64)),
        *((kind, "s") for kind in (torch.float16, torch.bfloat16, torch.float64)),
        *((kind, "a") for kind in (torch.float16, torch.float64)),
    ],
)
def test_columns_of_any_kind_of_number(dtype: torch.dtype, leaf: str) -> None:
    graph, table = mixed_table(40, 1)
    model = point_model(graph)
    table["s"] = (table["s"] * 4).round() / 4  # a number that half precision holds
    table["a"] = (table["a"] * 4).round() / 4
    read = read_batch({**table, leaf: table[leaf].to(dtype)}, model, "cpu")
    expected = read_batch(table, model, "cpu")
    torch.testing.assert_close(read[leaf].double(), expected[leaf].double())
    assert read[leaf].dtype in (torch.int64, torch.float32, torch.float64)
    module = PBPModule(model, "e", hidden=[4])
    train(module, {**table, leaf: table[leaf].to(dtype)}, batch_size=40)
    assert int(module.skipped) == 0


def test_states_of_64_unsigned_bits_do_not_wrap_around() -> None:
    graph, table = mixed_table(4, 1)
    column = torch.tensor([0, 1, 2**64 - 1, 2], dtype=torch.uint64)
    with pytest.raises(DataError, match=r"batch column 'e', row 2: state 18446744073709551615 is out of range"):
        read_batch({**table, "e": column}, point_model(graph), "cpu")


def test_missing_states_in_columns_of_fractions() -> None:
    graph, table = mixed_table(4, 1)
    read = read_batch({**table, "e": torch.tensor([0.0, torch.nan, 2.0, -1.0])}, point_model(graph), "cpu")
    assert read["e"].tolist() == [0, -1, 2, -1]


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (
            lambda t: {v: x for v, x in t.items() if v != "a"},
            DataError,
            r"missing columns \['a'\]. The data has: b, c, d, e, s",
        ),
        (lambda t: list(t.values())[:3], DataError, "a tuple of 6 tensors for .*; got list"),
        (lambda t: t["a"], DataError, "a dict of tensors, or a tuple of 6 tensors .*; got Tensor"),
        (
            lambda t: {**t, "a": t["a"][:, :1]},
            ShapeError,
            r"'a': expected values of shape \(rows, 2\); got float32 of shape \(4, 1\)",
        ),
        (lambda t: {**t, "e": t["a"]}, ShapeError, r"'e': expected one state per row.*of shape \(4, 2\)"),
        (lambda t: {**t, "e": torch.tensor(1)}, ShapeError, r"'e': expected one state per row.*of shape \(\)"),
        (lambda t: {**t, "e": t["e"][:2]}, ShapeError, "columns of a batch have different lengths"),
        (
            lambda t: {**t, "e": t["e"] + 9},
            DataError,
            "'e', row 0: state 1?[019] is out of range; expected 0 to 2, or -1 for",
        ),
        (
            lambda t: {**t, "e": t["e"] - 9},
            DataError,
            "'e', row 0: state -[789] is out of range; expected 0 to 2, or -1 for",
        ),
        (lambda t: {**t, "e": t["e"] + 0.5}, DataError, "'e', row 0: expected a whole number from 0 to 2"),
        (lambda t: {**t, "a": t["a"] / 0}, DataError, "'a', row 0, .*: expected finite values, got inf"),
        (lambda t: {**t, "s": t["s"] / 0}, DataError, "'s', row 0: expected a finite value or NaN, got inf"),
        (lambda t: {**t, "s": t["s"] + 1j}, DataError, "'s': expected a tensor of real numbers, got complex64"),
    ],
)
def test_batches_that_cannot_be_read(change: Callable[[Any], Any], error: type[Exception], text: str) -> None:
    graph, table = mixed_table(4, 1)
    table["a"], table["s"] = table["a"].abs() + 1, table["s"].abs() + 1
    with pytest.raises(error, match=f"PBPModule: .*{text}"):
        read_batch(change(table), point_model(graph), "cpu")


def test_batches_may_be_tuples_in_the_order_of_the_observables() -> None:
    graph, table = mixed_table(4, 1)
    model = point_model(graph)
    read = read_batch(tuple(table[v] for v in graph.observed), model, "cpu")
    assert all(torch.equal(read[v], table[v]) for v in graph.observed)


def test_loaders_of_nothing_raise() -> None:
    for table in ({}, {"x": torch.zeros(0)}, {"x": torch.zeros(2), "y": torch.zeros(3)}):
        with pytest.raises(ShapeError, match="TableLoader: expected columns of one length, at least one row"):
            TableLoader(table, 2)
    with pytest.raises(ArgumentError, match="batch_size"):
        TableLoader({"x": torch.zeros(2)}, 0)


def test_loaders_give_every_row_once_in_orders_of_seed_and_epoch() -> None:
    loader = TableLoader({"x": torch.arange(10)}, 4, seed=3)
    assert len(loader) == 3
    batches = [batch["x"] for batch in loader]
    assert sorted(torch.cat(batches).tolist()) == list(range(10))
    assert [len(b) for b in batches] == [4, 3, 3]
    again = torch.cat([batch["x"] for batch in TableLoader({"x": torch.arange(10)}, 4, seed=3)])
    assert torch.equal(torch.cat(batches), again)
    loader.sampler.set_epoch(1)
    assert not torch.equal(torch.cat([batch["x"] for batch in loader]), again)
    plain = TableLoader({"x": torch.arange(10)}, 4, shuffle=False)
    assert torch.cat([batch["x"] for batch in plain]).tolist() == list(range(10))


# -- encoders and arguments --------------------------------------------------------------------------------------------


class Broken(nn.Module):
    """Returns NaN for all but the zeros by which outputs are counted."""

    def forward(self, values: Tensor) -> Tensor:
        return values / values.abs().sum(dim=1, keepdim=True).clamp(min=1e-30).sub(0).mul(
            torch.nan if values.any() else 1
        )


def test_an_encoder_that_returns_nan_is_named() -> None:
    graph, table = class_table(60, 1)
    module = PBPModule(PBP(graph, features=Broken(), condition="y"), hidden=[4], residual=False)
    with pytest.raises(DataError, match=r"The encoder of 'a' returned NaN or infinity. Check its inputs"):
        train(module, table)
    assert int(module.skipped) == 1


class Wide(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return values.unsqueeze(1)


def vector_graph() -> LatentGraph:
    variables = {"h": 2, "x": Continuous(shape=(2,)), "z": Continuous(), "e": 3}
    return LatentGraph([("h", v) for v in "xze"], variables, latent=["h"])


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda g: PBP(g, features=Wide()), ArgumentError, r"'x' must return \(rows, features\), .*got \(2, 1, 2\)"),
        (lambda g: PBP(g, features=nn.Linear(3, 2)), ArgumentError, "could not encode two rows of zeros"),
        (lambda g: PBP(g), StructureError, "x"),
        (lambda g: PBP(g, features=Nystroem()), StructureError, "x"),
        (lambda g: PBP(g, features={"q": Own()}), ArgumentError, "'q' is not a continuous observable. There are: x, z"),
        (lambda g: PBP(g, features={"e": Own()}), ArgumentError, "'e' is not a continuous observable"),
        (lambda g: PBP(g, features={"h": Own()}), ArgumentError, "'h' is not a continuous observable"),
        (lambda g: PBP(g, features={"x": 3}), ArgumentError, "got int for 'x'"),
        (
            lambda g: PBP(g, features={"x": Own(), "z": nn.Linear(1, 2)}, context=True),
            ArgumentError,
            "context=True: expected one encoder for all leaves, got several",
        ),
        (lambda g: PBP(mixed_table(1, 1)[0], context=True), ArgumentError | StructureError, "encoder"),
        (lambda g: PBP(g, features=Own(), context=True), ArgumentError, "could not encode"),
        (lambda g: PBP(g, features=Own(), condition="x"), StructureError, "x"),
        (lambda g: PBPModule(3), ArgumentError, "model: expected a torchpbp.PBP model"),
        (
            lambda g: PBPModule(PBP(g, features=Own()), "q"),
            ArgumentError,
            "target: expected a discrete observable, one of e",
        ),
        (lambda g: PBPModule(PBP(g, features=Own()), "x"), ArgumentError, "target: .* got 'x'"),
        (lambda g: PBPModule(PBP(g, features=Own()), "h"), ArgumentError, "target: .* got 'h'"),
        (lambda g: PBPModule(PBP(g, features=Own()), hide=1.5), ArgumentError, "hide"),
        (lambda g: PBPModule(PBP(g, features=Own()), support=-1), ArgumentError, "support"),
        (lambda g: PBPModule(PBP(g, features=Own()), hidden=[0]), ArgumentError, "hidden"),
        (lambda g: PBPModule(PBP(g, features=Own()), gradient="none"), ArgumentError, "gradient"),
        (lambda g: PBPModule(PBP(g, features=Own()), learning_rate=0), ArgumentError, "learning_rate"),
        (lambda g: PointEncoder((2,), features=0), ArgumentError, "features"),
        (lambda g: ContextEncoder([], (2,)), ArgumentError, "leaves: expected one or more names"),
        (lambda g: ContextEncoder(["x", "x"], (2,)), ArgumentError, "leaves: .* each once"),
    ],
)
def test_arguments_that_are_wrong(make: Callable[[LatentGraph], Any], error: Any, text: str) -> None:
    with pytest.raises(error if isinstance(error, type) else (ArgumentError, StructureError), match=text):
        make(vector_graph())


def test_a_context_encoder_needs_a_target() -> None:
    graph = mixed_table(1, 1)[0]
    with pytest.raises(ArgumentError, match=r"a context encoder is trained to answer about a target. Give target="):
        PBPModule(context_model(graph))


def test_a_context_encoder_without_values_of_its_leaves_raises() -> None:
    encoder = ContextEncoder(["a", "q"], (2,))
    with pytest.raises(DataError, match=r"expected values and marks of a, q; missing: \['q'\]"):
        encoder({"a": torch.zeros(2, 2)}, {"a": torch.ones(2, dtype=torch.bool)})


def test_validating_a_module_that_was_never_trained_raises() -> None:
    graph, table = class_table(10, 1)
    with pytest.raises(NotFittedError, match="not fitted yet"):
        quiet_trainer().validate(small_module(graph), TableLoader(table, 10), verbose=False)
