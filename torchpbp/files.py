"""Files that appear whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a path beside ``path`` to write to; it takes the place of ``path`` once the block ends without an error.

    After an error, a full disk or Ctrl-C the old file is as it was, and nothing is left beside it.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    # The end of a name says what kind of file it is to some writers, and two threads must not share one.
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        _to_disk(temporary)  # else a crash of the machine could leave the new name with old or no bytes
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
