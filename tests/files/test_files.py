"""Files that are replaced: permissions, links, things that are no files, and what a killed writer leaves."""

from __future__ import annotations

import os
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from torchpbp.files.replacing import lock_file, remove_leftovers, replacing

from tests.processes import ended, forked, wait_for
from torchpbp import PBP, DiscreteNetwork, GenerativeClassifier, templates
from torchpbp.__main__ import main
from torchpbp.errors import ArgumentError, CheckpointError, DataError

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork, named pipes and permissions")

NETWORK = DiscreteNetwork.random(templates.hmm(3, 2, 2), seed=0)
MODEL = PBP(NETWORK.graph).fit(NETWORK.sample(100, seed=0))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def umask() -> Iterator[Callable[[int], None]]:
    """Sets the permissions that new files do not get."""
    before = os.umask(0o022)

    def change(value: int) -> None:
        os.umask(value)

    yield change
    os.umask(before)


# -- permissions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [0o600, 0o640, 0o644, 0o666, 0o444, 0o400])
def test_an_existing_file_keeps_its_permissions(tmp_path: Path, wanted: int) -> None:
    path = tmp_path / "model.pt"
    path.write_text("old")
    path.chmod(wanted)
    while_written = []
    with replacing(path) as temporary:
        while_written.append(mode(temporary))
        temporary.write_text("new")
        while_written.append(mode(temporary))
    assert mode(path) == wanted
    assert path.read_text() == "new"
    for seen in while_written:
        assert seen & 0o077 == 0  # open to nobody else, so never to more people than the file itself


@pytest.mark.parametrize(("mask", "wanted"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_new_file_gets_the_permissions_of_new_files(
    tmp_path: Path, umask: Callable[[int], None], mask: int, wanted: int
) -> None:
    umask(mask)
    with replacing(tmp_path / "a") as temporary:
        assert mode(temporary) & ~wanted == 0
        temporary.write_text("new")
    assert mode(tmp_path / "a") == wanted


@pytest.mark.parametrize("name", ["model.pt", "net.bif"])
def test_saved_models_and_networks_keep_their_permissions(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.touch(0o600)
    save: Callable[[Path], None] = MODEL.save if name == "model.pt" else NETWORK.to_bif
    save(path)
    assert mode(path) == 0o600
    assert path.stat().st_size > 0


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root may give files away")
def test_an_existing_file_keeps_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    os.chown(path, 1234, 4321)
    path.chmod(0o640)
    with replacing(path) as temporary:
        temporary.write_text("new")
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (1234, 4321, 0o640)


# -- links and things that are no files --------------------------------------------------------------------------


def test_a_symbolic_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    real, middle, link = tmp_path / "there" / "model", tmp_path / "there" / "latest", tmp_path / "here" / "link"
    real.write_text("old")
    real.chmod(0o600)
    middle.symlink_to("model")
    link.symlink_to(Path("..") / "there" / "latest")
    with replacing(link) as temporary:
        assert temporary.parent.resolve() == real.parent.resolve()  # same disk: the step is atomic
        temporary.write_text("new")
        assert real.read_text() == "old"
    assert link.is_symlink()
    assert middle.is_symlink()
    assert not real.is_symlink()
    assert (real.read_text(), mode(real)) == ("new", 0o600)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["here", "latest", "link", "model", "there"]


def test_a_dangling_link_makes_its_target(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "new" / "model")
    with replacing(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink()
    assert (tmp_path / "new" / "model").read_text() == "new"


def make_folder(path: Path) -> None:
    path.mkdir()


def make_loop(path: Path) -> None:
    path.symlink_to(path.name)


def make_socket(path: Path) -> None:
    before = os.getcwd()
    os.chdir(path.parent)  # addresses of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(before)


def make_link_to_device(path: Path) -> None:
    path.symlink_to("/dev/null")


SPECIAL: dict[str, tuple[Callable[[Path], None], str]] = {
    "folder": (make_folder, "got a folder"),
    "pipe": (os.mkfifo, "got a named pipe"),
    "socket": (make_socket, "got a socket"),
    "device": (make_link_to_device, "got a character device"),
    "loop": (make_loop, "symbolic links"),
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_only_files_are_replaced(tmp_path: Path, kind: str) -> None:
    make, message = SPECIAL[kind]
    path = tmp_path / "place"
    make(path)
    before = path.lstat()
    with pytest.raises(OSError, match=message), replacing(path):
        pytest.fail("nothing is to be written")
    with pytest.raises(CheckpointError, match=rf"place' could not be written: .*{message}"):
        MODEL.save(path)
    with pytest.raises(DataError, match=rf"Could not write .*place: .*{message}"):
        NETWORK.to_bif(path)
    after = path.lstat()
    assert (after.st_mode, after.st_ino, after.st_mtime_ns) == (before.st_mode, before.st_ino, before.st_mtime_ns)
    assert [p.name for p in tmp_path.iterdir()] == ["place"]


def test_devices_are_not_replaced() -> None:
    with pytest.raises(OSError, match="got a character device"), replacing("/dev/null"):
        pytest.fail("nothing is to be written")


def test_a_name_that_no_file_can_have(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"Expected the path of a model file, got .*x00"):
        MODEL.save(tmp_path / "new" / "a\0b")
    with pytest.raises(ArgumentError, match=r"Expected the path of a BIF file, got .*x00"):
        NETWORK.to_bif(tmp_path / "new" / "a\0b")
    assert not list(tmp_path.iterdir())


def test_predictions_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = pd.DataFrame(np.random.default_rng(0).integers(0, 2, (60, 3)), columns=["x1", "x2", "x3"])
    classifier = GenerativeClassifier(NETWORK.graph, PBP).fit(table, [i % 2 for i in range(60)])
    classifier.save(tmp_path / "classifier.pt")
    (tmp_path / "rows.csv").write_text("x1,x2,x3\n0,1,0\n")
    os.mkfifo(tmp_path / "pipe")
    arguments = [str(tmp_path / "classifier.pt"), str(tmp_path / "rows.csv"), "--output", str(tmp_path / "pipe")]
    assert main(["predict", *arguments]) == 1
    assert "got a named pipe" in capsys.readouterr().err
    assert stat.S_ISFIFO((tmp_path / "pipe").lstat().st_mode)


def test_a_writer_that_writes_nothing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(FileNotFoundError, match="nothing was written"), replacing(path):
        pass
    assert path.read_text() == "old"
    with replacing(path) as temporary:
        temporary.write_text("")  # nothing, but on purpose
    assert path.read_text() == ""
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


# -- leftovers ---------------------------------------------------------------------------------------------------


def half_written(path: Path, started: Path) -> None:
    """Writes for ever."""
    with replacing(path) as temporary:
        temporary.write_text("half")
        started.touch()
        time.sleep(600)


@pytest.mark.slow
def test_what_a_killed_writer_left_is_gone_after_the_next_save(tmp_path: Path) -> None:
    folder, started, log = tmp_path / "folder", tmp_path / "started", tmp_path / "log"
    path = folder / "model [1].pt"
    with replacing(path) as temporary:
        temporary.write_text("old")
    child = forked(lambda: half_written(path, started), log)
    assert wait_for(started.exists, child), log.read_text()
    (left,) = folder.glob(".*.tmp")
    MODEL.save(path)
    assert left.exists()  # its writer lives
    os.kill(child, signal.SIGKILL)
    ended(child)
    assert left.exists()
    with replacing(folder / "other") as temporary:
        temporary.write_text("another file")
    assert left.exists()  # of another file
    MODEL.save(path)
    assert sorted(p.name for p in folder.iterdir()) == ["model [1].pt", "other"]
    assert PBP.load(path).graph == MODEL.graph


def test_only_files_of_the_exact_pattern_are_removed(tmp_path: Path) -> None:
    mine = [".a.999999.0123abcd.tmp", ".b.txt.1.0123abcd.tmp", f".a.{os.getpid()}.ffffffff.tmp"]
    foreign = [
        ".cache.tmp",
        ".a.tmp",
        "a.1.0123abcd.tmp",
        ".a.1.0123ABCD.tmp",
        ".a.1.0123abcde.tmp",
        ".a.x.0123abcd.tmp",
    ]
    foreign += [".1.0123abcd.tmp", ".a.1.0123abcd.tmp.bak"]
    for name in (*mine, *foreign):
        (tmp_path / name).write_text("x")
    (tmp_path / ".folder.1.0123abcd.tmp").mkdir()
    (tmp_path / "target").write_text("x")
    (tmp_path / ".link.1.0123abcd.tmp").symlink_to("target")
    os.mkfifo(tmp_path / ".pipe.1.0123abcd.tmp")
    others = {".folder.1.0123abcd.tmp", ".link.1.0123abcd.tmp", ".pipe.1.0123abcd.tmp", "target", *foreign}
    with replacing(tmp_path / "a") as temporary:
        temporary.write_text("new")
    assert {p.name for p in tmp_path.iterdir()} == others | {".b.txt.1.0123abcd.tmp", "a"}
    remove_leftovers(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == others | {"a"}
    remove_leftovers(tmp_path / "nowhere")


def test_a_temporary_file_that_another_takes_for_a_leftover_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between making and locking it there is a moment."""
    removed = []

    def lock(handle: int, exclusive: bool = True) -> bool | None:
        if exclusive and not removed:
            removed.extend(tmp_path.glob(".*.tmp"))
            removed[0].unlink()
        return lock_file(handle, exclusive)

    monkeypatch.setattr("torchpbp.files.replacing.lock_file", lock)
    with replacing(tmp_path / "a") as temporary:
        temporary.write_text("new")
        assert temporary not in removed
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_without_locks_nothing_is_taken_for_a_leftover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchpbp.files.replacing.lock_file", lambda handle, exclusive=True: None)
    (tmp_path / ".a.999999.0123abcd.tmp").write_text("x")
    with replacing(tmp_path / "a") as temporary:
        temporary.write_text("new")
    assert {p.name for p in tmp_path.iterdir()} == {"a", ".a.999999.0123abcd.tmp"}
    assert (tmp_path / "a").read_text() == "new"


def test_threads_may_save_to_one_file_at_the_same_time(tmp_path: Path) -> None:
    path, together = tmp_path / "a", threading.Barrier(8)
    failures: list[Exception] = []

    def save(number: int) -> None:
        try:
            for _ in range(20):
                together.wait()
                with replacing(path) as temporary:
                    temporary.write_text(str(number) * 1000)
        except Exception as error:
            failures.append(error)
            together.abort()

    threads = [threading.Thread(target=save, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert path.read_text() in {str(number) * 1000 for number in range(8)}
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.slow
def test_processes_may_save_to_one_file_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "saved" / "model.pt"

    def save() -> None:
        for _ in range(30):
            MODEL.save(path)

    children = [forked(save, tmp_path / f"log{i}") for i in range(4)]
    codes = [ended(child) for child in children]
    assert codes == [0] * 4, [(tmp_path / f"log{i}").read_text() for i in range(4)]
    assert [p.name for p in path.parent.iterdir()] == ["model.pt"]
    assert PBP.load(path).graph == MODEL.graph
