"""Training of stage-1 nets with Lightning: module, batches distributed over processes, progress bar."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.utils.data import Dataset, Sampler
from tqdm.auto import tqdm

from torchpbp.distributed import gather_objects, sum_over_processes
from torchpbp.learning.blanks import Blanks
from torchpbp.learning.nets import NetsInTraining
from torchpbp.learning.regressions import ROWS_AT_ONCE
from torchpbp.moments.rows import ProductTargets, TrainingRows

KEPT_TARGETS = 1 << 26
"""Largest number of entries of the targets of all rows that are stored in memory."""


class NetTraining(LightningModule):
    """Joint training of all nets of a stage.

    Args:
        nets: the nets.
        folds: of cross-fitting.
        batch_size: rows per step over all processes.
        epochs: passes over the rows.
        patience: epochs without improvement before stopping.
        learning_rate: at the start.
        weight_decay: of AdamW.
        total: rows over all processes.
    """

    stale: Tensor
    diverged: Tensor

    def __init__(
        self,
        nets: NetsInTraining,
        folds: int,
        batch_size: int,
        epochs: int,
        patience: int | None,
        learning_rate: float,
        weight_decay: float,
        total: int,
    ) -> None:
        super().__init__()
        self.nets, self.folds, self.batch_size = nets, folds, batch_size
        self.epochs, self.patience = epochs, patience
        self.learning_rate, self.weight_decay, self.total = learning_rate, weight_decay, total
        self.steps = -(-total // batch_size)
        self.held_out = float("nan")
        self.register_buffer("stale", torch.zeros((), dtype=torch.int64))
        self.register_buffer("diverged", torch.zeros((), dtype=torch.int64))  # the epoch of a NaN loss
        self._sums: Tensor | None = None

    def forward(self, batch: Batch, own: bool) -> Tensor:
        """(K, separators) losses of the nets on their training rows or, with ``own``, on their held-out folds."""
        return self.nets.losses(batch.rows, batch.targets, self._counted(batch.fold, batch.weight, own), batch.seen)

    def on_train_start(self) -> None:
        self._stop_if_stale()  # of a resumed training

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), self.learning_rate, weight_decay=self.weight_decay)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.epochs * self.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return batch.to(device)

    def training_step(self, batch: Batch, _: int) -> Tensor:
        # The sum over all processes divided by a constant: the step does not depend on the distribution of the rows.
        # Lightning averages gradients over processes, hence the factor.
        losses = self(batch, own=False)
        share = self.batch_size * ((self.folds - 1) / self.folds if self.folds > 1 else 1)
        loss = losses.sum() * (self.trainer.world_size / share)
        if not bool(torch.isfinite(loss.detach())):
            loss = loss.detach().nan_to_num(0.0, 0.0, 0.0) + 0.0 * sum(p.sum() for p in self.parameters())
            self.diverged.fill_(self.current_epoch + 1)
        return loss

    def on_validation_epoch_start(self) -> None:
        self._sums = None

    def validation_step(self, batch: Batch, _: int) -> None:
        sums = self(batch, own=True).double()
        self._sums = sums if self._sums is None else self._sums + sums

    def on_validation_epoch_end(self) -> None:
        empty = torch.zeros(self.folds, self.nets.count, dtype=torch.float64, device=self.device)
        loss = sum_over_processes(empty if self._sums is None else self._sums)
        self.diverged.fill_(max(gather_objects(int(self.diverged))))  # all processes stop, or none
        improved = self.nets.keep_best(loss)
        self.stale.copy_(torch.zeros_like(self.stale) if improved else self.stale + 1)
        self.held_out = float(loss.sum() / (self.total * self.nets.count))
        self._stop_if_stale()

    def _stop_if_stale(self) -> None:
        if int(self.diverged) or (self.patience is not None and int(self.stale) >= self.patience):
            self.trainer.should_stop = True

    def _counted(self, fold: Tensor, weight: Tensor, held_out: bool) -> Tensor:
        """(K, rows) weights of each net's training rows or, with ``held_out``, held-out rows; for a single net both are all rows."""
        inside = fold == torch.arange(self.folds, device=fold.device).unsqueeze(1)
        chosen = inside if held_out or self.folds == 1 else ~inside
        return (chosen * weight).to(self.nets.hidden.dtype)


class Batch(NamedTuple):
    """Rows with their targets, folds, weights and masks.

    Args:
        rows: the rows.
        targets: per family of separators (rows, separators, size).
        fold: (rows,).
        weight: (rows,).
        seen: (rows, variables) mask of the values shown to the nets; None: all.
    """

    rows: TrainingRows
    targets: list[Tensor]
    fold: Tensor
    weight: Tensor
    seen: Tensor | None

    def to(self, device: torch.device) -> Batch:
        seen = None if self.seen is None else self.seen.to(device)
        targets = [t.to(device) for t in self.targets]
        return Batch(self.rows.to(device), targets, self.fold.to(device), self.weight.to(device), seen)


class BatchedRows(Dataset[Batch]):
    """A dataset of rows, indexed by batches of row numbers.

    Args:
        rows: of this process.
        fold: (rows,).
        targets: of each family of separators; computed once if they fit in memory.
        blanks: masks of the values hidden in each epoch; None: nothing is hidden.
    """

    def __init__(
        self, rows: TrainingRows, fold: Tensor, targets: Sequence[ProductTargets], blanks: Blanks | None
    ) -> None:
        self.rows, self.fold, self.targets, self.blanks = rows, fold, targets, blanks
        self.seen: Tensor | None = None
        self.kept: list[Tensor] | None = None
        if len(rows) * sum(t.offset.numel() for t in targets) <= KEPT_TARGETS:
            parts = [[t(rows[i]) for t in targets] for i in rows.positions(ROWS_AT_ONCE)]
            self.kept = [torch.cat(family) for family in zip(*parts, strict=True)]

    def set_epoch(self, epoch: int) -> None:
        """Draw the mask of an epoch."""
        seen = None if self.blanks is None else self.blanks.seen(1 + epoch)
        self.seen = None if seen is None else seen.to(self.rows.device)

    def complete(self) -> BatchedRows:
        """The same rows without hidden values."""
        result = copy.copy(self)
        result.blanks = result.seen = None
        return result

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Tensor) -> Batch:
        index = index.to(self.rows.device)
        part = self.rows[index]
        weight = part.counts.float() * (1 if part.weights is None else len(self.rows))
        targets = [t(part) for t in self.targets] if self.kept is None else [t[index] for t in self.kept]
        return Batch(part, targets, self.fold[index], weight, None if self.seen is None else self.seen[index])


class Batches(Sampler[Tensor]):
    """The rows of this process in each batch of a shuffle of all rows, the same shuffle on all processes.

    Args:
        total: rows over all processes.
        before: rows of the processes before this one.
        own: rows of this process.
        size: rows per batch over all processes.
        seed: of the shuffles.
        data: dataset whose mask is drawn in each epoch.
    """

    def __init__(
        self, total: int, before: int, own: int, size: int, seed: int, data: BatchedRows | None = None
    ) -> None:
        self.total, self.before, self.own, self.size, self.seed, self.data = total, before, own, size, seed, data
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning before each epoch, also after resuming."""
        self.epoch = epoch
        if self.data is not None:
            self.data.set_epoch(epoch)

    def __len__(self) -> int:
        return -(-self.total // self.size)

    def __iter__(self) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        for batch in torch.split(torch.randperm(self.total, generator=generator, device="cpu"), self.size):
            share = batch[(batch >= self.before) & (batch < self.before + self.own)]
            yield share - self.before


class EpochBar(Callback):
    """A progress bar over all epochs, shown after two seconds of training.

    Args:
        stage: description of the bar.
    """

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.bar: tqdm[Any] | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.bar = tqdm(
            total=trainer.max_epochs,
            initial=trainer.current_epoch,
            desc=self.stage,
            unit="epoch",
            delay=2,
            leave=False,
            disable=not trainer.is_global_zero,
        )

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.bar is not None:
            self.bar.set_postfix(held_out=f"{pl_module.held_out:.4f}", refresh=False)
            self.bar.update()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self.bar is not None:
            self.bar.close()
