"""Networks in the Bayesian Interchange Format, version 0.15: read and written."""

from __future__ import annotations

import gzip
import os
import zlib
from itertools import product
from pathlib import Path
from typing import BinaryIO

from torchpbp.errors import ArgumentError, DataError
from torchpbp.graph.bif_parser import BIF, parse_bif
from torchpbp.graph.bif_rows import Table
from torchpbp.graph.bif_tokens import TOKEN
from torchpbp.io import checked_path, open_for_reading, replacing

__all__ = ["BIF", "format_bif", "parse_bif", "read_bif", "write_bif"]


LARGEST_FILE = 2**26
"""Most bytes of text that are read: 64 MiB, also where a compressed file holds more. Published networks have 6 MB at most."""
CHUNK = 2**20


def read_bif(path: str | os.PathLike[str]) -> BIF:
    """Read a file, plain or compressed by gzip.

    Raises:
        DataError: no such file, not in this format (the message has the line), more than ``LARGEST_FILE`` bytes, or
            tables that are too large (see :func:`parse_bif`).
    """
    try:
        with open_for_reading(_expanded(path), "a BIF file", DataError) as raw:
            compressed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            content = _bounded(gzip.GzipFile(fileobj=raw) if compressed else raw, str(path))
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: expected text in the Bayesian Interchange Format, got other bytes.") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"Could not read {path}: {getattr(error, 'strerror', None) or error}.") from error
    del content  # not needed besides the text
    return parse_bif(text, str(path))


def format_bif(bif: BIF, name: str = "unknown") -> str:
    """The text of a network; numbers are printed so that reading restores them exactly."""
    lines = [f"network {_quoted(name)} {{\n}}"]
    for v, labels in bif.states.items():
        listed = ", ".join(_quoted(label) for label in labels)
        lines.append(f"variable {_quoted(v)} {{\n  type discrete [ {len(labels)} ] {{ {listed} }};\n}}")
    for v, parents in bif.parents.items():
        table = bif.tables[v]
        if not parents:
            lines.append(f"probability ( {_quoted(v)} ) {{\n  table {_numbers(table)};\n}}")
            continue
        given = ", ".join(_quoted(p) for p in parents)
        rows = [
            f"  ({', '.join(_quoted(bif.states[p][i]) for p, i in zip(parents, at, strict=True))}) {_numbers(table[at])};"
            for at in product(*(range(n) for n in table.shape[:-1]))
        ]
        lines.append(f"probability ( {_quoted(v)} | {given} ) {{\n" + "\n".join(rows) + "\n}")
    return "\n".join(lines) + "\n"


def write_bif(path: str | os.PathLike[str], bif: BIF, name: str = "unknown") -> None:
    """Write a network atomically; compressed by gzip if the path ends with .gz. Missing folders are created.

    Raises:
        DataError: the file cannot be written, or a name cannot be written in this format.
    """
    target = _expanded(path)
    try:
        content = format_bif(bif, name).encode("utf-8")
        with replacing(target) as temporary:
            temporary.write_bytes(gzip.compress(content) if target.suffix == ".gz" else content)
    except UnicodeEncodeError as error:
        raise DataError(
            f"Could not write {target}: {error.object[error.start : error.end]!r} is not valid text."
        ) from error
    except OSError as error:
        raise DataError(f"Could not write {target}: {error.strerror or error}.") from error


def _expanded(path: str | os.PathLike[str]) -> Path:
    """The path of a file, ~ standing for the user's folder.

    Raises:
        ArgumentError: not a path, or of a user that does not exist.
    """
    checked = checked_path(path, "a BIF file")
    try:
        return checked.expanduser()
    except RuntimeError as error:
        raise ArgumentError(f"Expected the path of a BIF file, got {str(checked)!r} ({error}).") from error


def _bounded(stream: BinaryIO | gzip.GzipFile, source: str) -> bytearray:
    """All bytes of a stream.

    Raises:
        DataError: there are more than ``LARGEST_FILE``; no more than one beyond is read.
    """
    content = bytearray()
    while chunk := stream.read(min(CHUNK, LARGEST_FILE + 1 - len(content))):
        content += chunk
        if len(content) > LARGEST_FILE:
            raise DataError(
                f"{source}: expected at most {LARGEST_FILE:,} bytes of text, got more. If it is meant to be that large, raise "
                "torchpbp.graph.bif.LARGEST_FILE."
            )
    return content


def _numbers(row: Table) -> str:
    return ", ".join(repr(float(p)) for p in row)


def _quoted(word: str) -> str:
    """A name as it is, or in quotation marks if it would be read as several tokens."""
    if not isinstance(word, str):
        raise DataError(f"Expected a string as a name, got {word!r}.")
    match = TOKEN.fullmatch(word)
    plain = match is not None and match.lastgroup == "word" and not word.startswith(("//", "/*"))
    if plain:
        return word
    if '"' in word or "\n" in word:
        raise DataError(f"{word!r}: names in this format cannot contain quotation marks or line breaks.")
    return f'"{word}"'
