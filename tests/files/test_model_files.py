"""Model files that are damaged, cut short, foreign, newer or changed; disks that are full; saving that is interrupted."""

from __future__ import annotations

import errno
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import torchpbp
from torchpbp import (
    EM,
    PBP,
    Counts,
    GenerativeClassifier,
    KernelPBP,
    NormalGraphLearner,
    OnlineEM,
    SpectralJunctionTree,
    templates,
)
from torchpbp.errors import CheckpointError, NotFittedError

GRAPH = templates.naive_bayes(3, 2, 2)
DATA = torchpbp.DiscreteNetwork.random(GRAPH, seed=0).sample(200, seed=1)
REMEDIES = (
    r"(Save the model again|Check the path|Load it with what wrote it|Upgrade torchpbp|Use torchpbp\.load|holds no)"
)
MAKERS: dict[str, Callable[[], Any]] = {
    "PBP": lambda: PBP(GRAPH).fit(DATA),
    "EM": lambda: EM(GRAPH, max_steps=2, restarts=1).fit(DATA),
    "OnlineEM": lambda: OnlineEM(GRAPH, max_steps=1, restarts=1).fit(DATA),
    "SpectralJunctionTree": lambda: SpectralJunctionTree(GRAPH).fit(DATA),
    "NormalGraphLearner": lambda: NormalGraphLearner(GRAPH, epochs=2, restarts=1).fit(DATA),
    "KernelPBP": lambda: KernelPBP(GRAPH).fit({v: x[:20] for v, x in DATA.items()}),
    "GenerativeClassifier": lambda: GenerativeClassifier(GRAPH, PBP).fit(pd.DataFrame(DATA), ["a", "b"] * 100),
    "Counts": lambda: PBP(GRAPH).count(DATA),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, bytes]]:
    """Learner -> (its class, the bytes of a model file)."""
    folder = tmp_path_factory.mktemp("models")
    found = {}
    for name, make in MAKERS.items():
        model = make()
        model.save(folder / name)
        found[name] = (type(model), (folder / name).read_bytes())
    return found


def loaders(kind: Any) -> list[Callable[[Path], Any]]:
    return [kind.load] if kind is Counts else [kind.load, torchpbp.load]


@pytest.mark.parametrize("name", MAKERS)
def test_a_file_cut_short_anywhere_raises(name: str, files: dict[str, tuple[Any, bytes]], tmp_path: Path) -> None:
    kind, content = files[name]
    path = tmp_path / "model.pt"
    for length in {0, 1, 3, 4, 100, *range(0, len(content), len(content) // 40), len(content) - 1}:
        path.write_bytes(content[:length])
        for load in loaders(kind):
            with pytest.raises(CheckpointError, match=REMEDIES):
                load(path)
    path.write_bytes(content)
    assert isinstance(kind.load(path), kind)


@pytest.mark.parametrize("name", MAKERS)
def test_damaged_bytes_are_noticed_or_harmless(name: str, files: dict[str, tuple[Any, bytes]], tmp_path: Path) -> None:
    """A flipped byte gives an error with a remedy, or changes nothing that is read: never another model."""
    kind, content = files[name]
    path, again = tmp_path / "model.pt", tmp_path / "again.pt"
    path.write_bytes(content)
    kind.load(path).save(again)
    sound = torch.load(again, weights_only=True)
    noticed = 0
    generator = torch.Generator().manual_seed(0)
    for position in torch.randint(len(content), (60,), generator=generator).tolist():
        damaged = bytearray(content)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        try:
            kind.load(path).save(again)
        except CheckpointError:
            noticed += 1
        else:
            assert equal(torch.load(again, weights_only=True), sound), f"byte {position} changed the model"
    assert noticed > 0


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return isinstance(b, list | tuple) and len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and a == b


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


FOREIGN: dict[str, Callable[[Path, Path], None]] = {
    "text": lambda path, trap: path.write_text("a,b\n1,2\n") and None,
    "png": lambda path, trap: path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(200)) and None,
    "zip": lambda path, trap: path.write_bytes(b"PK\x05\x06" + bytes(18)) and None,
    "pickle with code": lambda path, trap: path.write_bytes(pickle.dumps({"format": "torchpbp.PBP", "x": Trap(trap)})) and None,
    "torch file with code": lambda path, trap: torch.save({"format": "torchpbp.PBP", "version": 1, "x": Trap(trap)}, path),
    "tensor": lambda path, trap: torch.save(torch.zeros(3), path),
    "state dict": lambda path, trap: torch.save({"weight": torch.zeros(3)}, path),
    "folder": lambda path, trap: path.mkdir(),
    "nothing": lambda path, trap: None,
}  # fmt: skip


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_files_raise_and_are_never_executed(kind: str, tmp_path: Path) -> None:
    path, trap = tmp_path / "model.pt", tmp_path / "trap"
    FOREIGN[kind](path, trap)
    kinds = (PBP, EM, SpectralJunctionTree, Counts, KernelPBP, GenerativeClassifier)
    for load in (torchpbp.load, *(kind.load for kind in kinds)):
        with pytest.raises(CheckpointError, match=REMEDIES) as caught:
            load(path)
        assert "weights_only" not in str(caught.value)  # no advice to execute what is in it
    assert not trap.exists()


def test_the_trap_works(tmp_path: Path) -> None:
    path, trap = tmp_path / "model.pt", tmp_path / "trap"
    FOREIGN["torch file with code"](path, trap)
    torch.load(path, weights_only=False)
    assert trap.exists()


@pytest.mark.parametrize("name", MAKERS)
def test_newer_and_unversioned_files_raise(name: str, files: dict[str, tuple[Any, bytes]], tmp_path: Path) -> None:
    kind, content = files[name]
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    saved = torch.load(path, weights_only=True)
    odd = [(v, "expected a format version from 1 on") for v in (None, "2", 0, -3, True, False, 1.0, [1])]
    for version, message in ((99, "format version 99.*Upgrade"), *odd):
        torch.save({**saved, "version": version}, path)
        for load in loaders(kind):
            with pytest.raises(CheckpointError, match=message):
                load(path)


@pytest.mark.parametrize("name", MAKERS)
def test_content_that_makes_no_model_raises(name: str, files: dict[str, tuple[Any, bytes]], tmp_path: Path) -> None:
    """Each entry in turn is left out, or replaced by something of another type."""
    kind, content = files[name]
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    saved = torch.load(path, weights_only=True)
    needed = [k for k in saved if k not in ("learner", "counts", "features")]
    rejected = 0
    for key in needed:
        for changed in ({k: v for k, v in saved.items() if k != key}, {**saved, key: 7}, {**saved, key: ["x"]}):
            torch.save(changed, path)
            for load in loaders(kind):
                try:
                    load(path)
                except CheckpointError as error:
                    rejected += 1
                    assert re.search(f"{REMEDIES}|{re.escape(str(path))}", str(error))  # noqa: PT017
    assert rejected > len(needed)  # most of it matters


def labelled(saved: Any, labels: Any) -> Any:
    """The content of a file with other labels of x1, in the models inside it too."""
    if isinstance(saved, list):
        return [labelled(v, labels) for v in saved]
    if not isinstance(saved, dict):
        return saved
    return {k: labels if k == "labels" else labelled(v, labels) for k, v in saved.items()}


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"x1": ["a", "b", "c"]}, "labels of 'x1': expected at most 2 different ones, for its states, got 3"),
        ({"x1": ["a", "a"]}, "labels of 'x1': expected at most 2 different ones, for its states, got 2"),
        ({"x1": [1, True]}, "different"),
        ({"x1": "ab"}, "expected a list for a discrete variable"),
        ({"x9": ["a", "b"]}, "labels of 'x9'"),
        ({7: ["a", "b"]}, "labels of 7"),
        ({"x1": [["a"], "b"]}, "do not make a model"),
    ],
)
@pytest.mark.parametrize("name", MAKERS)
def test_labels_that_states_cannot_have_raise(
    name: str, labels: Any, message: str, files: dict[str, tuple[Any, bytes]], tmp_path: Path
) -> None:
    kind, content = files[name]
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    saved = torch.load(path, weights_only=True)
    torch.save(labelled(saved, {"x1": ["a"]}), path)  # a state that never occurred may have none
    kind.load(path)
    torch.save(labelled(saved, labels), path)
    for load in loaders(kind):
        with pytest.raises(CheckpointError, match=message):
            load(path)


@pytest.mark.parametrize("name", [n for n in MAKERS if n != "GenerativeClassifier"])
def test_labels_that_states_cannot_have_are_not_written(
    name: str, files: dict[str, tuple[Any, bytes]], tmp_path: Path
) -> None:
    kind, content = files[name]
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    model = kind.load(path)
    model.labels = {"x1": ("a", "b", "c")}
    with pytest.raises(CheckpointError, match="labels of 'x1'"):
        model.save(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "name",
    ["PBP", "EM", "SpectralJunctionTree", "NormalGraphLearner", "KernelPBP", "GenerativeClassifier"],
)
def test_an_unfitted_model_leaves_no_file(name: str, tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        getattr(torchpbp, name)(GRAPH).save(tmp_path / "model.pt")
    assert not list(tmp_path.iterdir())


class FullDisk:
    """Wraps ``open`` so that files hold no more than so many bytes."""

    def __init__(self, limit: int, error: BaseException) -> None:
        self.limit, self.error = limit, error

    def __call__(self, path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        file = open(path, mode, *args, **kwargs)  # noqa: SIM115
        if "w" not in mode:
            return file
        plain, left = file.write, [self.limit]

        class Limited:
            def write(self, data: Any) -> int:
                left[0] -= len(data)
                if left[0] < 0:
                    raise outer.error
                return plain(data)

            def __enter__(self) -> Limited:
                return self

            def __exit__(self, *details: object) -> None:
                file.close()

            def __getattr__(self, name: str) -> Any:
                return getattr(file, name)

        outer = self
        return Limited()


@pytest.mark.parametrize("limit", [0, 100, 1500])
@pytest.mark.parametrize("name", MAKERS)
def test_a_full_disk_keeps_the_old_file(
    name: str, limit: int, files: dict[str, tuple[Any, bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, content = files[name]
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    model = kind.load(path)
    full = FullDisk(limit, OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr("torchpbp.files.checkpoint.open", full, raising=False)
    with pytest.raises(CheckpointError, match=r"could not be written: No space left on device.*Free some space"):
        model.save(path)
    assert path.read_bytes() == content
    assert [p.name for p in tmp_path.iterdir()] == ["model.pt"]


def test_an_interrupted_save_keeps_the_old_file(
    files: dict[str, tuple[Any, bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, content = files["PBP"]
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    model = kind.load(path)
    monkeypatch.setattr("torchpbp.files.checkpoint.open", FullDisk(500, KeyboardInterrupt()), raising=False)
    with pytest.raises(KeyboardInterrupt):
        model.save(path)
    assert path.read_bytes() == content
    assert [p.name for p in tmp_path.iterdir()] == ["model.pt"]


def test_a_folder_that_cannot_be_written_to_is_named(files: dict[str, tuple[Any, bytes]], tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    kind, content = files["PBP"]
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"a file/model.pt' could not be written"):
        kind.load(path).save(tmp_path / "a file" / "model.pt")
