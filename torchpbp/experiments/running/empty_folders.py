"""Folders that were made for a run and stayed empty, because the run did not start."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback

from torchpbp.errors import RunError
from torchpbp.experiments.running.run_folder import check_unfinished, make_folder


def nearest_existing(folder: Path) -> Path:
    """The folder itself, or the one above it that is there."""
    return next(path for path in (folder, *folder.parents) if os.path.exists(path))


def remove_empty(folder: Path, above: Path) -> None:
    """Delete a folder if it is empty, then the one that held it, and so on.

    Args:
        folder: to begin with.
        above: is kept, and so is what is outside of it.
    """
    while above in folder.parents:
        try:
            folder.rmdir()
        except OSError:
            return  # not empty
        folder = folder.parent


@contextmanager
def _exit_on_error() -> Iterator[None]:
    """End the program with the message of an error about a folder: Hydra, which would go on, ends with a traceback."""
    try:
        yield
    except RunError as error:
        raise SystemExit(f"RunError: {error}") from None  # other errors of callbacks are mere warnings to Hydra


class EmptyFolders(Callback):
    """Hydra callback that takes back folders that Hydra made for runs that wrote nothing, and no others.

    Hydra makes the folder of a run before the program can look at the settings. A run that is rejected leaves the program
    at once, without a further call; its folder is then removed as Python exits. A sweep that would replace finished runs is
    rejected before its first job.
    """

    def __init__(self) -> None:
        self.sweep: Path | None = None
        self.jobs: frozenset[str] = frozenset()

    def on_run_start(self, config: Any, **kwargs: Any) -> None:
        folder = Path(config.hydra.run.dir).absolute()
        atexit.register(remove_empty, folder, nearest_existing(folder))
        with _exit_on_error():
            make_folder(config.hydra.run.dir)

    def on_multirun_start(self, config: Any, **kwargs: Any) -> None:
        self.sweep = Path(config.hydra.sweep.dir).absolute()
        self.jobs = frozenset(path.name for path in self.sweep.iterdir()) if os.path.isdir(self.sweep) else frozenset()
        atexit.register(remove_empty, self.sweep, nearest_existing(self.sweep))
        with _exit_on_error():
            make_folder(config.hydra.sweep.dir)
            if not config.get("resume"):
                check_unfinished(config.hydra.sweep.dir, sweep=True)

    def on_job_end(self, config: Any, **kwargs: Any) -> None:
        folder = Path(config.hydra.runtime.output_dir)
        if self.sweep is None or self.sweep not in folder.parents:
            return
        if folder.relative_to(self.sweep).parts[0] not in self.jobs:  # made by this sweep
            remove_empty(folder, self.sweep)
