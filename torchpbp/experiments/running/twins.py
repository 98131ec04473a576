"""Twins of neural PBP models: the same encoders with a perceptron behind them in place of the graph, for comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from torchpbp.distributed import process_rank, world_size
from torchpbp.experiments.running.answers import Masks, ask, judged
from torchpbp.experiments.running.drawn_batches import generator_of
from torchpbp.features.encoded import Encoders
from torchpbp.inputs.missing_values import observed
from torchpbp.learning.net_fitting import random_masks

FILLS = ("zero", "mean")
"""What stands for the features of a hidden leaf."""


class LeafTwin(LightningModule):
    """A perceptron over the features of all leaves, trained by cross-entropy together with their encoders.

    Takes the batches that :class:`~torchpbp.PBPModule` takes, all rows of which it learns from. All draws follow from the seed
    and the number of the step, so that a resumed training goes on as it would have.

    Args:
        encoders: leaf -> module, point-wise, or the one module that sees all leaves of a row (``context=True``).
        shapes: leaf -> shape of its values.
        target: column of the classes.
        classes: their number.
        context: whether the encoder sees all leaves.
        width: of the perceptron's two hidden layers.
        hide: share of the training rows with hidden leaves.
        most_hidden: share of the leaves that may be hidden in one row.
        learning_rate: largest one; it rises, then falls to nearly 0.
        weight_decay: of AdamW.
        warm_up: share of the steps in which the learning rate rises.
        seed: of the hidden leaves.

    Attributes:
        fill: "zero" or "mean", what stands for the features of a hidden leaf.
    """

    mean: Tensor

    def __init__(
        self,
        encoders: Mapping[str, nn.Module],
        shapes: Mapping[str, Sequence[int]],
        target: str,
        classes: int,
        context: bool = False,
        width: int = 192,
        hide: float = 0.8,
        most_hidden: float = 0.75,
        learning_rate: float = 3e-3,
        weight_decay: float = 0.01,
        warm_up: float = 0.15,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.leaves, self.target = list(shapes), target
        self.encoders = Encoders(encoders, shapes, context)
        self.encoders.residual = context  # what a context encoder has for the evidence, the perceptron sees as well
        size = max(self.encoders.sizes.values())
        self.size = 2 * size + 1 if context else size
        self.head = nn.Sequential(
            nn.Linear(len(self.leaves) * self.size, width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, classes),
        )
        self.register_buffer("mean", torch.zeros(len(self.leaves), self.size))
        self.fill = "zero"
        self.hide, self.most_hidden, self.seed = hide, most_hidden, seed
        self.learning_rate, self.weight_decay, self.warm_up = learning_rate, weight_decay, warm_up

    def forward(self, table: Mapping[str, Tensor]) -> Tensor:
        """(rows, classes) log-probabilities.

        Args:
            table: leaf -> (rows, *shape) values, NaN where hidden.
        """
        return self.answer(table, self.seen(table))

    def seen(self, table: Mapping[str, Tensor]) -> Tensor:
        """(rows, leaves) which leaves have a value."""
        return torch.stack([observed(table[v]) for v in self.leaves], dim=1)

    def answer(self, table: Mapping[str, Tensor], seen: Tensor) -> Tensor:
        """(rows, classes) log-probabilities, from the leaves that are marked as seen (rows, leaves)."""
        filled = torch.where(
            seen.unsqueeze(2), self.encoded(table, seen), self.mean if self.fill == "mean" else torch.zeros(())
        )
        return torch.log_softmax(self.head(filled.flatten(1)), dim=1)

    def encoded(self, table: Mapping[str, Tensor], seen: Tensor) -> Tensor:
        """(rows, leaves, size) outputs of the encoders; leaves with fewer than the most are padded with zeros."""
        flags = dict(zip(self.leaves, seen.unbind(1), strict=True))
        values = {
            v: torch.where(flags[v].reshape(-1, *[1] * (table[v].ndim - 1)), table[v], torch.zeros_like(table[v]))
            for v in self.leaves
        }
        parts = []
        for e in self.encoders(values, flags).values():
            out = e.features if e.residual is None else torch.cat([e.features, e.residual], dim=1)
            parts.append(nn.functional.pad(out, (0, self.size - out.shape[1])))
        return torch.stack(parts, dim=1)

    @torch.no_grad()
    def measure_means(self, table: Mapping[str, Tensor]) -> None:
        """Note the mean features of rows without hidden leaves, for ``fill="mean"``."""
        self.mean.copy_(self.encoded(table, self.seen(table)).mean(dim=0))

    def training_step(self, batch: Mapping[str, Tensor], index: int) -> Tensor:
        seen = self.seen(batch)
        place = process_rank() * len(seen), world_size() * len(seen)
        shown = random_masks(seen, self.hide, self.most_hidden, generator_of(self.seed, 2, self.global_step), place)
        loss = nn.functional.nll_loss(self.answer(batch, seen & shown), batch[self.target])
        self.log("train/loss", loss, on_step=False, on_epoch=True, batch_size=len(seen))
        return loss

    def validation_step(self, batch: Mapping[str, Tensor], index: int) -> None:
        logs = self(batch)
        right = (logs.argmax(dim=1) == batch[self.target]).float().mean()
        figures = {"val/loss": nn.functional.nll_loss(logs, batch[self.target]), "val/accuracy": right}
        self.log_dict(figures, on_epoch=True, batch_size=len(logs))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(
            self.parameters(), self.learning_rate, weight_decay=self.weight_decay, foreach=True
        )
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.learning_rate, steps + 1, pct_start=self.warm_up)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def choose_fill(twin: LeafTwin, classify: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, masks: Masks) -> None:
    """Set the fill of hidden features with which a twin is more often right.

    Args:
        twin: the one that ``classify`` asks.
        classify: (rows, …) values, NaN where hidden -> (rows, classes) log-probabilities.
        x: (rows, …) values, such as validation rows.
        y: (rows,) classes.
        masks: what is hidden.
    """
    right = {}
    for twin.fill in FILLS:
        right[twin.fill] = float(judged(ask(classify, x, masks)[0], y)["accuracy"].mean())
    twin.fill = max(FILLS, key=lambda fill: right[fill])
