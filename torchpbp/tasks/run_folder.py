"""The folder of a run: one run at a time writes to it, and an interrupted one can go on."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import quote

from torchpbp.distributed import world_size
from torchpbp.errors import CheckpointError, RunError
from torchpbp.files import replacing
from torchpbp.model.checkpoint import read_checkpoint, write_checkpoint
from torchpbp.tasks.results import Metrics

T = TypeVar("T")

HIDDEN = ".run"
"""Folder for the lock, the settings and the parts that are done, within the run's own."""
PART = "torchpbp.Part"


class RunFolder:
    """A folder that this process has for itself; made by :func:`run_folder`.

    Args:
        path: of the folder.
        finished: the run came to its end before; its metrics are there.
    """

    def __init__(self, path: Path, finished: bool) -> None:
        self.path, self.finished = path, finished

    @property
    def training(self) -> Path:
        """Where states of training may be kept; deleted when the run is over."""
        return self.path / HIDDEN / "training"

    def metrics(self) -> Metrics:
        """What a finished run wrote."""
        path = self.path / "metrics.json"
        try:
            found: Metrics = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(
                f"{path} of a finished run cannot be read ({error}). Run it again without resume."
            ) from error
        return found


@contextmanager
def run_folder(path: str | os.PathLike[str], settings: Mapping[str, Any], resume: bool) -> Iterator[RunFolder]:
    """Claim a folder for a run until the block ends; if it ends without an error, the run is noted as finished.

    Args:
        path: of the folder; made if there is none.
        settings: all that decides the results, in plain values.
        resume: go on with what an earlier run with the same settings left; otherwise that is deleted.

    Raises:
        RunError: the folder cannot be written to, another process is at work in it, or the run to go on with had other
            settings.
    """
    folder = Path(path)
    hidden = folder / HIDDEN
    try:
        hidden.mkdir(parents=True, exist_ok=True)
        opened = open(hidden / "lock", "a+", encoding="utf-8")  # noqa: SIM115  closed below
    except OSError as error:
        raise RunError(
            f"output_dir: expected a folder that can be written to, got {folder} ({error.strerror}). Choose another with "
            "hydra.run.dir=<folder>."
        ) from error
    with opened as lock:
        _claim(lock, folder)
        for left in (*folder.glob(".*.tmp"), *folder.glob("checkpoints/.*.tmp"), *hidden.glob("**/.*.tmp")):
            left.unlink(missing_ok=True)  # of a run that was killed while writing
        before = _settings(hidden) if resume else None
        if before is None:
            shutil.rmtree(hidden / "parts", ignore_errors=True)
            shutil.rmtree(hidden / "training", ignore_errors=True)
        else:
            _compare(before["settings"], json.loads(json.dumps(settings, default=str)), folder)
        finished = before is not None and bool(before["finished"])
        (hidden / "parts").mkdir(exist_ok=True)
        _note(hidden, settings, finished)
        yield RunFolder(folder, finished)
        _note(hidden, settings, True)
        shutil.rmtree(hidden / "parts", ignore_errors=True)
        shutil.rmtree(hidden / "training", ignore_errors=True)


class Parts:
    """Parts of a run that are done, each kept in a file, so that an interrupted run goes on with the next.

    Only a run in a folder claimed by :func:`run_folder` keeps any, and only if it is a single process: of several, each would
    have to skip the same parts.

    Args:
        output_dir: of the run; ``None``: nothing is kept.
    """

    def __init__(self, output_dir: str | os.PathLike[str] | None) -> None:
        folder = None if output_dir is None else Path(output_dir) / HIDDEN / "parts"
        self.folder = folder if folder is not None and folder.is_dir() and world_size() == 1 else None

    def get(self, name: str, compute: Callable[[], T]) -> T:
        """The result of a part: what was kept of it, or computed and kept.

        Args:
            name: unique within the run.
            compute: gives tensors, numbers, strings, and lists and dicts of them; must depend on the settings only.
        """
        if self.folder is None:
            return compute()
        path = self.folder / f"{quote(name, safe=' ,=')}.pt"
        if path.exists():
            try:
                found: T = read_checkpoint(path, "cpu", PART)["result"]
                return found
            except (CheckpointError, KeyError):
                path.unlink()  # damaged: compute it again
        result = compute()
        write_checkpoint(path, {"result": result}, PART)
        return result


def _claim(lock: IO[str], folder: Path) -> None:
    """Lock a file for as long as it is open. The system lets go of it when the process ends, however it ends."""
    try:
        import fcntl
    except ImportError:  # Windows: no lock
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        raise RunError(
            f"Folder '{folder}': another run (process {holder}) is writing to it. Wait for it to end, or choose another "
            "output_dir."
        ) from error
    lock.seek(0)
    lock.truncate()
    lock.write(str(os.getpid()))
    lock.flush()


def _settings(hidden: Path) -> dict[str, Any] | None:
    """What an earlier run noted; None if there was none."""
    path = hidden / "settings.json"
    if not path.exists():
        return None
    try:
        noted = json.loads(path.read_text(encoding="utf-8"))
        return {"settings": noted["settings"], "finished": noted["finished"]}
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} cannot be read ({error}). Run again without resume.") from error


def _note(hidden: Path, settings: Mapping[str, Any], finished: bool) -> None:
    text = json.dumps({"settings": settings, "finished": finished}, indent=1, default=str)
    with replacing(hidden / "settings.json") as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def _compare(before: Any, now: Any, folder: Path) -> None:
    """Refuse to go on with a run that was another."""
    old, new = dict(_flat(before)), dict(_flat(now))
    differing = sorted(k for k in {*old, *new} if old.get(k) != new.get(k))
    if differing:
        shown = "; ".join(f"{k} was {old.get(k)!r} and is {new.get(k)!r}" for k in differing[:5])
        raise RunError(
            f"resume: the run in '{folder}' had other settings: {shown}. Give the same ones, leave out resume, or choose another "
            "output_dir."
        )


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names of the plain values in nested dicts."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(item, f"{name}.{key}" if name else str(key))
    else:
        yield name, value
