"""Paths that do not lead to a file: each kind has an error of its own, for model files, counts, BIF and Parquet files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torchpbp
from torchpbp import EM, PBP, Counts, DiscreteNetwork, GenerativeClassifier, KernelPBP, LatentGraph, templates
from torchpbp.errors import ArgumentError, CheckpointError, DataError, TorchPBPError

GRAPH = templates.naive_bayes(3, 2, 2)
NETWORK = DiscreteNetwork.random(GRAPH, seed=0)
DATA = NETWORK.sample(60, seed=1)
MODEL = PBP(GRAPH).fit(DATA)


class Broken:
    """A path whose own code fails."""

    def __fspath__(self) -> str:
        raise RuntimeError


class OfBytes:
    def __fspath__(self) -> bytes:
        return b"x"


READ: dict[str, tuple[Callable[[Any], Any], type[TorchPBPError], str]] = {
    "load": (torchpbp.load, CheckpointError, "model file"),
    "PBP.load": (PBP.load, CheckpointError, "model file"),
    "EM.load": (EM.load, CheckpointError, "model file"),
    "KernelPBP.load": (KernelPBP.load, CheckpointError, "model file"),
    "GenerativeClassifier.load": (GenerativeClassifier.load, CheckpointError, "model file"),
    "Counts.load": (Counts.load, CheckpointError, "model file"),
    "LatentGraph.from_bif": (LatentGraph.from_bif, DataError, "BIF file"),
    "DiscreteNetwork.from_bif": (DiscreteNetwork.from_bif, DataError, "BIF file"),
    "fit": (lambda path: PBP(GRAPH).fit(path), DataError, "Parquet file"),
}

CLASSIFIER = GenerativeClassifier(GRAPH, KernelPBP).fit(torch.stack(list(DATA.values()), dim=1), [0, 1] * 30)

WRITE: dict[str, tuple[Callable[[Any], Any], type[TorchPBPError], str]] = {
    "PBP.save": (MODEL.save, CheckpointError, "model file"),
    "Counts.save": (PBP(GRAPH).count(DATA).save, CheckpointError, "model file"),
    "GenerativeClassifier.save": (CLASSIFIER.save, CheckpointError, "model file"),
    "to_bif": (NETWORK.to_bif, DataError, "BIF file"),
}

NO_NAMES = {"empty": "", "null character": "a\0b", "surrogate": "\ud800"}
NOT_PATHS = {
    "None": None,
    "int": 3,
    "bytes": b"x",
    "list": ["a"],
    "broken": Broken(),
    "of bytes": OfBytes(),
    **NO_NAMES,
}


@pytest.mark.parametrize("entry", [e for e in {**READ, **WRITE} if e != "fit"])
@pytest.mark.parametrize("kind", NOT_PATHS)
def test_a_value_that_is_not_a_path_raises(entry: str, kind: str) -> None:
    call, _, what = {**READ, **WRITE}[entry]
    with pytest.raises(ArgumentError, match=f"Expected the path of a {what}, got "):
        call(NOT_PATHS[kind])


@pytest.mark.parametrize("kind", NO_NAMES)
def test_data_by_a_string_that_is_not_a_path_raises(kind: str) -> None:
    with pytest.raises(ArgumentError, match="Expected the path of a Parquet file or folder, got "):
        PBP(GRAPH).fit(NO_NAMES[kind])


@pytest.mark.parametrize("entry", READ)
def test_a_missing_file_is_not_a_damaged_one(entry: str, tmp_path: Path) -> None:
    call, error, what = READ[entry]
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "missing", tmp_path / "file" / "below", str(tmp_path / "no" / "folder.parquet")):
        with pytest.raises(error, match=rf"No {what}.* at '.*'\. Check the path"):
            call(path)


@pytest.mark.parametrize("entry", READ)
@pytest.mark.parametrize("path", ["a" * 300, "a/" * 3000], ids=["component", "path"])
def test_a_path_that_is_too_long_raises(entry: str, path: str, tmp_path: Path) -> None:
    call, error, _ = READ[entry]
    with pytest.raises(error, match=r"cannot be read: File name too long\.") as raised:
        call(tmp_path / path)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize("entry", WRITE)
@pytest.mark.parametrize("path", ["a" * 300, "a/" * 3000], ids=["component", "path"])
def test_writing_to_a_path_that_is_too_long_raises(entry: str, path: str, tmp_path: Path) -> None:
    call, error, _ = WRITE[entry]
    with pytest.raises(error, match=r"[Cc]ould not (be written|write).*: File name too long\."):
        call(tmp_path / path)


@pytest.mark.parametrize("entry", [e for e in READ if e != "fit"])
def test_a_folder_or_a_pipe_in_place_of_a_file_raises(entry: str, tmp_path: Path) -> None:
    call, error, what = READ[entry]
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((tmp_path, "a folder"), ("/", "a folder"), (tmp_path / "pipe", "a named pipe")):
        with pytest.raises(error, match=f"'{path}' is {kind}: expected a {what}"):
            call(path)


def test_parquet_from_a_folder_or_a_pipe_raises(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pq")
    with pytest.raises(DataError, match="is a named pipe: expected a Parquet file"):
        PBP(GRAPH).fit(tmp_path / "pipe.pq")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no Parquet files"):
        PBP(GRAPH).fit(tmp_path / "empty")
    with pytest.raises(DataError, match="'/' is the root of the file system"):
        PBP(GRAPH).fit("/")


@pytest.mark.parametrize("entry", WRITE)
def test_writing_to_a_folder_or_below_a_file_raises(entry: str, tmp_path: Path) -> None:
    call, error, _ = WRITE[entry]
    for path in (tmp_path, "/"):
        with pytest.raises(error, match="expected a regular file or a new name, got a folder"):
            call(path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(error, match="Not a directory"):
        call(tmp_path / "file" / "below")


@pytest.mark.parametrize("step", ["stat", "open"])
@pytest.mark.parametrize("entry", READ)
def test_a_file_without_permission_is_not_a_damaged_one(
    entry: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, error, _ = READ[entry]
    path = tmp_path / "private.parquet"
    path.write_text("x")
    monkeypatch.setattr(
        "torchpbp.files.paths.open" if step == "open" else "os.stat", denying(path, step), raising=False
    )
    with pytest.raises(error, match=r"private\.parquet' may not be read: permission denied\. Change the permissions"):
        call(path)


@pytest.mark.parametrize("entry", WRITE)
def test_writing_without_permission_raises(entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call, error, _ = WRITE[entry]
    monkeypatch.setattr("os.open", denying(tmp_path, "os.open"))
    with pytest.raises(error, match=r"private.*: Permission denied\."):
        call(tmp_path / "private")


def test_a_damaged_parquet_file_raises_while_it_is_read(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "damaged.parquet"
    parquet.write_table(pa.table({v: x.numpy() for v, x in DATA.items()}), path)
    content = path.read_bytes()
    path.write_bytes(content[:20] + bytes(b ^ 255 for b in content[20:60]) + content[60:])
    with pytest.raises(DataError, match=r"The data cannot be read: .* A file is damaged"):
        PBP(GRAPH).fit(path)


def denying(folder: Path, step: str) -> Callable[..., Any]:
    """A function of the system that denies access to a folder, whoever runs the test."""
    real = {"open": open, "stat": os.stat, "os.open": os.open}[step]

    def denied(path: Any, *args: Any, **kwargs: Any) -> Any:
        if str(path).startswith(str(folder)):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **kwargs)

    return denied
