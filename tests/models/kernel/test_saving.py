"""Files of kernel models and of averages: what was learned comes back bit for bit, and nothing that could not."""

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
from torchpbp import PBP, RBF, KernelPBP, Laplace, Matern, ScoreAverage, templates
from torchpbp.contract.abilities import Learner
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
        with pytest.raises(CheckpointError, match=r"labels, c: got .*2020.*Give it as a number or string"):
            KernelPBP(mixed_graph()).fit(table).save(path)
    assert not list(tmp_path.iterdir())


def test_numbers_of_numpy_are_written_as_numbers(tmp_path: Path) -> None:
    model = KernelPBP(mixed_graph(), seed=np.int64(3), landmarks=np.int32(5), bandwidth=np.float64(0.5)).fit(
        mixed(20, 0)
    )
    model.save(tmp_path / "kernel.pt")
    assert KernelPBP.load(tmp_path / "kernel.pt").settings.landmarks == 5
    graph = templates.naive_bayes(3, 2, 2)
    data = torchpbp.DiscreteNetwork.random(graph, seed=0).sample(50, seed=1)
    PBP(graph, rank=np.int64(2)).fit(data).save(tmp_path / "pbp.pt")
    assert PBP.load(tmp_path / "pbp.pt").settings.rank == 2


def test_files_of_others_raise(tmp_path: Path) -> None:
    KernelPBP(stroke_graph()).fit(strokes(10)).save(tmp_path / "kernel.pt")
    ScoreAverage([KernelPBP(stroke_graph())]).fit(strokes(10)).save(tmp_path / "average.pt")
    with pytest.raises(
        CheckpointError, match=r"holds no KernelPBP model but one of ScoreAverage. Use torchpbp.load\(\)"
    ):
        KernelPBP.load(tmp_path / "average.pt")
    with pytest.raises(CheckpointError, match="holds no ScoreAverage"):
        ScoreAverage.load(tmp_path / "kernel.pt")
    with pytest.raises(CheckpointError, match="holds no PBP model but one of KernelPBP"):
        PBP.load(tmp_path / "kernel.pt")


@pytest.mark.parametrize(
    "key", ["operators", "examples", "scales", "specification", "dtype", "dtype that is none", "kernel"]
)
def test_parts_that_do_not_fit_together_raise(key: str, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    KernelPBP(stroke_graph()).fit(strokes(20)).save(path)
    saved = torch.load(path, weights_only=True)
    other = {
        "operators": dict(list(saved["operators"].items())[1:]),
        "examples": saved["examples"][:, 1:],
        "scales": saved["scales"][:2],
        "specification": saved["specification"][1:],
        "dtype": "float7",
        "dtype that is none": "load",
        "kernel": {"kernel": "Own"},
    }
    torch.save({**saved, key.split()[0]: other[key]}, path)
    with pytest.raises(CheckpointError, match=r"model.pt'"):
        torchpbp.load(path)


# -- averages --------------------------------------------------------------------------------------------------------


def average(**changes: Any) -> ScoreAverage:
    graph, clique = stroke_graph(), templates.pen_clique(5, low=-9.0, high=9.0)
    members = [
        KernelPBP(graph, landmarks=10, bandwidth=0.8),
        KernelPBP(clique, bandwidth=0.6, kernel=Laplace()),
        PBP(graph, rank=2, features=torchpbp.Nystroem(4)),
        ScoreAverage([KernelPBP(clique, bandwidth=0.9), KernelPBP(graph, sequences=POINTS)], weights=[1, 2]),
    ]
    return ScoreAverage(members, **{"weights": [3, 1, 1, 2.5], "floor": -50.0, **changes})


def test_an_average_of_all_kinds_comes_back_bit_for_bit(tmp_path: Path) -> None:
    model = average().fit(strokes(60))
    model.save(tmp_path / "model.pt")
    loaded = torchpbp.load(tmp_path / "model.pt")
    assert [type(m) for m in loaded.members] == [type(m) for m in model.members]
    assert loaded.settings == model.settings
    new = strokes(9, seed=1)
    assert same(loaded.log_evidence(new), model.log_evidence(new))
    del new["x2"]
    assert same(loaded.posterior("x2", new), model.posterior("x2", new))


def test_rows_that_members_share_are_written_once(tmp_path: Path) -> None:
    members = [KernelPBP(templates.pen_clique(5, low=-9.0, high=9.0), bandwidth=b) for b in (0.5, 0.7, 0.9, 1.1)]
    data = strokes(500)
    members[0].fit(data).save(tmp_path / "one.pt")
    ScoreAverage(members).fit(data).save(tmp_path / "all.pt")
    one, everything = ((tmp_path / name).stat().st_size for name in ("one.pt", "all.pt"))
    assert everything < 1.6 * one
    loaded = torchpbp.load(tmp_path / "all.pt")
    loaded.members[0].fit(strokes(20, seed=3))  # what is shared in the file is not tied together in the models
    assert same(loaded.members[1].log_evidence(data), members[1].log_evidence(data))


def test_a_member_without_a_file_format_is_named(tmp_path: Path) -> None:
    mute: Any = type("Mute", (torch.nn.Module, Learner), dict.fromkeys(Learner.__abstractmethods__))()
    mute.graph, mute.fitted = stroke_graph(), True
    model = ScoreAverage([KernelPBP(stroke_graph()).fit(strokes(10)), mute])
    with pytest.raises(CheckpointError, match="ScoreAverage, member 2: Mute has no file format"):
        model.save(tmp_path / "model.pt")
    assert not list(tmp_path.iterdir())


def test_the_member_that_is_wrong_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    average().fit(strokes(40)).save(path)
    saved = torch.load(path, weights_only=True)
    for change, message in (
        ({"version": 99}, r"model.pt, member 2' has format version 99.*Upgrade"),
        ({"learner": "Oracle"}, r"model.pt, member 2' was made by the learner Oracle"),
        ({"examples": None}, r"model.pt, member 2': its parts do not make a model"),
    ):
        members = list(saved["members"])
        members[1] = {**members[1], **change}
        torch.save({**saved, "members": members}, path)
        with pytest.raises(CheckpointError, match=message):
            torchpbp.load(path)


def test_models_are_put_on_the_device_asked_for(tmp_path: Path) -> None:
    average().fit(strokes(20)).save(tmp_path / "model.pt")
    found = ScoreAverage.load(tmp_path / "model.pt", map_location="meta")  # stands in for a GPU
    assert {b.device.type for b in found.buffers()} == {"meta"}
    KernelPBP(stroke_graph()).fit(strokes(20)).save(tmp_path / "kernel.pt")
    assert {b.device.type for b in KernelPBP.load(tmp_path / "kernel.pt", "meta").buffers()} == {"meta"}
