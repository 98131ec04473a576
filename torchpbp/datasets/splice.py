"""Splice junctions: DNA sequences around the boundaries of introns, and sequences without such a boundary.

"Molecular Biology (Splice-junction Gene Sequences)", donated by G. Towell, M. Noordewier and J. Shavlik, UCI Machine
Learning Repository, 1991, https://doi.org/10.24432/C5M888, licence CC BY 4.0. Each row consists of 60 letters,
with the possible junction in the middle, and one of three classes.
"""

from __future__ import annotations

import importlib.resources
import io
import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.model_selection import StratifiedGroupKFold
from torch import Tensor

from torchpbp.datasets.download import RemoteFile, fetch, read_original
from torchpbp.errors import DataError
from torchpbp.settings import whole

SITES = 60
"""Letters of a row."""

LETTERS = "ACGT"
"""States 0 to 3 of a site."""

AMBIGUOUS = "DNRS"
"""Letters for ambiguous bases; such sites are missing values."""

SPLICE_CLASSES = ("EI", "IE", "N")
"""Exon to intron, intron to exon, neither: classes 0 to 2."""

SPLICE_SITES = tuple(f"x{t}" for t in range(1, SITES + 1))
"""Names of the columns, as :func:`torchpbp.templates.hmm` names its observables."""

ROWS = 3_190
UCI_URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/molecular-biology/splice-junction-gene-sequences"
SPLICE_FILE = RemoteFile("splice.data", 319_000, "ebbae10c85d3c285e2a2489a37e42bc2ee8d91d15005e391a9962fa3389a114f")
_SEQUENCE = re.compile(f"[{LETTERS}{AMBIGUOUS}]{{{SITES}}}")


@dataclass(frozen=True, eq=False, repr=False)
class Splice:
    """The splice junctions, ordered by sequence and class.

    Args:
        x: (3190, 60) int64 states of the sites in the order of :data:`LETTERS`; -1 where missing.
        y: (3190,) int64 classes in the order of :data:`SPLICE_CLASSES`.
        group: (3190,) int64; rows of the same sequence have the same number.
    """

    x: Tensor
    y: Tensor
    group: Tensor

    def __repr__(self) -> str:
        different = int(self.group.max()) + 1
        return f"Splice({len(self.y):,} rows of {SITES} sites, {different:,} different sequences)"

    def folds(self, k: int = 10, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
        """Stratified cross-validation that keeps equal sequences in one fold.

        Args:
            k: number of folds.
            seed: of the shuffling.

        Returns:
            k pairs of int64 row numbers (training rows, validation rows).
        """
        return grouped_folds(self.y, self.group, k, seed)

    def filled(self, seed: int = 0) -> Tensor:
        """(3190, 60) states with each missing site drawn uniformly, for learners that need complete rows."""
        drawn = torch.randint(len(LETTERS), self.x.shape, generator=torch.Generator().manual_seed(seed))
        return torch.where(self.x < 0, drawn, self.x)


def grouped_folds(y: Tensor, group: Tensor, k: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """k pairs (training rows, validation rows): stratified by class, with each group in one fold.

    Args:
        y: (n,) classes.
        group: (n,) number of each row's group.
        k: number of folds.
        seed: of the shuffling.
    """
    groups = len(set(group.tolist()))
    k = whole(2, groups).check("folds", k)
    splitter = StratifiedGroupKFold(k, shuffle=True, random_state=seed)
    parts = splitter.split(np.zeros(len(y)), y.numpy(), group.numpy())
    return [(torch.from_numpy(learn), torch.from_numpy(check)) for learn, check in parts]


def load_splice(folder: str | os.PathLike[str] | None = None) -> Splice:
    """The splice junctions, from the copy inside the package or from the original text file.

    Args:
        folder: holds ``splice.data`` (see :func:`download_splice`); by default the bundled copy.

    Raises:
        DataError: the file in ``folder`` is missing or has unexpected contents.

    Example:
        >>> load_splice()
        Splice(3,190 rows of 60 sites, 3,005 different sequences)
    """
    if folder is None:
        bundled = importlib.resources.files("torchpbp.datasets").joinpath("files", "splice.npz")
        with np.load(io.BytesIO(bundled.read_bytes()), allow_pickle=False) as arrays:
            letters, classes = arrays["letters"], arrays["classes"]
        rows = [
            (sequence.tobytes().decode("ascii"), SPLICE_CLASSES[c])
            for sequence, c in zip(letters, classes, strict=True)
        ]
    else:
        content = read_original(SPLICE_FILE, folder, "splice")
        rows = sorted(parse_splice(content, str(Path(folder) / SPLICE_FILE.name)))
    sequences = [sequence for sequence, _ in rows]
    x = torch.tensor([[LETTERS.find(letter) for letter in sequence] for sequence in sequences])
    y = torch.tensor([SPLICE_CLASSES.index(c) for _, c in rows])
    group = torch.from_numpy(np.unique(sequences, return_inverse=True)[1].astype(np.int64))
    return Splice(x, y, group)


def download_splice(folder: str | os.PathLike[str], base_url: str = UCI_URL, timeout: float = 30.0) -> Path:
    """Download the original text file from the UCI repository, to be read by ``load_splice(folder)``.

    Args:
        folder: target of the file; created if needed.
        base_url: address of the folder that contains it.
        timeout: seconds to wait for a response.

    Returns:
        The folder.

    Raises:
        DataError: no connection, wrong checksum, or ``folder`` cannot be written.
    """
    fetch(SPLICE_FILE, folder, base_url, timeout, "The copy inside the package needs no download: call load_splice().")
    return Path(folder).expanduser()


def parse_splice(content: bytes, source: str) -> list[tuple[str, str]]:
    """Read lines of class, name and sequence, separated by commas.

    Args:
        content: of the original file.
        source: name of the file, for messages.

    Returns:
        (sequence, class) of each row, in the file's order.
    """
    try:
        text = content.decode("ascii")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{source}: expected plain text, got byte {content[error.start]:#04x} at position {error.start}."
        ) from error
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{source}, line {number}"
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 3:
            raise DataError(f"{where}: expected class, name and sequence, got {len(cells)} columns.")
        rows.append(checked_row(cells[2], cells[0], where))
    return checked_count(rows, source)


def checked_row(sequence: str, label: str, where: str) -> tuple[str, str]:
    """The row, if it is valid."""
    if label not in SPLICE_CLASSES:
        raise DataError(f"{where}: expected one of the classes {', '.join(SPLICE_CLASSES)}, got {label[:20]!r}.")
    if not _SEQUENCE.fullmatch(sequence):
        raise DataError(
            f"{where}: expected {SITES} letters out of {LETTERS}{AMBIGUOUS}, got {len(sequence)}: {sequence[:70]!r}."
        )
    return sequence, label


def checked_count(rows: list[tuple[str, str]], source: str) -> list[tuple[str, str]]:
    """The rows, if their number is right."""
    if len(rows) != ROWS:
        raise DataError(f"{source}: expected {ROWS:,} rows, got {len(rows):,}. Download it again.")
    return rows
