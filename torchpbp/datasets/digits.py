"""The pen digits: handwritten digits as eight pen positions each.

E. Alpaydin and F. Alimoglu, "Pen-Based Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998,
https://doi.org/10.24432/C5MG6K, licence CC BY 4.0. Thirty people wrote the training digits, fourteen others the test
digits. Each digit is a stroke resampled to eight points at equal distances along it, scaled into the square [0, 100]².
"""

from __future__ import annotations

import importlib.resources
import io
import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from torchpbp.datasets.download import RemoteFile, fetch, read_original
from torchpbp.errors import DataError

POINTS = 8
"""Pen positions of a digit."""

CLASSES = 10
"""Digits 0 to 9."""

LARGEST = 100
"""Coordinates are whole numbers from 0 to this."""

FEATURES = tuple(f"{axis}{t}" for t in range(1, POINTS + 1) for axis in "xy")
"""Names of the 16 columns: x1, y1, x2, y2, …, x8, y8; x grows to the right and y upwards."""

TRAIN_ROWS, TEST_ROWS = 7_494, 3_498

UCI_URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/pendigits"
TRAIN_FILE = RemoteFile("pendigits.tra", 502_098, "e2b9eb9f0d0467e2b64a4816a3420edf2b8043447576f4b84337aba44a9f97d3")
TEST_FILE = RemoteFile("pendigits.tes", 234_366, "8bd03229c5c5291fefe43e45465dd948d2645bf23328b9d993e0b777666b2015")

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,9}")


@dataclass(frozen=True, eq=False, repr=False)
class Digits:
    """The pen digits in their official split, rows in the order of the original files.

    Args:
        train_x: (7494, 16) float32 coordinates from 0 to 100, columns as in :data:`FEATURES`.
        train_y: (7494,) int64 digits.
        test_x: (3498, 16) float32, by people who wrote none of the training digits.
        test_y: (3498,) int64.
    """

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor

    def __repr__(self) -> str:
        return (
            f"Digits({len(self.train_y):,} training and {len(self.test_y):,} test rows of {len(FEATURES)} coordinates)"
        )


def load_digits(folder: str | os.PathLike[str] | None = None) -> Digits:
    """The pen digits, from the copy inside the package or from the original text files.

    Args:
        folder: holds ``pendigits.tra`` and ``pendigits.tes`` (see :func:`download_digits`); by default the bundled copy.

    Raises:
        DataError: a file in ``folder`` is missing or has unexpected contents.

    Example:
        >>> load_digits()
        Digits(7,494 training and 3,498 test rows of 16 coordinates)
    """
    if folder is None:
        bundled = importlib.resources.files("torchpbp.datasets").joinpath("files", "pendigits.npz")
        with np.load(io.BytesIO(bundled.read_bytes()), allow_pickle=False) as arrays:
            parts = [arrays[name] for name in ("train_x", "train_y", "test_x", "test_y")]
    else:
        parts = []
        for file, rows in ((TRAIN_FILE, TRAIN_ROWS), (TEST_FILE, TEST_ROWS)):
            table = parse_rows(read_original(file, folder, "digits"), rows, str(Path(folder) / file.name))
            parts += [table[:, :-1], table[:, -1]]
    train_x, train_y, test_x, test_y = (torch.from_numpy(np.ascontiguousarray(part)) for part in parts)
    return Digits(train_x.float(), train_y.long(), test_x.float(), test_y.long())


def download_digits(folder: str | os.PathLike[str], base_url: str = UCI_URL, timeout: float = 30.0) -> Path:
    """Download the two original text files from the UCI repository, to be read by ``load_digits(folder)``.

    Files that already exist with the right checksum are not fetched again.

    Args:
        folder: target of the files; created if needed.
        base_url: address of the folder that contains them.
        timeout: seconds to wait for a response.

    Returns:
        The folder.

    Raises:
        DataError: no connection, wrong checksum, or ``folder`` cannot be written.
    """
    for file in (TRAIN_FILE, TEST_FILE):
        fetch(file, folder, base_url, timeout, "The copy inside the package needs no download: call load_digits().")
    return Path(folder).expanduser()


def parse_rows(content: bytes, rows: int, source: str) -> npt.NDArray[np.uint8]:
    """Read lines of 16 coordinates and the digit, separated by commas.

    Args:
        content: of a text file; blank lines are skipped.
        rows: expected number of rows.
        source: name of the file, for messages.

    Returns:
        (rows, 17) unsigned bytes.

    Raises:
        DataError: not text, empty, wrong number of rows or columns, not whole numbers, or out of range.
    """
    try:
        text = content.decode("ascii")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{source}: expected plain text with numbers, got byte {content[error.start]:#04x} at position {error.start}."
        ) from error
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if not lines:
        raise DataError(f"{source}: expected {rows} rows of digits, got an empty file. Download it again.")
    table = np.empty((len(lines), len(FEATURES) + 1), dtype=np.uint8)
    for row, (number, line) in enumerate(lines):
        table[row] = _parse_line(line, f"{source}, line {number}")
    if len(lines) != rows:
        what = "is truncated" if len(lines) < rows else "has additional rows"
        raise DataError(f"{source}: expected {rows} rows, got {len(lines)}; the file {what}. Download it again.")
    return table


def format_rows(table: npt.NDArray[np.uint8]) -> bytes:
    """The text of the original files, byte for byte: three places for a coordinate, two for the digit.

    Args:
        table: (rows, 17) numbers.
    """
    return "".join(",".join(f"{v:3d}" for v in row[:-1]) + f",{row[-1]:2d}\n" for row in table.tolist()).encode("ascii")


def _parse_line(line: str, where: str) -> list[int]:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(FEATURES) + 1:
        raise DataError(
            f"{where}: expected {len(FEATURES) + 1} columns (16 coordinates and the digit), got {len(cells)}."
        )
    values = []
    for column, cell in enumerate(cells):
        name = FEATURES[column] if column < len(FEATURES) else "digit"
        largest = LARGEST if column < len(FEATURES) else CLASSES - 1
        if not _WHOLE_NUMBER.fullmatch(cell):
            raise DataError(f"{where}, {name}: expected a whole number from 0 to {largest}, got {cell[:20]!r}.")
        values.append(int(cell))
        if not 0 <= values[-1] <= largest:
            raise DataError(f"{where}, {name}: expected a whole number from 0 to {largest}, got {cell}.")
    return values
