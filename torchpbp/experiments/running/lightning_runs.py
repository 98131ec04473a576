"""Training of a network in the folder of a run: Lightning's Trainer from the groups trainer, logger and callbacks."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, ProgressBar
from lightning.pytorch.loggers import Logger
from torch import nn
from tqdm.auto import tqdm

from torchpbp.distributed import gather_objects
from torchpbp.errors import ArgumentError
from torchpbp.neural.training_state import WholeFiles, resumable

CPU: Mapping[str, Any] = {"accelerator": "cpu", "devices": 1, "strategy": "auto", "enable_progress_bar": True}


@dataclass(frozen=True)
class TrainingGroups:
    """What the configuration says about training.

    Args:
        trainer: arguments of Lightning's Trainer.
        logger: makes a logger for a folder; ``None``: none.
        callbacks: name -> callback, copied for each training.
        ckpt_path: state of training to go on from.
    """

    trainer: Mapping[str, Any] = field(default_factory=lambda: dict(CPU))
    logger: Callable[..., Logger | None] | None = None
    callbacks: Mapping[str, Callback] = field(default_factory=dict)
    ckpt_path: str | None = None

    def checkpoint(self, prefix: str = "") -> Path | None:
        """The state of training that a network goes on from; others than the first have theirs beside the first one's.

        Raises:
            ArgumentError: ``ckpt_path`` is no file.
        """
        if self.ckpt_path is None:
            return None
        path = Path(self.ckpt_path)
        if not prefix and not path.is_file():
            raise ArgumentError(
                f"ckpt_path: expected a state of training such as checkpoints/last.ckpt, got {str(path)!r}, which is no file."
            )
        beside = path.with_name(prefix + path.name)
        return beside if beside.is_file() else None


class History(Callback):
    """Logged metrics at the end of each epoch, kept in checkpoints, so that a resumed run has all of them."""

    def __init__(self) -> None:
        self.lines: list[dict[str, float]] = []
        self.began = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.began = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.lines.append({"epoch": trainer.current_epoch, "step": trainer.global_step, **logged})

    def state_dict(self) -> dict[str, Any]:
        return {"lines": self.lines}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.lines = list(state_dict["lines"])

    def table(self) -> pd.DataFrame:
        """A row per epoch: epoch, step, then what was logged."""
        return pd.DataFrame(self.lines)


class TrainingBar(ProgressBar):
    """One bar over all steps, with the loss and the validation accuracy.

    Args:
        title: at its left.
    """

    def __init__(self, title: str = "training") -> None:
        super().__init__()
        self.title = title
        self.shown = True
        self.bar: tqdm[Any] | None = None

    def enable(self) -> None:
        """Lightning calls it on the first process."""
        self.shown = True

    def disable(self) -> None:
        """Lightning calls it on the others."""
        self.shown = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.bar = tqdm(
            total=int(trainer.estimated_stepping_batches),
            initial=trainer.global_step,
            desc=self.title,
            unit="step",
            leave=False,
            disable=not self.shown,
        )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.bar is not None:
            self.bar.update()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.bar is not None:
            logged = trainer.callback_metrics
            known = {name.rpartition("/")[2]: f"{float(logged[name]):.4f}" for name in SHOWN if name in logged}
            self.bar.set_postfix(known, refresh=False)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self.bar is not None:
            self.bar.close()


def no_logger(save_dir: str, prefix: str = "") -> None:
    """Stands for no logger in a configuration."""


NOT_WORTH_SAYING = (
    ".*does not have many workers.*",
    ".*treespec.*",
    ".*exists and is not empty.*",
    ".*smaller than the logging interval.*",
    ".*dirpath has changed.*",
)
"""Warnings of Lightning about rows in memory, short epochs, and folders that are used again."""

SHOWN = ("train/loss", "val/accuracy")
"""Metrics beside the bar."""


def train(
    module: LightningModule,
    data: LightningDataModule,
    groups: TrainingGroups,
    epochs: int,
    gradient_clip: float,
    folder: Path | None,
    prefix: str = "",
    verbose: bool = True,
    more: Sequence[Callback] = (),
) -> pd.DataFrame:
    """Train a module, from the start or from where an earlier run stopped.

    Args:
        module: trained in place.
        data: its rows.
        groups: what the configuration says.
        epochs: in all.
        gradient_clip: largest norm of a gradient.
        folder: of the run, for ``checkpoints/<prefix>last.ckpt`` and what a logger writes. ``None``: no files.
        prefix: of the names of files.
        verbose: show a progress bar, if the groups have one.
        more: further callbacks.

    Returns:
        What was logged at the end of each epoch.
    """
    history = History()
    options = dict(groups.trainer)
    bar = bool(options.pop("enable_progress_bar", True)) and verbose
    callbacks = [
        prepared(c, folder, prefix) for c in groups.callbacks.values() if bar or not isinstance(c, ProgressBar)
    ]
    # All processes take part in writing a checkpoint, though only the first has a folder.
    written = gather_objects(folder is not None)[0]
    callbacks = [c for c in callbacks if written or not isinstance(c, ModelCheckpoint)]
    saved = any(isinstance(c, ModelCheckpoint) for c in callbacks)
    start = groups.checkpoint(prefix)
    with quiet_lightning():
        trainer = Trainer(
            **options,
            max_epochs=epochs,
            gradient_clip_val=gradient_clip or None,
            callbacks=[*callbacks, history, *more],
            plugins=[WholeFiles()],
            logger=made_logger(groups.logger, folder, prefix) or False,
            enable_checkpointing=saved,
            enable_progress_bar=bar and any(isinstance(c, ProgressBar) for c in callbacks),
            enable_model_summary=False,
            use_distributed_sampler=False,
            num_sanity_val_steps=0,
            default_root_dir=folder,
        )
        trainer.fit(module, data, ckpt_path=None if start is None else resumable(start))
        if not history.began:  # the state was that of a finished training, whose last hooks Lightning leaves out
            for callback in callbacks:
                callback.on_train_end(trainer, module)
            module.on_train_end()
    return history.table()


def prepared(callback: Callback, folder: Path | None, prefix: str) -> Callback:
    """A copy of a callback for one training; checkpoints go to the folder of the run."""
    own = copy.deepcopy(callback)
    if isinstance(own, ModelCheckpoint):
        own.dirpath = (
            None if folder is None else str(folder / "checkpoints")
        )  # Lightning tells it to the other processes
        own.filename = prefix + (own.filename or "last")
        own.CHECKPOINT_NAME_LAST = f"{prefix}last"
    if isinstance(own, TrainingBar) and prefix:
        own.title = prefix.strip("_")
    return own


def made_logger(logger: Callable[..., Logger | None] | None, folder: Path | None, prefix: str) -> Logger | None:
    """A logger that writes into the folder of the run; none without a folder."""
    if logger is None or folder is None:
        return None
    return logger(save_dir=str(folder), **({"prefix": prefix.strip("_")} if prefix else {}))


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Hide what Lightning says at every start; rows are in memory, so its advice on workers would only cost time."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            for text in NOT_WORTH_SAYING:
                warnings.filterwarnings("ignore", message=text)
            yield
    finally:
        logger.setLevel(level)


def facts(history: pd.DataFrame, seconds: float, module: nn.Module) -> dict[str, Any]:
    """What a run notes of a training."""
    return {
        "history": history.to_dict("list"),
        "fit_seconds": seconds,
        "parameters": sum(p.numel() for p in module.parameters()),
    }
