"""Atomic writing: a file is replaced as a whole or not at all, whatever happens while it is written."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torchpbp.files.paths import KINDS

TEMPORARY = re.compile(r"\.(?P<target>.+)\.\d+\.[0-9a-f]{8}\.tmp", re.DOTALL)
"""Name of a temporary file of :func:`replacing`: the target, the process that writes, and a random number."""


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary file beside ``path`` to write to; it replaces ``path`` once the block ends without an error.

    After an error, a full disk or Ctrl-C the old file is unchanged, and the temporary one is deleted. A process that is killed
    leaves its temporary file; the next one to write the same path removes it. The new file has the permissions of the old
    one, and where ``path`` is a symbolic link, its target is replaced.

    Args:
        path: of the file. Missing folders are made.

    Raises:
        OSError: the file cannot be written, or ``path`` is a folder, a named pipe, a socket or a device; then nothing is
            written at all.
    """
    target = Path(path)
    old = _regular(target)
    if target.is_symlink():
        target = Path(os.path.realpath(target))
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target.parent, target.name)
    temporary, lock = _temporary(target, private=old is not None)
    try:
        yield temporary
        _finish(temporary, old)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
        if lock is not None:
            os.close(lock)


def remove_leftovers(folder: str | os.PathLike[str], name: str | None = None) -> None:
    """Delete temporary files of :func:`replacing` whose writers were killed; those of living writers are locked and stay.

    Args:
        folder: where they are; files in folders below it are left alone.
        name: of the file they were to replace; ``None``: of any.
    """
    try:
        entries = os.listdir(folder)
    except OSError:
        return  # it is not there, or may not be read
    for entry in entries:
        match = TEMPORARY.fullmatch(entry) if entry.endswith(".tmp") else None
        if match is not None and name in (None, match["target"]):
            _remove_unlocked(Path(folder) / entry)


def lock_file(handle: int, exclusive: bool = True) -> bool | None:
    """Lock an open file until it is closed. The system lets go of it when the process ends, however it ends.

    Args:
        handle: of the file.
        exclusive: no other lock may be held at the same time; otherwise only no exclusive one.

    Returns:
        Whether it is locked now; ``None`` where the system or the file system has no such locks.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    try:
        fcntl.flock(handle, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _regular(path: Path) -> os.stat_result | None:
    """Status of an existing file; ``None`` if there is none.

    Raises:
        OSError: the path is a folder, or something else than a file.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    except ValueError as error:  # a null character, say
        raise OSError(errno.EINVAL, f"expected the name of a file ({error})", str(path)) from error
    if not stat.S_ISREG(status.st_mode):
        kind = KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise OSError(errno.EINVAL, f"expected a regular file or a new name, got {kind}", str(path))
    return status


def _temporary(target: Path, private: bool) -> tuple[Path, int | None]:
    """Make a temporary file with a unique name: two threads must not share one.

    Args:
        target: the file to be replaced.
        private: readable by this user only, as the file to be replaced may be.

    Returns:
        Its path, and the handle that locks it, to be closed in the end; ``None`` where there are no locks.
    """
    while True:
        temporary = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
        locked = lock_file(handle)
        if locked is None:
            os.close(handle)  # Windows moves no file that is open
        # Another writer may have taken it for a leftover before it was locked.
        if locked is None or (locked and _exists(temporary, handle)):
            os.utime(temporary, (time.time(), 0))  # tells later whether anything was written
            return temporary, handle if locked else None
        os.close(handle)
        temporary.unlink(missing_ok=True)


def _exists(path: Path, handle: int) -> bool:
    """Whether an open file still has its name."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


def _finish(temporary: Path, old: os.stat_result | None) -> None:
    """Give a temporary file the owner and permissions of the old one, and flush it to the disk."""
    handle = os.open(temporary, os.O_RDWR)
    try:
        if os.fstat(handle).st_mtime == 0:
            raise FileNotFoundError(errno.ENOENT, "nothing was written to the temporary file", str(temporary))
        if old is not None and hasattr(os, "fchmod"):
            _keep_owner(handle, old)
            os.fchmod(handle, old.st_mode & 0o777)
        os.fsync(handle)  # else a crash of the machine could leave the new name with old or no bytes
    finally:
        os.close(handle)


def _keep_owner(handle: int, old: os.stat_result) -> None:
    """Give a file to the owner and group of another, or at least to its group, as far as this user may."""
    now = os.fstat(handle)
    for owner, group in ((old.st_uid, old.st_gid), (now.st_uid, old.st_gid)):
        if (owner, group) == (now.st_uid, now.st_gid):
            return
        with suppress(OSError):
            os.fchown(handle, owner, group)
            return


def _remove_unlocked(path: Path) -> None:
    flags = (
        os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    )  # whatever it is that has such a name
    with suppress(OSError):
        handle = os.open(path, flags)
        try:
            if stat.S_ISREG(os.fstat(handle).st_mode) and lock_file(handle, exclusive=False):
                path.unlink(missing_ok=True)
        finally:
            os.close(handle)
