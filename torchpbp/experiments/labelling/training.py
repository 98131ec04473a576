"""Training of an encoder with a head on labelled signals, stopped early by validation rows."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from torchpbp.datasets.label_sequences import LabelledSignals
from torchpbp.errors import DataError
from torchpbp.experiments.labelling.heads import LabelHead, SignalEncoder

VALIDATION_LOSS = "validation_loss"
BATCH_ROWS = 32
LEAST_GAIN = 1.0
"""Refined parameters are kept if they gain more on validation rows than so many standard errors of the gain."""


class LabelModule(LightningModule):
    """An encoder and a head, trained together.

    Args:
        encoder: signals -> scores.
        head: scores -> posteriors of labels.
        learning_rate: of the encoder.
        head_rate: of the head.
    """

    def __init__(self, encoder: SignalEncoder, head: LabelHead, learning_rate: float, head_rate: float) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head
        self.learning_rate, self.head_rate = learning_rate, head_rate

    def forward(self, signals: Tensor) -> Tensor:
        """(batch, length, channels) -> (batch, length, labels) log-posteriors."""
        result: Tensor = self.head(self.encoder(signals))
        return result

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        signals, labels = batch
        return self.head.loss(self.encoder(signals), labels)

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        # Heads may train on different losses, but all are judged by the one that is reported.
        loss = row_losses(self, LabelledSignals(*batch)).mean()
        self.log(VALIDATION_LOSS, loss, batch_size=len(batch[0]), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        groups = [{"params": list(self.encoder.parameters()), "lr": self.learning_rate}]
        of_head = list(self.head.parameters())
        if of_head:
            groups.append({"params": of_head, "lr": self.head_rate})
        return torch.optim.Adam(groups)


class KeepBest(Callback):
    """Remembers the parameters with the lowest validation loss; a loss that is not finite never wins."""

    def __init__(self) -> None:
        self.loss = math.inf
        self.step = -1
        self.state: dict[str, Tensor] = {}

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        loss = float(trainer.callback_metrics[VALIDATION_LOSS])
        if loss < self.loss:
            self.loss, self.step, self.state = loss, trainer.global_step, deepcopy(module.state_dict())


def row_losses(module: LabelModule, rows: LabelledSignals) -> Tensor:
    """(rows,) mean over sites of -log posterior of the true label."""
    return -module(rows.signals).gather(2, rows.labels.unsqueeze(2)).mean(dim=(1, 2))


def train_labels(
    module: LabelModule,
    train: LabelledSignals,
    validation: LabelledSignals,
    trainer: Mapping[str, Any],
    max_steps: int,
    seed: int,
    check_every: int = 20,
    patience: int = 8,
    start_counts: bool = False,
) -> dict[str, float | int]:
    """Train in place; at the end the module holds the parameters with the lowest validation loss.

    Args:
        module: encoder and head.
        train: rows to learn from.
        validation: rows that say when to stop.
        trainer: arguments of ``lightning.pytorch.Trainer``.
        max_steps: gradient steps at most; 0 leaves the module as it is.
        seed: of the order of the rows.
        check_every: steps between two looks at the validation rows.
        patience: looks without improvement before training stops.
        start_counts: the module starts from a fit, which is kept unless training clearly gains: few validation rows are
            easily pleased by steps that harm a good fit.

    Returns:
        "validation_loss", "best_step" (0: the start was kept), "steps" and "train_seconds".

    Raises:
        DataError: no validation loss was finite.
    """
    begun = deepcopy(module.state_dict())
    with torch.no_grad():
        before = row_losses(module, validation)
    best, steps, seconds = KeepBest(), 0, 0.0
    if max_steps > 0:
        stop = EarlyStopping(VALIDATION_LOSS, patience=patience, check_finite=True, verbose=False)
        with _quiet_lightning():
            runner = Trainer(
                **{**trainer, "enable_progress_bar": False},  # dozens of short trainings have one bar together
                max_steps=max_steps,
                max_epochs=-1,
                check_val_every_n_epoch=None,  # looks are counted in steps, which mean the same at every size
                val_check_interval=min(check_every, max_steps),
                num_sanity_val_steps=0,
                gradient_clip_val=1.0,
                callbacks=[best, stop],
                logger=False,
                enable_checkpointing=False,
                enable_model_summary=False,
            )
            # All processes together take steps of the same size as one alone.
            share = max(1, min(BATCH_ROWS, len(train.labels)) // runner.world_size)
            order = torch.Generator().manual_seed(seed)
            batches = DataLoader(TensorDataset(*train), share, shuffle=True, drop_last=True, generator=order)
            start = time.perf_counter()
            runner.fit(module, batches, DataLoader(TensorDataset(*validation), 1024))
            seconds, steps = time.perf_counter() - start, int(runner.global_step)
        module.cpu()
        module.load_state_dict(best.state or begun)
    if (start_counts or max_steps == 0) and not _clear_gain(before, module, validation):
        module.load_state_dict(begun)
        best.loss, best.step = float(before.mean()), 0
    if not math.isfinite(best.loss):
        raise DataError(
            "Training: the validation loss was never finite. Look for NaN or huge values in the signals, or lower the "
            "learning rates."
        )
    return {"validation_loss": best.loss, "best_step": best.step, "steps": steps, "train_seconds": seconds}


@torch.no_grad()
def _clear_gain(before: Tensor, module: LabelModule, validation: LabelledSignals) -> bool:
    """Whether the module's validation losses are lower than ``before`` by more than chance."""
    gain = before - row_losses(module, validation)
    error = float(gain.std()) / math.sqrt(len(gain)) if len(gain) > 1 else math.inf
    return float(gain.mean()) > LEAST_GAIN * error


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Hide what Lightning says at every start; rows are in memory, so its advice on workers would only cost time."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*does not have many workers.*")
            warnings.filterwarnings("ignore", message=".*treespec.*")
            yield
    finally:
        logger.setLevel(level)
