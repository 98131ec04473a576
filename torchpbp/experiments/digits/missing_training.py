"""Training strokes of which a part is missing: hidden at random, then slanted and learned from all the same."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchpbp.datasets.digits import LARGEST
from torchpbp.experiments.digits.distortions import slanted_copies
from torchpbp.features.completion import complete_rows
from torchpbp.graph.latent_graph import Continuous
from torchpbp.settings import between, choice

MOST = 0.99  # with all of them missing there is nothing to learn from
SHARE, KIND, FILL = between(0.0, MOST), choice("coordinates", "points"), choice("mean", "draw")
"""What the settings missing_training, missing_kind and missing_fill accept."""
WIDTH = 7.0
"""Bandwidth in which strokes are alike, as in learner=pen_average."""


@dataclass(frozen=True)
class TrainingRows:
    """Strokes to learn from.

    Args:
        x: (rows, 16) coordinates, NaN where missing.
        y: (rows,) digits.
        originals: rows that are no slanted copies.
        missing: share of the coordinates hidden.
    """

    x: Tensor
    y: Tensor
    originals: int
    missing: float


def hide_values(x: Tensor, share: float, kind: str, seed: int) -> Tensor:
    """Hide each coordinate, or each point with both of its coordinates, with a given probability.

    Args:
        x: (rows, 16) coordinates.
        share: the probability.
        kind: "coordinates" or "points".
        seed: of the draws.
    """
    SHARE.check("missing_training", share)
    KIND.check("missing_kind", kind)
    per = 2 if kind == "points" else 1
    hidden = np.random.default_rng(seed).random((len(x), x.shape[1] // per)) < share
    return x.masked_fill(torch.from_numpy(hidden.repeat(per, axis=1)), torch.nan)


def training_rows(
    x: Tensor, y: Tensor, *, share: float, kind: str, copies: int, slant: float, fill: str, seed: int
) -> TrainingRows:
    """Training strokes with a share of them missing, and slanted copies.

    To slant a stroke and to bring it back into its box, one must know all of it: where copies are wanted, strokes are
    completed first, class by class, from strokes like them. Without copies the learner gets the missing values themselves. Strokes
    of which nothing is left are dropped.

    Args:
        x: (rows, 16) complete strokes.
        y: (rows,) digits.
        share: probability to hide a value.
        kind: what is hidden, see :func:`hide_values`.
        copies: slanted copies of each stroke.
        slant: how far they lean.
        fill: how strokes are completed, "mean" or "draw" (see :mod:`torchpbp.features.completion`).
        seed: of all draws.
    """
    FILL.check("missing_fill", fill)
    hidden = hide_values(x, share, kind, seed)
    missing = float(hidden.isnan().double().mean())
    kept = ~hidden.isnan().all(dim=1)
    hidden, y = hidden[kept], y[kept]
    if copies and missing:
        widths = torch.full((x.shape[1],), WIDTH, dtype=torch.float64)
        domains = [Continuous(0.0, float(LARGEST))] * x.shape[1]
        filled = hidden.double().clone()
        for value in sorted(set(y.tolist())):
            rows = (y == value).nonzero().squeeze(1)
            filled[rows] = complete_rows(filled[rows], domains, widths, draw=fill == "draw", seed=seed)
        hidden = filled.to(x.dtype)
    return TrainingRows(slanted_copies(hidden, copies, slant, seed), y.repeat(copies + 1), len(y), missing)
