"""The pen digits as a Lightning data module."""

from __future__ import annotations

import os
from typing import NoReturn

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from torchpbp.datasets.digits import TRAIN_ROWS, load_digits
from torchpbp.datasets.splits import cell_folds, rows_per_class
from torchpbp.errors import ArgumentError
from torchpbp.settings import choice, optional, whole

Batches = DataLoader[tuple[Tensor, ...]]

VALIDATION_ROWS = 494
"""Rows at the end of the training file kept for validation, which leaves 7,000 to learn from."""

CELLS, FOLDS, CELL_SEED = 30, 5, 0
"""k-means cells of each digit, folds they are dealt to, and seed of both: the same for every seed of the module."""

_TENSORS = ("train_x", "train_y", "val_x", "val_y", "test_x", "test_y", "train_rows", "val_rows")


class DigitsDataModule(LightningDataModule):
    """Pen digits in batches of ((rows, 16) coordinates, (rows,) digits), and as plain tensors after :meth:`setup`.

    Validation rows are by the same writers as the training rows, so validation scores are optimistic; the test rows are by
    other writers. Settings are better chosen on cells.

    Args:
        batch_size: rows per batch.
        train_size: number of training rows of each class, drawn at random by ``seed``; all of them by default.
        split: "official" trains on the first 7,000 rows of the training file and validates on the last 494; "cells" validates
            on fold ``fold`` of :func:`~torchpbp.datasets.splits.cell_folds`, a stand-in for new writers.
        fold: the validation fold of ``split="cells"``, counted from 0.
        seed: of all draws, and of the order of the training batches.
        folder: holds the original text files; by default the copy inside the package is used.

    Raises:
        ArgumentError: a setting outside its range.

    Example:
        >>> data = DigitsDataModule(train_size=100)
        >>> data.setup()
        >>> tuple(data.train_x.shape), tuple(data.test_x.shape)
        ((1000, 16), (3498, 16))
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
        fold: int = 0,
        seed: int = 0,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        self.batch_size = whole(1).check("batch_size", batch_size)
        self.train_size = optional(whole(1)).check("train_size", train_size)
        self.split = choice("official", "cells").check("split", split)
        self.fold = whole(0, FOLDS - 1).check("fold", fold)
        if split == "official" and fold != 0:
            raise ArgumentError(f"fold: split='official' has no folds, so fold={fold!r} would change nothing.")
        self.seed = whole(0).check("seed", seed)
        self.folder = folder

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
        else:
            train, val = cell_folds(digits.train_x, digits.train_y, CELLS, FOLDS, CELL_SEED)[self.fold]
        if self.train_size is not None:
            train = train[rows_per_class(digits.train_y[train], self.train_size, self.seed)]
        self.train_rows, self.val_rows = train, val
        self.train_x, self.train_y = digits.train_x[train], digits.train_y[train]
        self.val_x, self.val_y = digits.train_x[val], digits.train_y[val]
        self.test_x, self.test_y = digits.test_x, digits.test_y

    def train_dataloader(self) -> Batches:
        """Batches of training rows, in an order that changes from epoch to epoch."""
        order = torch.Generator().manual_seed(self.seed)
        data = TensorDataset(self.train_x, self.train_y)
        return DataLoader(data, self.batch_size, shuffle=True, generator=order)

    def val_dataloader(self) -> Batches:
        """Batches of validation rows, in order."""
        return DataLoader(TensorDataset(self.val_x, self.val_y), self.batch_size)

    def test_dataloader(self) -> Batches:
        """Batches of test rows, in order."""
        return DataLoader(TensorDataset(self.test_x, self.test_y), self.batch_size)

    def __getattr__(self, name: str) -> NoReturn:
        hint = ": call setup() first" if name in _TENSORS else ""
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'{hint}")
