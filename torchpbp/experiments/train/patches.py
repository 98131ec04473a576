"""scikit-learn's digits as patches of the image, and the tree of hidden variables over them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import Tensor

from torchpbp.errors import ArgumentError
from torchpbp.experiments.results import Picture
from torchpbp.experiments.train.leaf_data import LeafData, Table, hidden_leaves
from torchpbp.graph.latent_graph import Continuous, LatentGraph
from torchpbp.graph.templates import balanced_tree
from torchpbp.models.pbp import PBP
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


class PatchData(LeafData):
    """Batches of the 1,797 images, split at random, as sixteen patches of 2 x 2 pixels with brightnesses from 0 to 1.

    Args:
        train: rows to learn from, those for validation among them.
        validation: how many of these are kept for validation.
        steps_per_epoch: batches between two validations.
        support: rows of each digit at the start of a batch, on which operators are solved.
        query: further rows, of which the loss is computed.
        seed: of the split and of all draws.
    """

    def __init__(
        self,
        train: int = 1000,
        validation: int = 100,
        steps_per_epoch: int = 100,
        support: int = 30,
        query: int = 200,
        seed: int = 0,
    ) -> None:
        whole(2, IMAGES - 1).check("train", train)
        whole(1, train - 1).check("validation", validation)
        raw: Any = load_digits()
        order = torch.from_numpy(np.random.default_rng(seed).permutation(IMAGES))
        x, y = cut(torch.tensor(raw.images, dtype=torch.float32) / LARGEST)[order], torch.tensor(raw.target)[order]
        learned = train - validation
        parts = zip(*(torch.split(t, [learned, validation, IMAGES - train]) for t in (x, y)), strict=True)
        tables = {
            name: {**dict(zip(NAMES, patches.unbind(1), strict=True)), DIGIT: digits}
            for name, (patches, digits) in zip(("train", "val", "test"), parts, strict=True)
        }
        absent = sorted(set(range(CLASSES)) - set(tables["train"][DIGIT].tolist()))
        if absent:
            raise ArgumentError(f"train: expected rows of every digit among the {learned} rows, got none of {absent}.")
        super().__init__(tables, DIGIT, steps_per_epoch, support, query, seed)

    @torch.no_grad()
    def pictures(self, model: PBP, table: Table, log_probabilities: Tensor) -> dict[str, Picture]:
        """One image of each digit with half of its patches hidden, completed by a model with point-wise encoders."""
        if model.encoders is None or model.encoders.context:
            return {}
        y = table[DIGIT]
        chosen = torch.tensor([int((y == c).nonzero()[0]) for c in range(CLASSES) if bool((y == c).any())])
        rows = {name: x[chosen] for name, x in table.items()}
        seen = {name: x for name, x in hidden_leaves(rows, NAMES, PATCHES // 2, 0).items() if name != DIGIT}
        completed = {
            v: torch.where(x.isnan(), model.posterior(v, seen).mean.to(x).clamp(0, 1), x) for v, x in seen.items()
        }
        figure = Figure(figsize=(0.85 * len(chosen) + 0.6, 3.0), layout="constrained")
        grid = figure.subplots(3, len(chosen), squeeze=False)
        for line, (name, images) in zip(
            grid, {"image": rows, "seen": seen, "completed": completed}.items(), strict=True
        ):
            line[0].set_ylabel(name)
            for axes, image in zip(line, put_together(images), strict=True):
                axes.imshow(image.numpy(), cmap="gray_r", vmin=0, vmax=1)
                axes.set(xticks=[], yticks=[], facecolor="tab:blue")  # hidden patches are not drawn
        caption = "Test images, the half of their patches that is seen, and the other half predicted from it."
        return {"completed": Picture(figure, caption)}


def patch_graph(leaf_states: int = 8, states: int = 8) -> LatentGraph:
    """A balanced tree over the patches: neighbours side by side, then the pairs above each other, and so on."""
    order = [NAMES[i] for i in neighbours_first(SIDE // PATCH)]
    return balanced_tree(dict.fromkeys(order, Continuous(0.0, 1.0, shape=SHAPE)), leaf_states, states, {DIGIT: CLASSES})


def neighbours_first(side: int) -> list[int]:
    """Numbers of the fields of a square, so that each pair, each four, each eight … in the list make a block of the square."""
    if side == 1:
        return [0]
    quarter = [divmod(i, side // 2) for i in neighbours_first(side // 2)]
    half = side // 2
    return [(r + down) * side + c + right for down in (0, half) for right in (0, half) for r, c in quarter]


def cut(images: Tensor) -> Tensor:
    """(rows, 8, 8) images -> (rows, 16, 1, 2, 2) patches, row by row."""
    return images.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH).reshape(len(images), PATCHES, *SHAPE)


def put_together(table: Table) -> Tensor:
    """(rows, 8, 8) images from named patches."""
    across = SIDE // PATCH
    patches = torch.stack([table[name] for name in NAMES], dim=1)
    return patches.reshape(-1, across, across, PATCH, PATCH).transpose(2, 3).reshape(-1, SIDE, SIDE)
