"""Baselines of a trained PBP model: a perceptron behind the same encoders, and a support vector machine after imputation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from sklearn.impute import KNNImputer
from sklearn.svm import SVC
from torch import Tensor, nn

from torchpbp.distributed import process_rank, world_size
from torchpbp.experiments.train.leaf_data import Table
from torchpbp.experiments.training import generator_of
from torchpbp.features.encoded import Encoders
from torchpbp.inputs.missing_values import observed
from torchpbp.learning.net_fitting import random_masks
from torchpbp.neural.module import ModuleSettings, warmed_up


class LeafMLP(LightningModule):
    """A perceptron over the features of all leaves, trained by cross-entropy together with their encoders.

    Takes the batches of :class:`~torchpbp.PBPModule`, and learns from all of their rows. All draws follow from the seed and the
    number of the step.

    Args:
        encoders: of the leaves; trained in place.
        target: column of the classes.
        classes: their number.
        settings: of the PBPModule to compare with: hidden leaves, rates and seed.
        width: of the perceptron's two hidden layers.

    Attributes:
        fill: "zero" or "mean", the features of a hidden leaf.
    """

    mean: Tensor

    def __init__(
        self, encoders: Encoders, target: str, classes: int, settings: ModuleSettings, width: int = 192
    ) -> None:
        super().__init__()
        self.leaves, self.target, self.settings = encoders.names, target, settings
        self.encoders = encoders
        encoders.log_ridge.requires_grad_(False)  # of the evidence of PBP
        encoders.residual_nets.clear()
        encoders.residual = encoders.context  # the residuals of a context encoder are inputs of the perceptron
        size = max(encoders.sizes.values())
        self.size = 2 * size + 1 if encoders.context else size
        self.head = nn.Sequential(
            nn.Linear(len(self.leaves) * self.size, width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, classes),
        )
        self.register_buffer("mean", torch.zeros(len(self.leaves), self.size))
        self.fill = "zero"

    def forward(self, table: Mapping[str, Tensor]) -> Tensor:
        """(rows, classes) log-probabilities; leaves are NaN where hidden."""
        return self.answer(table, self.seen(table))

    def seen(self, table: Mapping[str, Tensor]) -> Tensor:
        """(rows, leaves) which leaves have a value."""
        return torch.stack([observed(table[v]) for v in self.leaves], dim=1)

    def answer(self, table: Mapping[str, Tensor], seen: Tensor) -> Tensor:
        """(rows, classes) log-probabilities, from the leaves that are marked as seen (rows, leaves)."""
        fill = self.mean if self.fill == "mean" else torch.zeros(())
        filled = torch.where(seen.unsqueeze(2), self.encoded(table, seen), fill)
        return torch.log_softmax(self.head(filled.flatten(1)), dim=1)

    def encoded(self, table: Mapping[str, Tensor], seen: Tensor) -> Tensor:
        """(rows, leaves, size) outputs of the encoders; leaves with fewer than the most are padded with zeros."""
        flags = dict(zip(self.leaves, seen.unbind(1), strict=True))
        values = {v: table[v].nan_to_num() for v in self.leaves}
        parts = []
        for e in self.encoders(values, flags).values():
            out = e.features if e.residual is None else torch.cat([e.features, e.residual], dim=1)
            parts.append(nn.functional.pad(out, (0, self.size - out.shape[1])))
        return torch.stack(parts, dim=1)

    @torch.no_grad()
    def choose_fill(self, train: Table, validation: Table, half_hidden: Table) -> None:
        """Note mean features of complete rows, and take the fill with which more validation rows are right."""
        self.mean.copy_(self.encoded(train, self.seen(train)).mean(dim=0))
        right = {}
        for self.fill in ("zero", "mean"):
            tables = (validation, half_hidden)
            right[self.fill] = sum(float((self(t).argmax(dim=1) == t[self.target]).float().mean()) for t in tables)
        self.fill = max(right, key=lambda fill: right[fill])

    def training_step(self, batch: Mapping[str, Tensor], index: int) -> Tensor:
        settings, seen = self.settings, self.seen(batch)
        place = process_rank() * len(seen), world_size() * len(seen)
        generator = generator_of(settings.seed, 2, self.global_step)
        shown = random_masks(seen, settings.hide, settings.most_hidden, generator, place)
        loss = nn.functional.nll_loss(self.answer(batch, seen & shown), batch[self.target])
        self.log("train/loss", loss, prog_bar=True, on_step=False, on_epoch=True, batch_size=len(seen))
        return loss

    def validation_step(self, batch: Mapping[str, Tensor], index: int) -> None:
        logs = self(batch)
        right = (logs.argmax(dim=1) == batch[self.target]).float().mean()
        figures = {"val/loss": nn.functional.nll_loss(logs, batch[self.target]), "val/accuracy": right}
        self.log_dict(figures, on_epoch=True, batch_size=len(logs))

    def configure_optimizers(self) -> Any:
        rate, decay = self.settings.learning_rate, self.settings.weight_decay
        optimizer = torch.optim.AdamW(self.parameters(), rate, weight_decay=decay, foreach=True)
        return warmed_up(optimizer, self.settings.warmup)


class ImputedSVM:
    """An RBF support vector machine (C = 10, γ = 1 / (columns · variance of all values)).

    Columns keep their scale: all leaves are in one unit, and standardised pixels and coordinates are recognised less well. Hidden values
    are filled in first with the mean over the five nearest training rows.

    Args:
        table: training rows.
        target: column of the classes.
    """

    def __init__(self, table: Table, target: str) -> None:
        self.target = target
        self._imputer = KNNImputer(n_neighbors=5)
        x = self._imputer.fit_transform(self._columns(table))
        self._svm = SVC(C=10.0, gamma="scale").fit(x, table[target].numpy())

    def predict(self, table: Table) -> Tensor:
        """(rows,) classes."""
        return torch.from_numpy(self._svm.predict(self._imputer.transform(self._columns(table))))

    def _columns(self, table: Table) -> Any:
        values = [x.flatten(1) for name, x in table.items() if name != self.target]
        return np.asarray(torch.cat(values, dim=1).double())
