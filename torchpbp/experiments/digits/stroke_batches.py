"""Pen strokes as batches of points for a network: distorted, balanced support rows first, the same after an interruption."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from torchpbp.datasets.digits import CLASSES, POINTS
from torchpbp.datasets.splits import hide_points
from torchpbp.errors import DataError
from torchpbp.experiments.digits.distortions import Distortions, distorted
from torchpbp.settings import whole

if TYPE_CHECKING:
    from torchpbp.datasets.digits_module import DigitsDataModule

DIGIT = "digit"
POINT_NAMES = tuple(f"p{t}" for t in range(1, POINTS + 1))
"""Names of the eight points, each a vector of its two coordinates."""
Batch = dict[str, Tensor]
"""Name of a point -> (rows, 2) coordinates, NaN where hidden; "digit" -> (rows,)."""
ROWS_AT_ONCE = 2048
"""Rows of a batch where nothing is learned by gradients."""


def point_columns(x: Tensor, y: Tensor | None = None) -> Batch:
    """(rows, 16) coordinates, and digits if there are any, as named columns."""
    points = x.reshape(len(x), POINTS, 2)
    columns = dict(zip(POINT_NAMES, points.unbind(dim=1), strict=True))
    return columns if y is None else {**columns, DIGIT: y}


class StrokeDraws(Dataset[Batch]):
    """Batch number i: support rows, as many of each digit, then query rows, both drawn by (seed, i) and distorted.

    Args:
        x: (rows, 16) complete strokes.
        y: (rows,) digits, each at least once.
        support: rows of each digit.
        query: rows drawn independently of these.
        amounts: of the distortions.
        seed: of all draws.
    """

    def __init__(self, x: Tensor, y: Tensor, support: int, query: int, amounts: Distortions, seed: int) -> None:
        counts = torch.bincount(y, minlength=CLASSES)
        if bool((counts == 0).any()):
            absent = (counts == 0).nonzero().flatten().tolist()
            raise DataError(f"Pen digits: expected training rows of every digit, got none of {absent}.")
        order = y.argsort(stable=True)
        self.x, self.y = x[order], y[order]  # grouped by digit
        self.counts, self.starts = counts, counts.cumsum(0) - counts
        self.support, self.query, self.amounts, self.seed = support, query, amounts, seed

    def __getitem__(self, number: int) -> Batch:
        generator = torch.Generator().manual_seed(int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0]))
        share = torch.rand(len(self.counts), self.support, generator=generator)
        support = self.starts.unsqueeze(1) + (share * self.counts.unsqueeze(1)).long()
        query = torch.randint(len(self.y), (self.query,), generator=generator)
        rows = torch.cat([support.flatten(), query])
        return point_columns(distorted(self.x[rows], self.amounts, generator), self.y[rows])


class Numbers(Sampler[int]):
    """Numbers of the batches of an epoch: epoch · length, epoch · length + 1, …

    Args:
        length: batches of an epoch.
    """

    def __init__(self, length: int) -> None:
        self.length, self.epoch = length, 0

    def set_epoch(self, epoch: int) -> None:
        """Lightning calls it before each epoch, after an interruption too."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        # The epoch is looked up when the first batch is: after an interruption Lightning makes the iterator before it sets it.
        for step in range(self.length):
            yield self.epoch * self.length + step


class Blocks(Dataset[Batch]):
    """Rows in order, in blocks.

    Args:
        columns: name -> (rows, …).
        rows: of a block.
    """

    def __init__(self, columns: Batch, rows: int = ROWS_AT_ONCE) -> None:
        self.columns, self.rows = columns, rows

    def __len__(self) -> int:
        return -(-len(self.columns[DIGIT]) // self.rows)

    def __getitem__(self, number: int) -> Batch:
        if number >= len(self):
            raise IndexError(number)
        return {name: column[number * self.rows : (number + 1) * self.rows] for name, column in self.columns.items()}


class DistortedCopies(Dataset[Batch]):
    """All rows as they are, then distorted copies of all of them, in blocks; made when asked for.

    Args:
        x: (rows, 16) complete strokes.
        y: (rows,) digits.
        copies: of each row.
        amounts: of the distortions.
        seed: of the draws.
    """

    def __init__(self, x: Tensor, y: Tensor, copies: int, amounts: Distortions, seed: int) -> None:
        self.x, self.y, self.copies, self.amounts, self.seed = x, y, copies, amounts, seed
        self.blocks = -(-len(y) // ROWS_AT_ONCE)

    def __len__(self) -> int:
        return (self.copies + 1) * self.blocks

    def __getitem__(self, number: int) -> Batch:
        if number >= len(self):
            raise IndexError(number)
        copy, block = divmod(number, self.blocks)
        rows = slice(block * ROWS_AT_ONCE, (block + 1) * ROWS_AT_ONCE)
        x, y = self.x[rows], self.y[rows]
        if copy:
            state = np.random.SeedSequence([self.seed, 1, number]).generate_state(1)[0]  # other draws than in training
            x = distorted(x, self.amounts, torch.Generator().manual_seed(int(state)))
        return point_columns(x, y)


class StrokeBatches(LightningDataModule):
    """Training batches of distorted strokes, validation rows complete and with half of their points hidden.

    Args:
        data: the pen digits, set up.
        steps: batches of an epoch.
        support: rows of each digit at the start of a batch, on which operators are solved.
        query: further rows, drawn independently of these, for which the loss is computed.
        copies: distorted copies of each training row on which operators are solved after training, besides the row itself.
        distortions: of training rows and copies.
        limit: validation rows at most; all by default.
        seed: of all draws.
    """

    def __init__(
        self,
        data: DigitsDataModule,
        steps: int = 250,
        support: int = 40,
        query: int = 256,
        copies: int = 4,
        distortions: Distortions | None = None,
        limit: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.steps = whole(1).check("steps", steps)
        self.support, self.query = whole(1).check("support", support), whole(1).check("query", query)
        self.copies = whole(0).check("copies", copies)
        self.distortions = distortions if distortions is not None else Distortions()
        self.seed = whole(0).check("seed", seed)
        self.draws = StrokeDraws(data.train_x, data.train_y, support, query, self.distortions, seed)
        x = data.val_x[:limit]
        both = torch.cat([x, hide_points(x, POINTS // 2, seed)])
        self.validation = Blocks(point_columns(both, data.val_y[:limit].repeat(2)))
        self.rows = data.train_x, data.train_y

    @property
    def support_share(self) -> float:
        """Share of a batch's rows that are support."""
        return CLASSES * self.support / (CLASSES * self.support + self.query)

    def train_dataloader(self) -> DataLoader[Batch]:
        """One virtual epoch."""
        return DataLoader(self.draws, batch_size=None, sampler=Numbers(self.steps))

    def val_dataloader(self) -> DataLoader[Batch]:
        """Validation rows, complete and with half of their points hidden."""
        return DataLoader(self.validation, batch_size=None)

    def solve_dataloader(self) -> DataLoader[Batch]:
        """All training rows and their distorted copies."""
        return DataLoader(DistortedCopies(*self.rows, self.copies, self.distortions, self.seed), batch_size=None)
