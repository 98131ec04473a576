"""The folder of a run: one run at a time writes to it, and an interrupted one can be resumed."""

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
from torchpbp.experiments.running.results import Metrics
from torchpbp.files.checkpoint import read_checkpoint, write_checkpoint
from torchpbp.files.replacing import lock_file, remove_leftovers, replacing

T = TypeVar("T")

HIDDEN = ".run"
"""Folder for the lock, the settings and the parts that are done, within the run's own."""
PART = "torchpbp.Part"
LONGEST = 200  # characters of a path in a message


def training_folder(path: str | os.PathLike[str]) -> Path:
    """Where states of training may be kept; deleted when the run is over.

    Args:
        path: of the folder of the run.
    """
    return Path(path) / HIDDEN / "training"


class RunFolder:
    """A folder that this process has for itself; made by :func:`run_folder`.

    Args:
        path: of the folder.
        finished: the run came to its end before; its metrics are there.
    """

    def __init__(self, path: Path, finished: bool) -> None:
        self.path, self.finished = path, finished

    def metrics(self) -> Metrics:
        """What a finished run wrote."""
        path = self.path / "metrics.json"
        try:
            metrics: Metrics = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(
                f"{path} of a finished run cannot be read ({error}). Delete the folder and run it again."
            ) from error
        return metrics


@contextmanager
def run_folder(
    path: str | os.PathLike[str], settings: Mapping[str, Any], resume: bool, records: Mapping[str, str] | None = None
) -> Iterator[RunFolder]:
    """Claim a folder for a run until the block ends; if it ends without an error, the run is noted as finished.

    A folder that cannot be claimed stays as it was, to the last byte, and so does that of a finished run.

    Args:
        path: of the folder; made if there is none.
        settings: all that decides the results, in plain values.
        resume: continue what an earlier run with the same settings left; otherwise that is deleted, unless it was finished.
        records: file within the folder -> text, written once the folder is claimed.

    Raises:
        RunError: the folder cannot be written to, another process is at work in it, the run to resume had other settings,
            or a finished run is there that is not to be resumed.
    """
    folder = Path(path)
    hidden = folder / HIDDEN
    if str(path):
        _to_resume(folder, settings, resume)  # before a lock is made where there is none
    make_folder(path)
    try:
        hidden.mkdir(exist_ok=True)
        opened = open(hidden / "lock", "a+", encoding="utf-8")  # noqa: SIM115  closed below
    except OSError as error:
        raise _not_writable(folder, error) from error
    with opened as lock:
        _claim(lock, folder)
        before = _to_resume(folder, settings, resume)
        if before is not None and before["finished"]:
            yield RunFolder(folder, True)
            return
        try:
            _sign(lock)
            _remove_leftovers(folder)
            if before is None:
                _forget(hidden)
            (hidden / "parts").mkdir(exist_ok=True)
            _note(hidden, settings, False)
            for name, text in (records or {}).items():
                with replacing(folder / name) as temporary:
                    temporary.write_text(text, encoding="utf-8")
        except OSError as error:
            raise _not_writable(folder, error) from error
        yield RunFolder(folder, False)
        _note(hidden, settings, True)
        _forget(hidden)


class Parts:
    """Parts of a run that are done, each kept in a file, so that an interrupted run continues with the next.

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
                kept: T = read_checkpoint(path, "cpu", PART)["result"]
                return kept
            except (CheckpointError, KeyError):
                path.unlink()  # damaged: compute it again
        result = compute()
        write_checkpoint(path, {"result": result}, PART)
        return result


def make_folder(path: str | os.PathLike[str]) -> None:
    """Make the folder of a run, and those above it, unless it is there.

    Raises:
        RunError: it cannot be made.
    """
    if not str(path):
        raise RunError(f"output_dir: expected the path of a folder, got ''. {ANOTHER}")
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a null character
        raise _not_writable(path, error) from error


ANOTHER = "Choose another with hydra.run.dir=<folder>, or with -m hydra.sweep.dir=<folder>."


def check_unfinished(path: str | os.PathLike[str], sweep: bool = False) -> None:
    """Raise where results of finished runs would be replaced.

    Args:
        path: of the folder of a run, or of a sweep.
        sweep: look at all runs below the folder, not at the folder itself.

    Raises:
        RunError: there is a finished run.
    """
    folder, note = Path(path), f"{HIDDEN}/settings.json"
    notes = folder.rglob(note) if sweep else [folder / note]
    done = sorted((str(n.parent.parent.relative_to(folder)) for n in notes if _finished(n)), key=lambda n: (len(n), n))
    if done:
        found = (
            f"{len(done)} finished runs ({', '.join(done[:5])}{', …' * (len(done) > 5)})" if sweep else "a finished run"
        )
        raise RunError(
            f"Folder '{folder}': {found} would be replaced. Give resume=true to keep what is there and go on with what is "
            f"missing, or delete the folder. {ANOTHER}"
        )


def _finished(note: Path) -> bool:
    """Whether a run came to its end, by its note; one that cannot be read says nothing."""
    try:
        return bool(json.loads(note.read_text(encoding="utf-8"))["finished"])
    except (OSError, ValueError, LookupError, TypeError):
        return False


def _not_writable(path: str | os.PathLike[str], error: OSError | ValueError) -> RunError:
    shown = str(path) if len(str(path)) < LONGEST else f"{str(path)[:LONGEST]}..."
    reason = error.strerror if isinstance(error, OSError) else error
    return RunError(f"output_dir: expected a folder that can be written to, got {shown!r} ({reason}). {ANOTHER}")


def _claim(lock: IO[str], folder: Path) -> None:
    """Lock a file for as long as it is open; without locks, as on Windows, nothing keeps a second run out."""
    if lock_file(lock.fileno()) is False:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        raise RunError(
            f"Folder '{folder}': another run (process {holder}) is writing to it. Wait for it to end, or choose another "
            "output_dir."
        )


def _sign(lock: IO[str]) -> None:
    """Say which process holds the lock."""
    lock.seek(0)
    lock.truncate()
    lock.write(str(os.getpid()))
    lock.flush()


def _remove_leftovers(folder: Path) -> None:
    """Delete what a run that was killed while writing left half-written."""
    hidden = folder / HIDDEN
    below = [path for path in hidden.rglob("*") if path.is_dir()]
    for place in (folder, folder / "checkpoints", folder / ".hydra", hidden, *below):
        remove_leftovers(place)


def _forget(hidden: Path) -> None:
    """Delete parts and states of training."""
    shutil.rmtree(hidden / "parts", ignore_errors=True)
    shutil.rmtree(training_folder(hidden.parent), ignore_errors=True)


def _to_resume(folder: Path, settings: Mapping[str, Any], resume: bool) -> dict[str, Any] | None:
    """What an earlier run noted, if it is to be resumed; None if there is nothing to resume."""
    if resume:
        return _earlier(folder, settings)
    check_unfinished(folder)
    return None


def _earlier(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """What an earlier run with the same settings noted; None if there was no run.

    Raises:
        RunError: it had other settings, or its note cannot be read.
    """
    path = folder / HIDDEN / "settings.json"
    try:
        noted = json.loads(path.read_text(encoding="utf-8"))
        before = {"settings": noted["settings"], "finished": bool(noted["finished"])}
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} cannot be read ({error}). Run again without resume.") from error
    _compare(before["settings"], json.loads(json.dumps(settings, default=str)), folder)
    return before


def _note(hidden: Path, settings: Mapping[str, Any], finished: bool) -> None:
    text = json.dumps({"settings": settings, "finished": finished}, indent=1, default=str)
    with replacing(hidden / "settings.json") as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def _compare(before: Any, now: Any, folder: Path) -> None:
    """Raise where the earlier run had other settings."""
    old, new = dict(_flat(before)), dict(_flat(now))
    differing = sorted(k for k in {*old, *new} if old.get(k) != new.get(k))
    if differing:
        shown = "; ".join(f"{k} was {old.get(k)!r} and is {new.get(k)!r}" for k in differing[:5])
        raise RunError(
            f"resume: the run in '{folder}' had other settings: {shown}. Give the same ones, choose another output_dir, "
            "or delete the folder."
        )


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names of the plain values in nested dicts."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(item, f"{name}.{key}" if name else str(key))
    else:
        yield name, value
