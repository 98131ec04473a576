"""Downloads: fetched within a time limit, checked, and written atomically."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.request
from pathlib import Path
from typing import NamedTuple

from torchpbp.errors import DataError
from torchpbp.io import replacing


class RemoteFile(NamedTuple):
    """A file with known contents.

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
    """Download ``base_url/name`` into ``folder``, unless the same file already exists.

    Args:
        file: the file to fetch.
        folder: target; created if needed.
        base_url: address of the folder at the source, of any scheme that urllib supports.
        timeout: seconds to wait for a response.
        remedy: advice to append to error messages.

    Raises:
        DataError: the source cannot be reached, the contents are not those expected, or ``folder`` cannot be written.
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
            content: bytes = response.read(file.size + 1)  # one more than expected reveals a longer file
    except (OSError, http.client.HTTPException, ValueError) as error:  # URLError and timeouts are OSErrors
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


def read_original(file: RemoteFile, folder: str | os.PathLike[str], name: str) -> bytes:
    """The contents of an original file of a data set.

    Args:
        file: which one.
        folder: contains it.
        name: of the data set, as in ``load_<name>`` and ``download_<name>``.

    Raises:
        DataError: the file cannot be read.
    """
    path = Path(folder).expanduser() / file.name
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: null characters
        raise DataError(
            f"Could not read {path}: {getattr(error, 'strerror', None) or error}. Fetch it with "
            f"download_{name}({str(folder)!r}), or call load_{name}() without a folder for the copy inside the package."
        ) from error
