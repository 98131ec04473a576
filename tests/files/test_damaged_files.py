"""Model files that are damaged, foreign, newer or contradict themselves, and numbers that are NaN: each has a typed error."""

from __future__ import annotations

import copy
import math
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import torchpbp
from tests.closeness import assert_same_up_to_rounding
from tests.files.model_zoo import MAKERS, fitted, load
from torchpbp import EM, PBP, Counts, GenerativeClassifier, KernelPBP, SpectralJunctionTree
from torchpbp.errors import CheckpointError
from torchpbp.io import read_file, write_file

# -- changed bytes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAKERS)
def test_changed_bytes_raise(name: str, tmp_path: Path) -> None:
    """Of the header, of the checksum, of tensors; bytes that are missing at the end, or too many."""
    model, path, draw = fitted(name), tmp_path / "model.pt", random.Random(name)
    model.save(path)
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    checksum = content.index(b"checksum") + 13
    places = [*range(10), *draw.sample(range(header), 8), *draw.sample(range(header, len(content)), 8), checksum + 7]
    damaged = [content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :] for at in places]
    damaged += [
        content[:length] for length in (0, 1, 8, 100, header, *draw.sample(range(len(content)), 5), len(content) - 1)
    ]
    for changed in (*damaged, content + b"\0", content[:checksum] + b"0" * 64 + content[checksum + 64 :]):
        path.write_bytes(changed)
        with pytest.raises(CheckpointError, match=r"not a readable torchpbp model .* Save the model again"):
            load(model, path)
    path.write_bytes(content)
    assert type(load(model, path)) is type(model)


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


FOREIGN: dict[str, Callable[[Path, Path], object]] = {
    "text": lambda path, trap: path.write_text("a,b\n1,2\n"),
    "png": lambda path, trap: path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(200)),
    "zip": lambda path, trap: path.write_bytes(b"PK\x05\x06" + bytes(18)),
    "pickle with code": lambda path, trap: path.write_bytes(pickle.dumps({"x": Trap(trap)})),
    "torch file with code": lambda path, trap: torch.save({"format": "torchpbp", "x": Trap(trap)}, path),
    "safetensors": lambda path, trap: save_file({"x": torch.zeros(3)}, path, {"torchpbp": "{}"}),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_files_raise_and_are_never_executed(kind: str, tmp_path: Path) -> None:
    path, trap = tmp_path / "model.pt", tmp_path / "trap"
    FOREIGN[kind](path, trap)
    kinds = (PBP, EM, SpectralJunctionTree, Counts, KernelPBP, GenerativeClassifier)
    for read in (torchpbp.load, *(kind.load for kind in kinds)):
        with pytest.raises(CheckpointError, match="not a readable torchpbp model"):
            read(path)
    assert not trap.exists()


def test_the_trap_works(tmp_path: Path) -> None:
    FOREIGN["torch file with code"](tmp_path / "model.pt", tmp_path / "trap")
    torch.load(tmp_path / "model.pt", weights_only=False)
    assert (tmp_path / "trap").exists()


@pytest.mark.parametrize("name", ["PBP", "Counts", "GenerativeClassifier"])
def test_newer_files_raise(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as newer:
        newer.setattr("torchpbp.io.VERSION", 2)
        fitted(name).save(tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match=r"format version 2, this torchpbp reads up to 1\. Upgrade torchpbp"):
        load(fitted(name), tmp_path / "model.pt")


# -- content -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAKERS)
def test_content_that_makes_no_model_raises(name: str, tmp_path: Path) -> None:
    """Each entry in turn is left out, or replaced by something of another type: a typed error, if any."""
    model, path = fitted(name), tmp_path / "model.pt"
    model.save(path)
    content = read_file(path)
    absent = 0
    for key in content:
        for changed in ({k: v for k, v in content.items() if k != key}, {**content, key: 7}, {**content, key: ["x"]}):
            write_file(path, changed)
            try:
                load(model, path)
            except CheckpointError as error:
                absent += key not in changed
                assert str(path) in str(error)  # noqa: PT017
    assert absent == len(content)


def with_states(graph: dict[str, Any], states: int) -> None:
    """Change the number of states of x2 in the content of a file."""
    graph["variables"] = [[v, states if v == "x2" else d] for v, d in graph["variables"]]


CONTRADICTIONS: dict[tuple[str, str], tuple[Callable[[dict[str, Any]], object], str]] = {
    ("PBP", "graph"): (lambda c: with_states(c["graph"], 3), r"expected shape \(3,"),
    ("PBP", "rank"): (lambda c: c["specification"][1].update(rank=3), r"operators.separators.1.weight: expected shape \(3, 2\)"),
    ("PBP", "node"): (lambda c: c["specification"][0].update(node=7), "Plan of node 1"),
    ("PBP", "weight"): (lambda c: c["state"].update({"operators.root.weight": torch.zeros(2, 2)}), r"root.weight: expected shape"),
    ("PBP", "type"): (lambda c: c["state"].update(rows=torch.tensor(3.0)), "rows: expected torch.int64, got torch.float32"),
    ("PBP", "one less"): (lambda c: c["state"].pop("rows"), "rows: missing"),
    ("PBP", "one more"): (lambda c: c["state"].update(more=torch.zeros(1)), "more: missing in the file, or unknown"),
    ("Nystroem", "features"): (lambda c: c["features"].update(size=5), "expected shape"),
    ("EM", "graph"): (lambda c: with_states(c["graph"], 3), "CPT of 'x2': expected shape"),
    ("NormalGraphLearner", "graph"): (lambda c: with_states(c["graph"], 3), "CPT of 'x2': expected shape"),
    ("SpectralJunctionTree", "graph"): (lambda c: with_states(c["graph"], 3), r"expected shape \(3,"),
    ("SpectralJunctionTree", "root"): (lambda c: c["state"].update({"root.weight": torch.zeros(2, 2)}), "root.weight: expected shape"),
    ("KernelPBP", "operators"): (lambda c: c.update(operators={}), "expected operators of nodes"),
    ("KernelPBP", "sizes"): (lambda c: c["operators"].update({k: [x[:3], y] for k, (x, y) in c["operators"].items()}), "expected values at 15 training rows"),
    ("KernelPBP", "states"): (lambda c: c["examples"].fill_(7.0), "examples of 'x1': expected states from 0 to 1"),
    ("KernelPBP", "examples"): (lambda c: c.update(examples=c["examples"][:, 1:]), "do not fit its 5 variables"),
    ("GenerativeClassifier", "graph"): (lambda c: with_states(c["graph"], 3), r"give \['x2'.* other numbers of states"),
    ("GenerativeClassifier", "member"): (lambda c: with_states(c["models"][1]["graph"], 3), "class b"),
    ("GenerativeClassifier", "prior"): (lambda c: c.update(log_prior=torch.zeros(3)), "a prior for each of 2 classes"),
    ("Counts", "states"): (lambda c: c["states"].update(x2=3), "expected .* counts, got shape"),
    ("Counts", "no number"): (lambda c: c["states"].update(x2=2.0), "expected numbers of states"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "part"), CONTRADICTIONS, ids=map(" ".join, CONTRADICTIONS))
def test_parts_that_contradict_each_other_raise(name: str, part: str, tmp_path: Path) -> None:
    change, message = CONTRADICTIONS[name, part]
    fitted(name).save(tmp_path / "model.pt")
    content = read_file(tmp_path / "model.pt")
    change(content)
    write_file(tmp_path / "model.pt", content)
    with pytest.raises(CheckpointError, match=message):
        load(fitted(name), tmp_path / "model.pt")


def labelled(content: Any, labels: Any) -> Any:
    """The content of a file with other labels, in the models inside it too."""
    if isinstance(content, list):
        return [labelled(v, labels) for v in content]
    if not isinstance(content, dict):
        return content
    return {k: labels if k == "labels" else labelled(v, labels) for k, v in content.items()}


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"x1": ["a", "b", "c"]}, "labels of 'x1': expected at most 2 different ones, for its states, got 3"),
        ({"x1": ["a", "a"]}, "labels of 'x1': expected at most 2 different ones, for its states, got 2"),
        ({"x1": "ab"}, "expected a list for a discrete variable"),
        ({"x9": ["a", "b"]}, "labels of 'x9'"),
    ],
)
@pytest.mark.parametrize("name", ["PBP", "EM", "SpectralJunctionTree", "GenerativeClassifier", "Counts"])
def test_labels_that_states_cannot_have_raise(name: str, labels: Any, message: str, tmp_path: Path) -> None:
    model, path = fitted(name), tmp_path / "model.pt"
    model.save(path)
    content = read_file(path)
    write_file(path, labelled(content, {"x1": ["a"]}))  # a state that never occurred may have none
    other = load(model, path)
    write_file(path, labelled(content, labels))
    with pytest.raises(CheckpointError, match=message):
        load(model, path)
    if name != "GenerativeClassifier":
        other.labels = labels
        with pytest.raises(CheckpointError, match=message):
            other.save(tmp_path / "other.pt")
        assert not (tmp_path / "other.pt").exists()


# -- NaN and infinity --------------------------------------------------------------------------------------------------

Reach = Callable[[Any], Tensor]

IN_MODELS: dict[tuple[str, str], Reach] = {
    ("PBP", "separators.1.weight"): lambda m: m.operators.separators[1].weight,
    ("PBP", "floor"): lambda m: m.operators.floor,
    ("PBP", "variables.2.marginal"): lambda m: m.operators.variables[2].marginal,
    ("Nystroem", "variables.0.map.whitener"): lambda m: m.operators.variables[0].map.whitener,
    ("Nystroem", "variables.2.bounds"): lambda m: m.operators.variables[2].bounds,
    ("EM", "tables.x2"): lambda m: m.network.cpts["x2"],
    ("NormalGraphLearner", "tables.x1"): lambda m: m.thetas["x1"],
    ("SpectralJunctionTree", "separators.1.weight"): lambda m: m.operators.separators[1].weight,
    ("SpectralJunctionTree", "root.weight"): lambda m: m.operators.root.weight,
    ("KernelPBP", "examples"): lambda m: m.examples,
    ("KernelPBP", "evidence_widths"): lambda m: m.evidence_widths,
    ("GenerativeClassifier", "model of class b.*root.weight"): lambda m: m.models_[1].operators.root.weight,
    ("GenerativeClassifier", "log_prior"): lambda m: torch.from_numpy(m._log_prior),
    ("Counts", "counts"): lambda m: m.tables.counts,
}  # fmt: skip
"""Model and name of a tensor -> where it lies in the model."""

IN_FILES: dict[tuple[str, str], Reach] = {
    ("PBP", "separators.1.weight"): lambda c: c["state"]["operators.separators.1.weight"],
    ("PBP", "floor"): lambda c: c["state"]["operators.floor"],
    ("Nystroem", "variables.0.map.whitener"): lambda c: c["state"]["operators.variables.0.map.whitener"],
    ("EM", "'x2'"): lambda c: c["tables"]["x2"],
    ("SpectralJunctionTree", "separators.1.weight"): lambda c: c["state"]["separators.1.weight"],
    ("KernelPBP", "examples"): lambda c: c["examples"],
    ("KernelPBP", "widths"): lambda c: c["scales"][0],
    ("GenerativeClassifier", "model of class b.*root.weight"): lambda c: c["models"][1]["state"][
        "operators.root.weight"
    ],
    ("GenerativeClassifier", "log_prior"): lambda c: c["log_prior"],
    ("Counts", "counts"): lambda c: c["counts"],
}
"""The same, in the content of a file."""


def spoil(tensor: Tensor, bad: float) -> None:
    """Change the last entry of a tensor."""
    tensor.data[(-1,) * tensor.ndim] = bad


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
@pytest.mark.parametrize(("name", "where"), IN_MODELS, ids=map(" ".join, IN_MODELS))
def test_a_model_of_no_numbers_is_not_written(name: str, where: str, bad: float, tmp_path: Path) -> None:
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
def test_a_file_of_no_numbers_is_not_read(name: str, where: str, bad: float, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    fitted(name).save(path)
    content = read_file(path)
    spoil(IN_FILES[name, where](content), bad)
    write_file(path, content)
    with pytest.raises(CheckpointError, match=where) as caught:
        load(fitted(name), path)
    assert str(path) in str(caught.value)


def test_numbers_that_no_answer_uses_may_be_nan(tmp_path: Path) -> None:
    """Strengths are shown by diagnostics; the map from which those of the variables are copied is never fitted."""
    model = copy.deepcopy(fitted("Nystroem"))
    model.operators.separators[0].strengths.fill_(math.nan)
    assert model.kernel_map.mean.isnan()
    model.save(tmp_path / "model.pt")
    loaded = torchpbp.load(tmp_path / "model.pt")
    assert loaded.operators.separators[0].strengths.isnan().all()
    evidence = {"a": [0.1, math.nan], "b": [math.nan, 1.0]}
    assert_same_up_to_rounding(loaded.log_evidence(evidence), model.log_evidence(evidence))


def test_missing_training_values_are_no_obstacle(tmp_path: Path) -> None:
    values = {"a": np.array([0.1, np.nan, 2.0, 1.0, np.nan, 0.7]), "b": np.arange(6.0)}
    model = KernelPBP(torchpbp.templates.mixture(["a", "b"])).fit(values)
    model.save(tmp_path / "model.pt")
    assert torchpbp.load(tmp_path / "model.pt").missing == model.missing
