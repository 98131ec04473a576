"""Pen digits as eight points, distorted at random in training."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from torch import Tensor

from torchpbp.datasets.digits import POINTS
from torchpbp.datasets.digits_module import DigitsDataModule
from torchpbp.experiments.results import Picture
from torchpbp.experiments.train.distortions import Distortions, distorted
from torchpbp.experiments.train.leaf_data import LeafData, Table
from torchpbp.models.pbp import PBP
from torchpbp.plotting.digits import draw_digits
from torchpbp.settings import optional, whole

DIGIT = "digit"
POINT_NAMES = tuple(f"p{t}" for t in range(1, POINTS + 1))
"""Names of the eight points, each a vector of its two coordinates."""
HARDEST = 24
"""Strokes that are drawn: those with the least probability of the true digit."""


class StrokeData(LeafData):
    """Batches of distorted strokes.

    Args:
        train_size: rows of each digit to learn from, drawn at random; all 7,000 rows by default.
        split: "official"; or "cells", which validates on held-out cells of the training rows, a stand-in for new writers, and
            leaves the test rows alone.
        limit: validation and test rows at most; all by default.
        steps_per_epoch: batches between two validations.
        support: rows of each digit at the start of a batch, on which operators are solved.
        query: further rows, of which the loss is computed.
        copies: distorted copies of each training row on which operators are solved in the end.
        distortions: of training rows and copies.
        seed: of all draws.
    """

    def __init__(
        self,
        train_size: int | None = None,
        split: str = "official",
        limit: int | None = None,
        steps_per_epoch: int = 250,
        support: int = 20,
        query: int = 256,
        copies: int = 4,
        distortions: Distortions | None = None,
        seed: int = 0,
    ) -> None:
        optional(whole(1)).check("limit", limit)
        rows = DigitsDataModule(train_size=train_size, split=split, seed=seed)
        rows.setup()
        amounts = Distortions() if distortions is None else distortions
        tables = {
            "train": point_columns(rows.train_x, rows.train_y),
            "val": point_columns(rows.val_x[:limit], rows.val_y[:limit]),
        }
        if split == "official":
            tables["test"] = point_columns(rows.test_x[:limit], rows.test_y[:limit])

        def change(table: Table, generator: torch.Generator) -> Table:
            return point_columns(distorted(coordinates(table), amounts, generator), table[DIGIT])

        super().__init__(tables, DIGIT, steps_per_epoch, support, query, seed, change, copies)

    def pictures(self, model: PBP, table: Table, log_probabilities: Tensor) -> dict[str, Picture]:
        """The strokes that are hardest for the model."""
        true = table[DIGIT]
        hardest = log_probabilities.gather(1, true.unsqueeze(1)).squeeze(1).argsort(stable=True)[:HARDEST]
        read = log_probabilities.argmax(dim=1)
        labels = [f"{true[i]}, read as {read[i]}" if true[i] != read[i] else f"{true[i]}" for i in hardest]
        columns = min(8, len(hardest))
        figure = Figure(figsize=(1.15 * columns + 0.2, 1.35 * -(-len(hardest) // columns) + 0.2), layout="constrained")
        draw_digits(coordinates(table)[hardest], figure.subplots(), labels=labels, columns=columns)
        return {"hardest": Picture(figure, "The strokes with the least probability of the true digit.")}


def point_columns(x: Tensor, y: Tensor | None = None) -> Table:
    """(rows, 16) coordinates, and digits if there are any, as named columns."""
    columns = dict(zip(POINT_NAMES, x.reshape(len(x), POINTS, 2).unbind(dim=1), strict=True))
    return columns if y is None else {**columns, DIGIT: y}


def coordinates(table: Table) -> Tensor:
    """(rows, 16) coordinates of named points."""
    return torch.stack([table[name] for name in POINT_NAMES], dim=1).flatten(1)
