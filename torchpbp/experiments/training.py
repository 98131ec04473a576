"""Training of a network with Lightning in the folder of a run."""

from __future__ import annotations

import copy
import logging
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, ProgressBar
from lightning.pytorch.loggers import Logger

from torchpbp.experiments.grid import PARTS, Run, hash_of
from torchpbp.experiments.progress import Progress
from torchpbp.io import replacing

SHOWN = ("train/loss", "val/loss", "val/accuracy")
"""Metrics beside the progress bar."""
NOT_USEFUL = (
    ".*treespec.*",
    ".*does not have many workers.*",
    ".*exists and is not empty.*",
    ".*smaller than the logging interval.*",
)
"""Warnings of Lightning that mean nothing for rows in memory and short epochs."""


class TrainingProgress(ProgressBar):
    """Progress over all steps of a training, with the loss and the validation accuracy."""

    def __init__(self) -> None:
        super().__init__()
        self.shown, self.title, self.progress = True, "training", Progress("training", 1, shown=False)

    def enable(self) -> None:
        self.shown = True

    def disable(self) -> None:
        self.shown = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        steps = trainer.estimated_stepping_batches
        total = int(steps) if steps < float("inf") else trainer.global_step + 1
        self.progress = Progress(self.title, total, done=trainer.global_step, shown=self.shown)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        logged = trainer.callback_metrics
        note = ", ".join(f"{name} {float(logged[name]):.4f}" for name in SHOWN if name in logged)
        self.progress.advance(note=note)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.progress.close()


class History(Callback):
    """Logged metrics at the end of each epoch, kept in checkpoints, so that a resumed run has all of them."""

    def __init__(self) -> None:
        self.lines: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.lines.append({"epoch": trainer.current_epoch, "step": trainer.global_step, **logged})

    def state_dict(self) -> dict[str, Any]:
        return {"lines": self.lines}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.lines = list(state_dict["lines"])


def fit(
    module: LightningModule,
    data: LightningDataModule,
    trainer: Callable[..., Trainer],
    callbacks: Mapping[str, Callback] | None,
    logger: Mapping[str, Logger] | None,
    run: Run,
    name: str,
    ckpt_path: str | None = None,
    subfolder: str = "",
) -> dict[str, Any]:
    """Train a module, from the start or from where an interrupted run stopped.

    Args:
        module: trained in place.
        data: its rows.
        trainer: makes Lightning's Trainer, given callbacks and loggers.
        callbacks: by name; copied, since a run may train several networks.
        logger: likewise.
        run: the run; with ``resume=true`` its checkpoint is used if it was written with the same settings.
        name: of the network, beside its progress.
        ckpt_path: checkpoint to go on from.
        subfolder: of ``checkpoints``, for all but the first network of a run.

    Returns:
        "history" (name -> values, one per epoch), "seconds" and "parameters".
    """
    history, own = History(), [copy.deepcopy(callback) for callback in (callbacks or {}).values()]
    for callback in own:
        if isinstance(callback, TrainingProgress):
            callback.title = name
        if isinstance(callback, ModelCheckpoint) and callback.dirpath is not None:
            callback.dirpath = str(Path(callback.dirpath) / subfolder)
    if run.folder is None:
        own = [callback for callback in own if not isinstance(callback, ModelCheckpoint)]
    # A checkpoint belongs to a run if the run with these settings noted that it had begun.
    last = None if run.folder is None else run.folder / "checkpoints" / subfolder / "last.ckpt"
    begun = None if run.folder is None else run.folder / PARTS / f"{hash_of([run.key, name])}.begun"
    if ckpt_path is None and last is not None and begun is not None:
        if begun.exists() and last.exists():
            ckpt_path = str(last)
            run.say(f"{name}: going on from {last}")
        elif not begun.exists():
            with replacing(begun) as temporary:
                temporary.write_text(name, encoding="utf-8")
    start = time.perf_counter()
    quiet_lightning()
    with warnings.catch_warnings():
        for text in NOT_USEFUL:
            warnings.filterwarnings("ignore", message=text)
        loggers = [copy.deepcopy(item) for item in (logger or {}).values()]
        saved = any(isinstance(callback, ModelCheckpoint) for callback in own)
        fitter = trainer(callbacks=[*own, history], logger=loggers or False, enable_checkpointing=saved)
        fitter.fit(module, data, ckpt_path=ckpt_path)
    lines = history.lines
    names = dict.fromkeys(key for line in lines for key in line)
    return {
        "history": {key: [line.get(key, float("nan")) for line in lines] for key in names},
        "seconds": time.perf_counter() - start,
        "parameters": sum(p.numel() for p in module.parameters()),
    }


def quiet_lightning() -> None:
    """Let Lightning log through the program's handlers only, without devices and advertisements."""

    def useful(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(("GPU available", "TPU available", "💡", "Loading `train"))

    for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    rank_zero = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    rank_zero.filters[:] = [useful]


def generator_of(*numbers: int) -> torch.Generator:
    """A generator that follows from numbers, such as a seed and a step."""
    return torch.Generator().manual_seed(int(np.random.SeedSequence(numbers).generate_state(1)[0]))
