"""The zip archive of a model file, checked before it is unpacked: declared sizes, structure and checksums.

``torch.save`` writes records one after the other, uncompressed, each once. Anything else can make a small file large in memory
and is rejected. ``torch.load`` itself compares no checksums.
"""

from __future__ import annotations

import os
import zipfile
from typing import BinaryIO

from torchpbp.errors import CheckpointError

LOCAL_HEADER = 30
"""Bytes before the name of a record."""
END = 22
"""Bytes at the end of an archive without a comment."""
CHUNK = 1 << 20


def check_archive(file: BinaryIO, name: str, remedy: str) -> int:
    """Check structure, sizes and checksums of an archive, with one chunk of it in memory at a time.

    Args:
        file: opened for reading.
        name: of the file, for errors.
        remedy: ends the errors.

    Returns:
        The size of the file in bytes.

    Raises:
        CheckpointError: records that are compressed, overlap, come twice, or declare more bytes than the file has; bytes that
            have changed since they were written.
        zipfile.BadZipFile: not a zip archive, or a truncated one.
    """
    size = file.seek(0, os.SEEK_END)
    if size < END:
        raise zipfile.BadZipFile("too short")
    file.seek(-END, os.SEEK_END)
    end = file.read(END)
    # Two readers agree on where an archive ends only if nothing follows its end.
    if not (end.startswith(b"PK\x05\x06") and end.endswith(b"\0\0")):
        raise zipfile.BadZipFile("no end of a zip archive")
    with zipfile.ZipFile(file) as archive:
        records = archive.infolist()
        fault = _fault(records, archive.start_dir, size)
        if fault is not None:
            raise CheckpointError(f"'{name}' was not written by torchpbp: {fault}. {remedy}")
        for record in records:
            with archive.open(record) as content:  # compares the checksum at the end
                while content.read(CHUNK):
                    pass
    return size


def _fault(records: list[zipfile.ZipInfo], directory: int, size: int) -> str | None:
    """What is wrong with the table of contents, or None.

    Args:
        records: as declared.
        directory: where the table of contents begins.
        size: of the file.
    """
    for r in records:
        if r.compress_type != zipfile.ZIP_STORED or r.compress_size != r.file_size:
            return f"its record '{r.filename}' is compressed, from {r.file_size:,} bytes to {r.compress_size:,}"
        if r.flag_bits & 0x1:
            return f"its record '{r.filename}' is encrypted"
    total = sum(r.file_size for r in records)
    if total > size:
        return f"its records declare {total:,} bytes, and the file has {size:,}"
    if len({r.filename for r in records}) < len(records):
        return "some of its records come twice"
    ordered = sorted(records, key=lambda r: r.header_offset)
    if ordered and ordered[0].header_offset != 0:
        return "there are bytes before its first record"
    starts = [*(r.header_offset for r in ordered[1:]), directory]
    for r, following in zip(ordered, starts, strict=True):
        if r.header_offset + LOCAL_HEADER + len(r.filename.encode()) + r.file_size > following:
            return f"its record '{r.filename}' overlaps what follows it"
    return None
