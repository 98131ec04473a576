"""NaN and infinity in what answers are made of: neither written over a sound file nor read."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import torchpbp
from tests.files.model_zoo import fitted, load
from torchpbp import PBP
from torchpbp.errors import CheckpointError

Reach = Callable[[Any], Tensor]

IN_MODELS: dict[tuple[str, str], Reach] = {
    ("PBP", "operators.1.weight"): lambda m: m.operators[1].weight,
    ("PBP", "root.weight"): lambda m: m.root.weight,
    ("PBP", "floor"): lambda m: m.floor,
    ("PBP", "_observables.2.marginal"): lambda m: m._observables[2].marginal,
    ("Nystroem", "_observables.0.map.whitener"): lambda m: m._observables[0].map.whitener,
    ("Nystroem", "_observables.1.map.width"): lambda m: m._observables[1].map.width,
    ("Nystroem", "_observables.1.functionals"): lambda m: m._observables[1].functionals,
    ("Nystroem", "_observables.2.bounds"): lambda m: m._observables[2].bounds,
    ("RandomFourier", "_observables.0.map.frequencies"): lambda m: m._observables[0].map.frequencies,
    ("EM", "tables.x2"): lambda m: m.network.cpts["x2"],
    ("OnlineEM", "tables.h"): lambda m: m.network.cpts["h"],
    ("NormalGraphLearner", "tables.x1"): lambda m: m.thetas["x1"],
    ("SpectralJunctionTree", "operators.2"): lambda m: m.representation.operators[2],
    ("SpectralJunctionTree", "root"): lambda m: m.representation.root,
    ("KernelPBP", "examples"): lambda m: m.examples,
    ("KernelPBP", "evidence_widths"): lambda m: m.evidence_widths,
    ("KernelPBP", "bounds"): lambda m: m.bounds,
    ("KernelPBP", r"operators\.\d+\.left"): lambda m: next(iter(m.operators.values())).left,
    ("GenerativeClassifier", "model of class b.*root.weight"): lambda m: m.models_[1].root.weight,
    ("GenerativeClassifier", "log_prior"): lambda m: torch.from_numpy(m._log_prior),
    ("Counts", "counts"): lambda m: m.tables.counts,
}  # fmt: skip
"""Learner and name of a tensor -> where it lies in a model."""

IN_FILES: dict[tuple[str, str], Reach] = {
    ("PBP", "operators.1.weight"): lambda s: s["state"]["operators.1.weight"],
    ("PBP", "root.weight"): lambda s: s["state"]["root.weight"],
    ("PBP", "floor"): lambda s: s["state"]["floor"],
    ("PBP", "_observables.2.marginal"): lambda s: s["state"]["_observables.2.marginal"],
    ("Nystroem", "_observables.0.map.whitener"): lambda s: s["state"]["_observables.0.map.whitener"],
    ("Nystroem", "_observables.2.bounds"): lambda s: s["state"]["_observables.2.bounds"],
    ("EM", "'x2'"): lambda s: s["tables"]["x2"],
    ("NormalGraphLearner", "'x1'"): lambda s: s["tables"]["x1"],
    ("SpectralJunctionTree", "operators.2"): lambda s: s["operators"][2],
    ("SpectralJunctionTree", "root: expected finite"): lambda s: s["root"],
    ("KernelPBP", "examples"): lambda s: s["examples"],
    ("KernelPBP", "widths"): lambda s: s["scales"][0],
    ("KernelPBP", r"operators\.\d+\.left"): lambda s: next(iter(s["operators"].values()))[0],
    ("GenerativeClassifier", "model of class b.*root.weight"): lambda s: s["models"][1]["state"]["root.weight"],
    ("GenerativeClassifier", "log_prior"): lambda s: s["log_prior"],
    ("Counts", "counts"): lambda s: s["counts"],
}
"""The same, in the content of a file."""


def spoil(tensor: Tensor, bad: float) -> None:
    """Change the last entry of a tensor."""
    tensor.data[(-1,) * tensor.ndim] = bad


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("name", "where"), IN_MODELS, ids=map(" ".join, IN_MODELS))
def test_such_a_model_is_not_written(name: str, where: str, bad: float, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    fitted(name).save(path)
    before = path.read_bytes()
    model = copy.deepcopy(fitted(name))
    spoil(IN_MODELS[name, where](model), bad)
    with pytest.raises(CheckpointError, match=rf"{where}: expected finite numbers, got NaN or infinity in 1 of \d+"):
        model.save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["model.pt"]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(("name", "where"), IN_FILES, ids=map(" ".join, IN_FILES))
def test_such_a_file_is_not_read(name: str, where: str, bad: float, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    fitted(name).save(path)
    saved = torch.load(path, weights_only=True)
    spoil(IN_FILES[name, where](saved), bad)
    torch.save(saved, path)
    with pytest.raises(CheckpointError, match=where) as caught:
        load(name, path)
    assert str(path) in str(caught.value)


def test_numbers_that_no_answer_uses_may_be_nan(tmp_path: Path) -> None:
    """Strengths are shown by diagnostics; the map from which those of the variables are copied is never fitted."""
    model = copy.deepcopy(fitted("Nystroem"))
    model.operators[0].strengths.fill_(math.nan)
    assert model.kernel_map.mean.isnan()
    model.save(tmp_path / "model.pt")
    again = torchpbp.load(tmp_path / "model.pt")
    assert again.operators[0].strengths.isnan().all()
    evidence = {"a": [0.1, math.nan], "b": [math.nan, 1.0]}
    assert torch.equal(again.log_evidence(evidence), model.log_evidence(evidence))


def test_missing_training_values_are_no_obstacle(tmp_path: Path) -> None:
    values = {"a": np.array([0.1, np.nan, 2.0, 1.0, np.nan, 0.7]), "b": np.arange(6.0)}
    model = torchpbp.KernelPBP(torchpbp.templates.mixture(["a", "b"])).fit(values)
    model.save(tmp_path / "model.pt")
    assert torchpbp.load(tmp_path / "model.pt").missing == model.missing


def test_a_model_trained_into_nan_keeps_its_last_file(tmp_path: Path) -> None:
    """As an optimizer with too large a step would do it."""
    model = copy.deepcopy(fitted("PBP"))
    model.save(tmp_path / "model.pt")
    optimizer = torch.optim.SGD(model.parameters(), lr=math.inf)
    model.log_evidence({"x1": torch.tensor([0, 1])}).sum().backward()
    optimizer.step()
    with pytest.raises(CheckpointError, match="A file that was there before is kept"):
        model.save(tmp_path / "model.pt")
    assert isinstance(torchpbp.load(tmp_path / "model.pt"), PBP)
