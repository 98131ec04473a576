"""Evidence on vectors and images, asked of a fitted model and of its layer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from torchpbp import PBP, Continuous, LatentGraph, PBPLayer
from torchpbp.errors import DataError, ShapeError

GRAPH = LatentGraph(
    [("h", "picture"), ("h", "pen"), ("h", "x"), ("h", "y")],
    {"h": 2, "picture": Continuous(shape=(1, 2, 3)), "pen": Continuous(shape=(2,)), "x": 3, "y": 2},
    latent=["h"],
)
ROWS = 300


def table() -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    kind = torch.randint(2, (ROWS,), generator=draw)
    pictures = torch.randn(ROWS, 1, 2, 3, generator=draw) + kind.view(-1, 1, 1, 1)
    pictures[::10] = math.nan
    flips = torch.randint(2, (ROWS,), generator=draw)
    return {
        "picture": pictures,
        "pen": torch.randn(ROWS, 2, generator=draw) - kind.view(-1, 1),
        "x": kind + flips,
        "y": kind,
    }


def make() -> PBP:
    torch.manual_seed(0)
    encoders = {"picture": nn.Sequential(nn.Flatten(), nn.Linear(6, 2)), "pen": nn.Linear(2, 2)}
    model = PBP(GRAPH, features=encoders)
    model.attach_nets(hidden=(8,))
    return model


@pytest.fixture(scope="module")
def model() -> PBP:
    return make().fit(table())


@pytest.fixture(scope="module")
def evidence() -> dict[str, Tensor]:
    return {"picture": torch.randn(4, 1, 2, 3, generator=torch.Generator().manual_seed(1)), "pen": torch.zeros(4, 2)}


def test_missing_values_are_shares_of_leaves(model: PBP) -> None:
    assert model.missing == pytest.approx({"picture": 0.1, "pen": 0.0, "x": 0.0, "y": 0.0})


def test_what_is_not_seen_has_no_influence(model: PBP, evidence: dict[str, Tensor]) -> None:
    seen = torch.tensor([True, False, True, False])
    noise = {**evidence, "picture": (torch.where(seen.view(-1, 1, 1, 1), evidence["picture"], math.inf), seen)}
    without = {**evidence, "picture": evidence["picture"].masked_fill(~seen.view(-1, 1, 1, 1), math.nan)}
    answers = [model.posterior("y", given) for given in (noise, without)]
    assert torch.equal(*answers)
    assert torch.equal(PBPLayer(model)(noise)["y"], PBPLayer(model)(without)["y"])
    rest = model.posterior("y", {"pen": evidence["pen"]})
    torch.testing.assert_close(answers[0][~seen], rest[~seen])
    assert (answers[0][seen] - rest[seen]).abs().max() > 1e-3


@pytest.mark.parametrize("rows", [0, 1])
def test_few_rows(model: PBP, evidence: dict[str, Tensor], rows: int) -> None:
    given = {v: x[:rows] for v, x in evidence.items()}
    assert model.posterior("y", given).shape == (rows, 2)
    assert model.log_evidence(given).shape == (rows,)
    assert PBPLayer(model)(given)["y"].shape == (rows, 2)


def test_one_value_is_one_row(model: PBP, evidence: dict[str, Tensor]) -> None:
    alone = model.posterior("y", {"picture": evidence["picture"][0]})
    torch.testing.assert_close(alone, model.posterior("y", {"picture": evidence["picture"]})[:1])


def test_a_frame_of_arrays_gives_a_frame(model: PBP, evidence: dict[str, Tensor]) -> None:
    frame = pd.DataFrame({"picture": [evidence["picture"][0].numpy(), None], "x": [0, 1]}, index=["Ann", "Ben"])
    answer = model.posterior("y", frame)
    assert list(answer.index) == ["Ann", "Ben"]
    expected = model.posterior("y", {"picture": [evidence["picture"][0], None], "x": [0, 1]})
    torch.testing.assert_close(torch.tensor(answer.to_numpy()), expected.detach())


def test_gradients_reach_the_values_that_are_seen(model: PBP, evidence: dict[str, Tensor]) -> None:
    values = evidence["picture"].clone().requires_grad_()
    seen = torch.tensor([True, False, True, True])
    for ask in (lambda e: model.posterior("y", e), lambda e: PBPLayer(model)(e)["y"]):
        (gradient,) = torch.autograd.grad(ask({"picture": (values, seen)})[:, 0].sum(), values)
        assert gradient.isfinite().all()
        assert gradient.flatten(1).any(dim=1).tolist() == seen.tolist()


@pytest.mark.parametrize(
    ("pictures", "error", "text"),
    [
        (torch.zeros(2, 2, 3), ShapeError, r"expected values of shape \(rows, 1, 2, 3\)"),
        (torch.tensor([[[[0.0, math.nan, 0.0], [0.0, 0.0, 0.0]]]]), DataError, "1 of 6 entries are NaN"),
    ],
)
def test_mistakes_raise(model: PBP, pictures: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        model.posterior("y", {"picture": pictures})


def test_a_bad_pixel_in_a_layer_makes_its_row_invalid(model: PBP, evidence: dict[str, Tensor]) -> None:
    pictures = evidence["picture"].clone()
    pictures[2, 0, 1, 1] = math.nan
    answer = PBPLayer(model)({"picture": pictures})["y"]
    assert answer.isnan().all(dim=1).tolist() == [False, False, True, False]


def test_images_that_are_never_seen_raise() -> None:
    with pytest.raises(DataError, match=r"'picture'.*missing"):
        make().fit({**table(), "picture": [None] * ROWS})


def test_arrays_of_bytes_and_tensors_give_the_same_model() -> None:
    rows = table()
    pictures = torch.randint(256, (ROWS, 1, 2, 3), generator=torch.Generator().manual_seed(2), dtype=torch.uint8)
    frame = pd.DataFrame({**{v: list(x.numpy()) for v, x in rows.items()}, "picture": list(pictures.numpy())})
    one, other = make().fit({**rows, "picture": pictures.float()}), make().fit(frame)
    asked = {"picture": np.full((1, 2, 3), 100, dtype=np.uint8)}
    torch.testing.assert_close(one.posterior("y", asked), other.posterior("y", asked))
