"""scikit-learn's digits as patches of the image, and the tree of hidden variables over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from torchpbp.errors import ArgumentError
from torchpbp.experiments.running.answers import Masks
from torchpbp.experiments.running.drawn_batches import BalancedDraws, Blocks, DrawnBatches
from torchpbp.graph.latent_graph import Continuous, LatentGraph
from torchpbp.graph.templates import balanced_tree
from torchpbp.settings import seed as checked_seed
from torchpbp.settings import whole

DIGIT, CLASSES = "digit", 10
IMAGES, SIDE, LARGEST = 1797, 8, 16
"""Rows of the data set, pixels along each side of an image, and the largest brightness."""
PATCH = 2
"""Pixels along each side of a patch."""
SHAPE = (1, PATCH, PATCH)
PATCHES = (SIDE // PATCH) ** 2
NAMES = tuple(f"patch{i}" for i in range(PATCHES))
"""Names of the patches, row by row."""

Table = dict[str, Tensor]
"""Name of a patch -> (rows, 1, 2, 2) brightnesses from 0 to 1, NaN where hidden; "digit" -> (rows,)."""


def neighbours_first(side: int) -> list[int]:
    """Numbers of the fields of a square, so that each pair, each four, each eight … in the list make a block of the square."""
    if side == 1:
        return [0]
    quarter = [divmod(i, side // 2) for i in neighbours_first(side // 2)]
    half = side // 2
    return [(r + down) * side + c + right for down in (0, half) for right in (0, half) for r, c in quarter]


def patch_graph(leaf_states: int, states: int) -> LatentGraph:
    """A balanced tree over the patches: neighbours side by side, then the pairs above each other, and so on."""
    order = [NAMES[i] for i in neighbours_first(SIDE // PATCH)]
    return balanced_tree(dict.fromkeys(order, Continuous(0.0, 1.0, shape=SHAPE)), leaf_states, states, {DIGIT: CLASSES})


def cut(images: Tensor) -> Tensor:
    """(rows, 8, 8) images -> (rows, 16, 1, 2, 2) patches, row by row."""
    return images.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH).reshape(len(images), PATCHES, *SHAPE)


def put_together(patches: Tensor) -> Tensor:
    """(rows, 16, 1, 2, 2) patches -> (rows, 8, 8) images."""
    across = SIDE // PATCH
    return patches.reshape(-1, across, across, PATCH, PATCH).transpose(2, 3).reshape(-1, SIDE, SIDE)


def columns(patches: Tensor, digits: Tensor | None = None) -> Table:
    """(rows, 16, 1, 2, 2) patches, and digits if there are any, as named columns."""
    table = dict(zip(NAMES, patches.unbind(1), strict=True))
    return table if digits is None else {**table, DIGIT: digits}


def hide_patches(patches: Tensor, count: int, seed: int) -> Tensor:
    """A copy with ``count`` patches of each row NaN, drawn uniformly at random row by row."""
    order = np.random.default_rng(seed).random((len(patches), PATCHES)).argsort(axis=1, kind="stable")
    hidden = torch.from_numpy(order < count)
    return patches.masked_fill(hidden[:, :, None, None, None], torch.nan)


def patch_masks(hidden: Sequence[int], draws: int) -> Masks:
    """Which patches are hidden from classifiers."""
    return Masks(tuple(hidden), draws, lambda x, count, draw: hide_patches(x, count, 100 * count + draw))


@dataclass
class PatchDigits:
    """The 1,797 images, split at random.

    Args:
        train: rows to learn from, those for validation among them.
        validation: how many of these are kept for validation.
        seed: of the split.

    Attributes:
        train_x, val_x, test_x: (rows, 16, 1, 2, 2) patches.
        train_y, val_y, test_y: (rows,) digits.
    """

    train: int = 1000
    validation: int = 100
    seed: int = 0
    train_x: Tensor = field(init=False, repr=False)
    train_y: Tensor = field(init=False, repr=False)
    val_x: Tensor = field(init=False, repr=False)
    val_y: Tensor = field(init=False, repr=False)
    test_x: Tensor = field(init=False, repr=False)
    test_y: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        whole(2, IMAGES - 1).check("train", self.train)
        whole(1, self.train - 1).check("validation", self.validation)
        checked_seed().check("seed", self.seed)
        raw: Any = load_digits()
        order = torch.from_numpy(np.random.default_rng(self.seed).permutation(IMAGES))
        x, y = cut(torch.tensor(raw.images, dtype=torch.float32) / LARGEST)[order], torch.tensor(raw.target)[order]
        learned = self.train - self.validation
        sizes = [learned, self.validation, IMAGES - self.train]
        self.train_x, self.val_x, self.test_x = torch.split(x, sizes)
        self.train_y, self.val_y, self.test_y = torch.split(y, sizes)
        absent = sorted(set(range(CLASSES)) - set(self.train_y.tolist()))
        if absent:
            raise ArgumentError(f"train: expected rows of every digit among the {learned} rows, got none of {absent}.")


class PatchBatches(DrawnBatches):
    """Training batches of patches; validation rows complete and with half of their patches hidden.

    Args:
        data: the images.
        steps: batches of an epoch.
        support: rows of each digit at the start of a batch, on which operators are solved.
        query: further rows, for which the loss is computed.
        seed: of all draws.
    """

    def __init__(self, data: PatchDigits, steps: int, support: int, query: int, seed: int) -> None:
        self.training = columns(data.train_x, data.train_y)
        both = torch.cat([data.val_x, hide_patches(data.val_x, PATCHES // 2, seed)])
        super().__init__(
            BalancedDraws(data.train_x, data.train_y, CLASSES, support, query, seed, lambda x, y, _: columns(x, y)),
            columns(both, data.val_y.repeat(2)),
            Blocks(self.training),
            steps,
        )
