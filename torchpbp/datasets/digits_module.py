"""The pen digits as a Lightning data module."""

from __future__ import annotations

import os
from typing import Any, NoReturn

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from torchpbp.datasets.digits import POINTS, TRAIN_ROWS, load_digits
from torchpbp.datasets.splits import block_folds, cell_folds, hide_points, rows_per_class
from torchpbp.errors import ArgumentError
from torchpbp.settings import Constraint, between, choice, optional, whole

Batches = DataLoader[tuple[Tensor, ...]]

VALIDATION_ROWS = 494
"""Rows at the end of the training file kept for validation, which leaves 7,000 to learn from."""

CELL_SEED = 0
"""Of the cells of ``split="cells"``."""

_TENSORS = ("train_x", "train_y", "val_x", "val_y", "test_x", "test_y", "train_rows", "val_rows")


def _point_share(value: Any) -> int:
    points = between(0, 1).read(value) * POINTS
    if abs(points - round(points)) > 1e-6:
        raise ValueError
    return round(points)


POINT_SHARE = Constraint(f"a multiple of 1/{POINTS} from 0 to 1 (a share of {POINTS} points)", _point_share)


class DigitsDataModule(LightningDataModule):
    """Pen digits in batches of ((rows, 16) coordinates, (rows,) digits), and as plain tensors after :meth:`setup`.

    Validation rows are by the same writers as the training rows, so validation scores are optimistic; the test rows are by
    other writers. Blocks do not change that: the training file is not ordered by writer. Settings are better chosen on cells.

    Args:
        batch_size: rows per batch.
        train_size: number of training rows of each class, drawn at random by ``seed``; all of them by default.
        split: "official" trains on the first 7,000 rows of the training file and validates on the last 494; "blocks"
            validates on block ``fold`` of ``folds`` contiguous blocks of it, and trains on the others; "cells" does so
            with fold ``fold`` of :func:`~torchpbp.datasets.splits.cell_folds`, a stand-in for new writers.
        folds: number of folds, for ``split="blocks"`` and ``split="cells"``.
        fold: the validation fold, counted from 0.
        cells: k-means cells of each digit, for ``split="cells"``; drawn by a seed of their own, so that they are the same
            for every ``seed``.
        hide: share of the eight points of each validation and test row to hide at random by ``seed``, a multiple of
            1/8: NaN in both coordinates, as by ``hide_points(rows, round(8 * hide), seed)``.
        seed: of all draws, and of the order of the training batches.
        folder: holds the original text files; by default the copy inside the package is used.
        num_workers: processes that prepare batches; 0 is best for data this small.

    Raises:
        ArgumentError: a setting outside its range.

    Example:
        >>> data = DigitsDataModule(train_size=100, hide=0.5)
        >>> data.setup()
        >>> tuple(data.train_x.shape), int(data.test_x.isnan().sum(1).max())
        ((1000, 16), 8)
    """

    train_x: Tensor
    train_y: Tensor
    val_x: Tensor
    val_y: Tensor
    test_x: Tensor
    test_y: Tensor
    train_rows: Tensor
    val_rows: Tensor

    def __init__(
        self,
        batch_size: int = 256,
        train_size: int | None = None,
        split: str = "official",
        folds: int = 5,
        fold: int = 0,
        cells: int = 30,
        hide: float = 0.0,
        seed: int = 0,
        folder: str | os.PathLike[str] | None = None,
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        self.batch_size = whole(1).check("batch_size", batch_size)
        self.train_size = optional(whole(1)).check("train_size", train_size)
        self.split = choice("official", "blocks", "cells").check("split", split)
        self.folds = folds
        self.fold = fold
        self.cells = whole(1).check("cells", cells)
        if split == "official" and fold != 0:
            raise ArgumentError(f"fold: split='official' has no folds, so fold={fold!r} would change nothing.")
        if split != "official":
            self.fold = whole(0, len(block_folds(TRAIN_ROWS, folds)) - 1).check("fold", fold)
        self.hidden_points = POINT_SHARE.check("hide", hide)
        self.seed = whole(0).check("seed", seed)
        self.folder = folder
        self.num_workers = whole(0).check("num_workers", num_workers)

    def setup(self, stage: str | None = None) -> None:
        """Load and split the rows, once for all stages.

        Raises:
            DataError: unreadable files in ``folder``, or a class with fewer than ``train_size`` rows.
        """
        if "train_x" in vars(self):
            return
        digits = load_digits(self.folder)
        if self.split == "official":
            rows = torch.arange(TRAIN_ROWS)
            train, val = rows[:-VALIDATION_ROWS], rows[-VALIDATION_ROWS:]
        elif self.split == "blocks":
            train, val = block_folds(TRAIN_ROWS, self.folds)[self.fold]
        else:
            train, val = cell_folds(digits.train_x, digits.train_y, self.cells, self.folds, CELL_SEED)[self.fold]
        if self.train_size is not None:
            train = train[rows_per_class(digits.train_y[train], self.train_size, self.seed)]
        self.train_rows, self.val_rows = train, val
        self.val_x, self.val_y = hide_points(digits.train_x[val], self.hidden_points, self.seed), digits.train_y[val]
        self.test_x, self.test_y = hide_points(digits.test_x, self.hidden_points, self.seed), digits.test_y
        self.train_x, self.train_y = digits.train_x[train], digits.train_y[train]

    def train_dataloader(self) -> Batches:
        """Batches of training rows, in an order that changes from epoch to epoch."""
        order = torch.Generator().manual_seed(self.seed)
        data = TensorDataset(self.train_x, self.train_y)
        return DataLoader(data, self.batch_size, shuffle=True, generator=order, num_workers=self.num_workers)

    def val_dataloader(self) -> Batches:
        """Batches of validation rows, in order."""
        return DataLoader(TensorDataset(self.val_x, self.val_y), self.batch_size, num_workers=self.num_workers)

    def test_dataloader(self) -> Batches:
        """Batches of test rows, in order."""
        return DataLoader(TensorDataset(self.test_x, self.test_y), self.batch_size, num_workers=self.num_workers)

    def __getattr__(self, name: str) -> NoReturn:
        hint = ": call setup() first" if name in _TENSORS else ""
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'{hint}")
