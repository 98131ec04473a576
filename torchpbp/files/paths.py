"""Paths of files, checked before use: not a path, no such file, a folder and no permission have different errors."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from torchpbp.errors import ArgumentError, TorchPBPError
from torchpbp.settings import shortened

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


def checked_path(path: Any, what: str) -> Path:
    """The path.

    Args:
        path: a string or ``os.PathLike`` of one.
        what: is to be there, such as "a model file".

    Raises:
        ArgumentError: None, numbers, bytes, an empty string, characters that no path can have.
    """
    try:
        text = os.fspath(path)
        if not isinstance(text, str) or not text or b"\0" in os.fsencode(text):
            raise TypeError
    except Exception:  # an os.PathLike may raise anything
        raise ArgumentError(f"Expected the path of {what}, got {shortened(path)}.") from None
    return Path(text)


def open_for_reading(path: Path, what: str, error: type[TorchPBPError]) -> BinaryIO:
    """Open a regular file; reading a named pipe, for instance, could block.

    Args:
        path: of the file.
        what: it should be, such as "a model file".
        error: to raise.

    Raises:
        error: no such file, a folder or something else than a file, or no permission to read it.
    """
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISREG(mode):
            return open(path, "rb")
    except OSError as reason:
        raise error(reading_fault(path, what, reason)) from reason
    raise error(
        f"'{shown(path)}' is {KINDS.get(stat.S_IFMT(mode), 'no regular file')}: expected {what}. Check the path."
    )


def reading_fault(path: Path, what: str, reason: OSError) -> str:
    """Why a file cannot be read, in words.

    Args:
        path: of the file.
        what: it should be.
        reason: what the system says.
    """
    if isinstance(reason, FileNotFoundError | NotADirectoryError):
        return f"No {what.removeprefix('a ')} at '{shown(path)}'. Check the path."
    if isinstance(reason, PermissionError):
        return (
            f"'{shown(path)}' may not be read: permission denied. Change the permissions of the file or of its folders."
        )
    return f"'{shown(path)}' cannot be read: {reason.strerror or reason}."


def shown(path: object) -> str:
    """A path as it appears in an error: very long ones are cut in the middle."""
    text = str(path)
    return text if len(text) <= 300 else f"{text[:150]}…{text[-100:]}"
