"""Pen strokes as batches of points for a network, distorted at random."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.data import Dataset

from torchpbp.datasets.digits import CLASSES, POINTS
from torchpbp.datasets.splits import hide_points
from torchpbp.experiments.digits.distortions import Distortions, distorted
from torchpbp.experiments.running.drawn_batches import ROWS_AT_ONCE, BalancedDraws, Batch, DrawnBatches, generator_of
from torchpbp.settings import whole

if TYPE_CHECKING:
    from torchpbp.datasets.digits_module import DigitsDataModule

DIGIT = "digit"
POINT_NAMES = tuple(f"p{t}" for t in range(1, POINTS + 1))
"""Names of the eight points, each a vector of its two coordinates."""


def point_columns(x: Tensor, y: Tensor | None = None) -> Batch:
    """(rows, 16) coordinates, and digits if there are any, as named columns."""
    points = x.reshape(len(x), POINTS, 2)
    columns = dict(zip(POINT_NAMES, points.unbind(dim=1), strict=True))
    return columns if y is None else {**columns, DIGIT: y}


class DistortedCopies(Dataset[Batch]):
    """All rows as they are, then distorted copies of all of them, in blocks; made when asked for.

    Args:
        x: (rows, 16) complete strokes.
        y: (rows,) digits.
        copies: of each row.
        amounts: of the distortions.
        seed: of the draws.
        rows: of a block.
    """

    def __init__(
        self, x: Tensor, y: Tensor, copies: int, amounts: Distortions, seed: int, rows: int = ROWS_AT_ONCE
    ) -> None:
        self.x, self.y, self.copies, self.amounts, self.seed, self.rows = x, y, copies, amounts, seed, rows
        self.blocks = -(-len(y) // rows)

    def __len__(self) -> int:
        return (self.copies + 1) * self.blocks

    def __getitem__(self, number: int) -> Batch:
        if number >= len(self):
            raise IndexError(number)
        copy, block = divmod(number, self.blocks)
        rows = slice(block * self.rows, (block + 1) * self.rows)
        x, y = self.x[rows], self.y[rows]
        if copy:  # other draws than in training
            x = distorted(x, self.amounts, generator_of(self.seed, 1, number))
        return point_columns(x, y)


class StrokeBatches(DrawnBatches):
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
        whole(0).check("copies", copies)
        whole(0).check("seed", seed)
        amounts = distortions if distortions is not None else Distortions()

        def make(x: Tensor, y: Tensor, generator: torch.Generator) -> Batch:
            return point_columns(distorted(x, amounts, generator), y)

        self.rows = data.train_x, data.train_y
        x = data.val_x[:limit]
        both = torch.cat([x, hide_points(x, POINTS // 2, seed)])
        super().__init__(
            BalancedDraws(*self.rows, CLASSES, support, query, seed, make),
            point_columns(both, data.val_y[:limit].repeat(2)),
            DistortedCopies(*self.rows, copies, amounts, seed),
            steps,
        )
