"""Files from the internet: fetched within a time limit, checked, and written whole or not at all."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.request
from pathlib import Path
from typing import NamedTuple

from torchpbp.errors import DataError
from torchpbp.files.replacing import replacing


class RemoteFile(NamedTuple):
    """A file that is known byte for byte.

    Args:
        name: file name, the same at the source and on disk.
        size: length in bytes.
        sha256: hexadecimal digest.
    """

    name: str
    size: int
    sha256: str

    def matches(self, content: bytes) -> bool:
        """Whether ``content`` is this file."""
        return hashlib.sha256(content).hexdigest() == self.sha256


def fetch(file: RemoteFile, folder: str | os.PathLike[str], base_url: str, timeout: float, remedy: str = "") -> Path:
    """Download ``base_url/name`` into ``folder``, unless the very same file is already there.

    Args:
        file: what to fetch.
        folder: where to; made if need be.
        base_url: address of the folder at the source, of any scheme that urllib knows.
        timeout: seconds without an answer after which the source counts as out of reach.
        remedy: what else the reader of an error message can do.

    Raises:
        DataError: the source is out of reach, what came is not the file, or ``folder`` cannot be written.
    """
    target = Path(folder).expanduser() / file.name
    try:
        if target.is_file() and file.matches(target.read_bytes()):
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"Folder {target.parent}: expected a folder that can be written, got: {error}.") from error
    url = f"{base_url.rstrip('/')}/{file.name}"
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "torchpbp"})
        with urllib.request.urlopen(request, timeout=timeout) as response:
            content: bytes = response.read(file.size + 1)  # one more than wanted tells a longer file from the right one
    except (OSError, http.client.HTTPException, ValueError) as error:  # URLError and timeouts are kinds of OSError
        reason = getattr(error, "reason", None) or error
        raise DataError(
            f"Could not download {url}: {reason}. Check the connection and the address. {remedy}"
        ) from error
    if not file.matches(content):
        length = f"more than {file.size}" if len(content) > file.size else str(len(content))
        raise DataError(
            f"Downloaded {url}: expected {file.size} bytes with sha256 {file.sha256}, got {length} bytes with sha256 "
            f"{hashlib.sha256(content).hexdigest()}. Nothing was kept. Try again later or elsewhere. {remedy}"
        )
    try:
        with replacing(target) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise DataError(f"Folder {target.parent}: expected a folder that can be written, got: {error}.") from error
    return target
