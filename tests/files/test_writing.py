"""Files that are replaced as a whole or not at all, and paths that lead to no file: models, counts, BIF and Parquet files."""

from __future__ import annotations

import errno
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torchpbp
from tests.files.model_zoo import GRAPH, NETWORK, fitted
from tests.processes import ended, forked, wait_for
from torchpbp import EM, PBP, Counts, DiscreteNetwork, GenerativeClassifier, KernelPBP, LatentGraph, templates
from torchpbp.errors import ArgumentError, CheckpointError, DataError, TorchPBPError
from torchpbp.io import replacing

# -- paths -------------------------------------------------------------------------------------------------------------

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
WRITE: dict[str, tuple[Callable[[Any], Any], type[TorchPBPError], str]] = {
    "PBP.save": (lambda path: fitted("PBP").save(path), CheckpointError, "model file"),
    "Counts.save": (lambda path: fitted("Counts").save(path), CheckpointError, "model file"),
    "GenerativeClassifier.save": (
        lambda path: fitted("GenerativeClassifier").save(path),
        CheckpointError,
        "model file",
    ),
    "to_bif": (NETWORK.to_bif, DataError, "BIF file"),
}


@pytest.mark.parametrize("entry", [e for e in {**READ, **WRITE} if e != "fit"])
@pytest.mark.parametrize("path", [None, 3, b"x", ["a"], "", "a\0b"], ids=repr)
def test_a_value_that_is_not_a_path_raises(entry: str, path: Any) -> None:
    call, _, what = {**READ, **WRITE}[entry]
    with pytest.raises(ArgumentError, match=f"Expected the path of a {what}, got "):
        call(path)


@pytest.mark.parametrize("entry", READ)
def test_a_missing_file_or_folder_raises(entry: str, tmp_path: Path) -> None:
    call, error, what = READ[entry]
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "missing", tmp_path / "file" / "below", str(tmp_path / "no" / "folder.parquet")):
        with pytest.raises(error, match=rf"No {what}.* at '.*'\. Check the path"):
            call(path)
    with pytest.raises(error, match="cannot be read: File name too long"):
        call(tmp_path / ("a" * 300))


@pytest.mark.parametrize("entry", [e for e in READ if e != "fit"])
def test_a_folder_in_place_of_a_file_raises(entry: str, tmp_path: Path) -> None:
    call, error, what = READ[entry]
    with pytest.raises(error, match=f"'{tmp_path}' is a folder: expected a {what}"):
        call(tmp_path)


def test_folders_without_parquet_files_raise(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no Parquet files"):
        PBP(GRAPH).fit(tmp_path / "empty")


def test_a_damaged_parquet_file_raises_while_it_is_read(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "damaged.parquet"
    parquet.write_table(pa.table({v: x.numpy() for v, x in NETWORK.sample(60, seed=1).items()}), path)
    content = path.read_bytes()
    path.write_bytes(content[:20] + bytes(b ^ 255 for b in content[20:60]) + content[60:])
    with pytest.raises(DataError, match=r"The data cannot be read: .* A file is damaged"):
        PBP(GRAPH).fit(path)


def denied(*_: object, **__: object) -> Any:
    """Stands in for a function of the system: the tests may run as a user who may do everything."""
    raise PermissionError(errno.EACCES, "Permission denied")


@pytest.mark.parametrize("entry", READ)
def test_a_file_without_permission_raises(entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call, error, _ = READ[entry]
    (tmp_path / "private.parquet").write_text("x")
    monkeypatch.setattr("torchpbp.io.open", denied, raising=False)
    with pytest.raises(error, match=r"private\.parquet' may not be read: permission denied\. Change the permissions"):
        call(tmp_path / "private.parquet")


@pytest.mark.parametrize("entry", WRITE)
def test_paths_that_cannot_be_written_raise(entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call, error, _ = WRITE[entry]
    (tmp_path / "file").write_text("x")
    for path, message in (
        (tmp_path, "expected a file or a new name, got a folder"),
        ("/dev/null", "expected a file or a new name, got something else"),
        (tmp_path / "file" / "below", "Not a directory"),
        (tmp_path / ("a" * 300), "File name too long"),
    ):
        with pytest.raises(error, match=rf"[Cc]ould not (be written|write).*: {message}"):
            call(path)
    monkeypatch.setattr("os.replace", denied)
    with pytest.raises(error, match=r"file.*: Permission denied\."):
        call(tmp_path / "file")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "x"


# -- replacing ---------------------------------------------------------------------------------------------------------


def test_a_file_is_replaced_once_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "a"
    for text in ("first", "second", ""):
        with replacing(path) as temporary:
            assert temporary.parent == path.parent  # same disk: the step is atomic
            temporary.write_text(text)
            assert not path.exists() or path.read_text() != text
        assert path.read_text() == text
        assert [p.name for p in path.parent.iterdir()] == ["a"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_the_old_file(error: type[BaseException], tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")

    def write_half() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(error):
        write_half()
    with pytest.raises(FileNotFoundError), replacing(path):
        pass  # a writer that writes nothing
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_symbolic_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    link, target = tmp_path / "link", tmp_path / "folder" / "model"
    link.symlink_to(Path("folder") / "model")
    for text in ("new", "newer"):  # at first there is no target
        with replacing(link) as temporary:
            temporary.write_text(text)
        assert link.is_symlink()
        assert target.read_text() == text


# -- saving that is interrupted ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=repr)
def test_a_save_that_fails_keeps_the_old_file(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.pt"
    fitted("PBP").save(path)
    before = path.read_bytes()

    def half(tensors: Any, temporary: Path, metadata: Any) -> None:
        temporary.write_bytes(before[:500])
        raise error

    monkeypatch.setattr("safetensors.torch.save_file", half)
    with pytest.raises((CheckpointError, KeyboardInterrupt)) as caught:
        fitted("PBP").save(path)
    if isinstance(error, OSError):
        assert "could not be written: No space left on device. A file that was there before is kept" in str(
            caught.value
        )
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["model.pt"]


LONG = templates.hmm(20, 2, 4)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_model_is_whole_whenever_its_writer_is_killed(tmp_path: Path) -> None:
    models = [PBP(LONG).fit(DiscreteNetwork.random(LONG, seed=s).sample(100, seed=s)) for s in (0, 1)]
    path, draw = tmp_path / "folder" / "model.pt", random.Random(0)

    def write_for_ever() -> None:
        while True:
            for model in models:
                model.save(path)

    states = [model.state_dict() for model in models]
    half_written = kills = 0
    while kills < 20 or (half_written == 0 and kills < 200):  # go on until one was hit while it wrote
        kills += 1
        child = forked(write_for_ever, tmp_path / "log")
        assert wait_for(path.exists, child), (tmp_path / "log").read_text()
        time.sleep(0.05 * draw.random())
        os.kill(child, signal.SIGKILL)
        ended(child)
        found = PBP.load(path).state_dict()
        assert any(all(torch.equal(found[k], state[k]) for k in state) for state in states)
        half_written += len(list(path.parent.glob(".*.tmp")))
    assert half_written > 0


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 1000, 20_000])
def test_a_model_that_does_not_fit_on_the_disk_leaves_the_old_file(tmp_path: Path, size: int) -> None:
    resource = pytest.importorskip("resource")  # not on Windows
    models = [PBP(LONG).fit(DiscreteNetwork.random(LONG, seed=s).sample(100, seed=s)) for s in (0, 1)]
    path = tmp_path / "folder" / "model.pt"
    models[0].save(path)
    before = path.read_bytes()
    assert len(before) > size

    def save() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))  # as on a full disk
        try:
            models[1].save(path)
        except CheckpointError as error:
            os._exit(42 if "could not be written: " in str(error) else 43)

    assert ended(forked(save, tmp_path / "log")) == 42
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["model.pt"]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_processes_may_save_to_one_file_at_the_same_time(tmp_path: Path) -> None:
    path, model = tmp_path / "saved" / "model.pt", fitted("PBP")

    def save() -> None:
        for _ in range(30):
            model.save(path)

    children = [forked(save, tmp_path / f"log{i}") for i in range(4)]
    assert [ended(child) for child in children] == [0] * 4, [(tmp_path / f"log{i}").read_text() for i in range(4)]
    assert [p.name for p in path.parent.iterdir()] == ["model.pt"]
    assert torch.equal(PBP.load(path).operators.root.weight, model.operators.root.weight)
