"""Networks in the Bayesian Interchange Format, version 0.15: read and written."""

from __future__ import annotations

import gzip
import os
import zlib
from itertools import product
from pathlib import Path

from torchpbp.errors import DataError
from torchpbp.files import replacing
from torchpbp.graph.bif_parser import BIF, TOKEN, Table, parse_bif

__all__ = ["BIF", "format_bif", "parse_bif", "read_bif", "write_bif"]


def read_bif(path: str | os.PathLike[str]) -> BIF:
    """Read a file, plain or compressed by gzip.

    Raises:
        DataError: no such file, or not in this format; with the line.
    """
    source = str(path)
    try:
        content = Path(path).expanduser().read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        text = content.decode("utf-8")
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"Could not read {source}: {getattr(error, 'strerror', None) or error}.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{source}: expected text in the Bayesian Interchange Format, got other bytes.") from error
    return parse_bif(text, source)


def format_bif(bif: BIF, name: str = "unknown") -> str:
    """The text of a network; numbers are printed so that reading gives the same ones back."""
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
    """Write a network, whole or not at all; compressed by gzip if the path ends with .gz. Missing folders are made."""
    target = Path(path).expanduser()
    content = format_bif(bif, name).encode("utf-8")
    try:
        with replacing(target) as temporary:
            temporary.write_bytes(gzip.compress(content) if target.suffix == ".gz" else content)
    except OSError as error:
        raise DataError(f"Could not write {target}: {error.strerror or error}.") from error


def _numbers(row: Table) -> str:
    return ", ".join(repr(float(p)) for p in row)


def _quoted(word: str) -> str:
    """A name as it is, or in quotation marks if the format would take it apart."""
    match = TOKEN.fullmatch(word)
    plain = match is not None and match.lastgroup == "word" and not word.startswith(("//", "/*"))
    if plain:
        return word
    if '"' in word or "\n" in word:
        raise DataError(f"{word!r}: names in this format may hold no quotation marks and no line breaks.")
    return f'"{word}"'
