"""Files of kernel models: what was learned comes back bit for bit, and nothing that could not."""

from __future__ import annotations

import copy
import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import torchpbp
from tests.models.kernel.rows import hidden_parts, mixed, mixed_graph, stroke_graph, strokes
from torchpbp import RBF, KernelPBP, Matern
from torchpbp.errors import CheckpointError

POINTS = [("x1", "x2", "x3", "x4", "x5")]
SETTINGS: dict[str, dict[str, Any]] = {
    "exact": {},
    "low rank": {"landmarks": 15, "seed": 4, "core_leaves": 2},
    "double": {"dtype": torch.float64, "positive": False, "ridge": (0.5, 0.01), "root": ["h1"]},
    "increments": {"sequences": POINTS, "bandwidth": 0.7, "evidence_bandwidth": 0.4},
    "by name": {"bandwidth": {v: np.float64(0.4 + 0.1 * i) for i, v in enumerate(stroke_graph().observed)}},
    "other kernel": {"kernel": Matern(2.5), "fill": "mean", "instrument_leaves": 1},
}


def gappy(rows: int, seed: int) -> dict[str, torch.Tensor]:
    """Training rows with missing values, none of them empty."""
    return {**hidden_parts(rows, seed), "x1": strokes(rows, seed)["x1"]}


def same(a: Any, b: Any) -> bool:
    """Equal to the last bit, NaN included."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a.nan_to_num(1e300), b.nan_to_num(1e300))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return same(vars(a), vars(b)) if hasattr(a, "points") else bool(a == b)


@pytest.mark.parametrize("operators", [None, True, False])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_kernel_model_comes_back_bit_for_bit(name: str, operators: bool | None, tmp_path: Path) -> None:
    model = KernelPBP(stroke_graph(), **SETTINGS[name]).fit(gappy(60, 1))
    model.save(tmp_path / "model.pt", operators)
    loaded = torchpbp.load(tmp_path / "model.pt")
    assert type(loaded) is KernelPBP
    assert same(dict(loaded.state_dict()), dict(model.state_dict()))
    assert loaded.missing == model.missing
    assert sum(loaded.missing.values()) > 0
    new = hidden_parts(12, seed=2)
    assert same(loaded.log_evidence(new), model.log_evidence(new))
    given = {v: new[v] for v in ("x1", "x2", "x3", "x4", "x5")}  # y has a density, compared by increments or not
    given = {v: x.nan_to_num(0.5) for v, x in given.items()}
    assert same(loaded.posteriors(given), model.posteriors(given))
    if name != "other kernel":
        assert same(loaded.sample(3, given, seed=0), model.sample(3, given, seed=0))


@pytest.mark.parametrize("name", SETTINGS)
def test_a_loaded_model_learns_as_the_one_that_was_saved(name: str, tmp_path: Path) -> None:
    """All settings are in the file: fitted to other rows, both come to the same model."""
    model = KernelPBP(stroke_graph(), **SETTINGS[name]).fit(strokes(30))
    model.save(tmp_path / "model.pt")
    loaded = KernelPBP.load(tmp_path / "model.pt").fit(gappy(40, 5))
    again = copy.deepcopy(model).fit(gappy(40, 5))
    assert same(dict(loaded.state_dict()), dict(again.state_dict()))
    assert not torch.equal(again.examples[:30], model.examples)


def test_labels_come_back_and_are_understood(tmp_path: Path) -> None:
    table = pd.DataFrame(mixed(60, 0)).astype({"c": object})
    table["c"] = pd.Categorical.from_codes(table["c"].astype(int), ["red", "green", "blue"])
    model = KernelPBP(mixed_graph()).fit(table)
    model.save(tmp_path / "model.pt")
    loaded = torchpbp.load(tmp_path / "model.pt")
    evidence = {"c": ["blue", None]}
    assert same(loaded.posterior("x", evidence), model.posterior("x", evidence))
    assert loaded.posterior("c", pd.DataFrame({"x": [0.1]})).columns.tolist() == ["red", "green", "blue"]


def test_operators_are_written_where_solving_for_them_takes_long(tmp_path: Path) -> None:
    def size(operators: bool | None, **settings: Any) -> int:
        KernelPBP(stroke_graph(), **settings).fit(strokes(200)).save(tmp_path / "model.pt", operators)
        return (tmp_path / "model.pt").stat().st_size

    rows = 200 * 10 * 8
    exact, thin = 2 * 200 * 200 * 4, 2 * 2 * 50 * 200 * 4  # two separators above more than one leaf
    assert size(None) > exact
    assert size(False) < 2 * rows < exact
    assert size(None, landmarks=50) < 2 * rows
    assert size(True, landmarks=50) > thin / 2


class Own(RBF):
    """A kernel that no file can hold."""


def test_what_cannot_be_read_back_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    with pytest.raises(
        CheckpointError, match=r"Kernel Own cannot be saved: a model file holds no code\. Use RBF, Laplace"
    ):
        KernelPBP(stroke_graph(), kernel=Own()).fit(strokes(10)).save(path)
    table = pd.DataFrame(mixed(30, 0))
    days = [datetime.date(2020, 1, d) for d in (1, 2, 3)]
    for labels in (days, pd.to_datetime(days)):
        table["c"] = pd.Categorical.from_codes(mixed(30, 0)["c"].numpy(), labels)
        with pytest.raises(CheckpointError, match=r"labels\.c\.0: got .*2020.*Give it as a number or string"):
            KernelPBP(mixed_graph()).fit(table).save(path)
    assert not list(tmp_path.iterdir())


def test_models_are_put_on_the_device_asked_for(tmp_path: Path) -> None:
    KernelPBP(stroke_graph()).fit(strokes(20)).save(tmp_path / "kernel.pt")
    found = KernelPBP.load(tmp_path / "kernel.pt", map_location="meta")  # stands in for a GPU
    assert {b.device.type for b in found.buffers()} == {"meta"}
