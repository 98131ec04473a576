"""The log file of a run, to which nothing is written before the run has its folder for itself."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class HeldLog(logging.FileHandler):
    """Keeps what is logged until :func:`written_logs` says where to write it; without that, no file is made or changed.

    Args:
        filename: of the log; its folder is that of the run.
    """

    def __init__(self, filename: str | os.PathLike[str]) -> None:
        super().__init__(filename, encoding="utf-8", delay=True)
        self._held: list[logging.LogRecord] | None = []

    def emit(self, record: logging.LogRecord) -> None:
        if self._held is None:
            super().emit(record)
        else:
            self._held.append(record)

    def write_to(self, folder: Path) -> None:
        """Write what was kept to the end of the file in a folder, and from now on whatever is logged."""
        held, self._held = self._held, None
        self.baseFilename = str(folder.absolute() / Path(self.baseFilename).name)
        self.stream = self._open()
        for record in held or []:
            self.handle(record)

    def hold(self) -> None:
        """Write no more."""
        self._held = []
        if self.stream is not None:
            self.stream.close()
            self.stream = None  # as FileHandler.close() does


@contextmanager
def written_logs(folder: Path) -> Iterator[None]:
    """Let logs be written to a folder while the block runs.

    Args:
        folder: that the run has claimed.
    """
    held = [handler for handler in logging.getLogger().handlers if isinstance(handler, HeldLog)]
    try:
        for handler in held:
            handler.write_to(folder)
        yield
    finally:
        for handler in held:
            handler.hold()
