"""MLP: stage-1 regressions by small neural networks, trained with Lightning."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch.utils.data import DataLoader

from torchpbp.distributed import gather_objects, process_rank
from torchpbp.errors import ArgumentError, DataError, DataWarning
from torchpbp.learning.nets import NetPredictor, StageOneNets
from torchpbp.learning.predictions import PredictedStage1
from torchpbp.learning.regressions import Regression
from torchpbp.learning.stage1 import Penalties, RowRegressor, Stage1
from torchpbp.moments.moments import Moments
from torchpbp.moments.rows import TrainingRows
from torchpbp.neural.net_training import BatchedRows, Batches, EpochBar, NetTraining
from torchpbp.neural.training_state import WholeFiles, resumable
from torchpbp.planning.plan import Plan
from torchpbp.settings import (
    Constraint,
    Settings,
    choice,
    flag,
    floating_dtype,
    instance,
    non_negative,
    optional,
    positive,
    seed,
    setting,
    several,
    whole,
)

VALIDATION_ROWS = 8192
"""Rows evaluated at once where no gradient is needed."""


def _options() -> Constraint:
    return instance(Mapping, expected="names and values, such as a dict")


@dataclass(frozen=True)
class MLPSettings(Settings):
    """What decides the result of :class:`MLP`."""

    hidden: tuple[int, ...] = setting((32,), several(whole(1), expected="a list with the width of each hidden layer"))
    folds: int = setting(4, whole(1))
    form: Literal["instrumental", "plain"] = setting("instrumental", choice("instrumental", "plain"))
    linear: bool = setting(True, flag())
    epochs: int = setting(40, whole(1))
    patience: int | None = setting(8, optional(whole(1)))
    batch_size: int | None = setting(None, optional(whole(1)))
    learning_rate: float = setting(3e-3, positive())
    weight_decay: float = setting(1e-3, non_negative())
    stage_b: Mapping[str, Any] | None = setting(None, optional(_options()))
    dtype: torch.dtype = setting(torch.float32, floating_dtype())
    seed: int = setting(0, seed())

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = set(self.stage_b or {}) - {"hidden", "epochs", "patience", "learning_rate", "weight_decay"}
        if unknown:
            raise ArgumentError(f"stage_b: cannot set {sorted(unknown)} for the second net alone.")
        self.of_stage("stage1b")  # its settings are checked before any net is trained

    def of_stage(self, stage: str) -> MLPSettings:
        """Settings of the nets of S1A or S1B."""
        return (
            replace(self, **{**(self.stage_b or {}), "stage_b": None}) if stage == "stage1b" and self.stage_b else self
        )


class MLP(RowRegressor):
    """Small multilayer perceptrons that predict the inside of each separator from the outside.

    The nets of all separators train together as one batched module. With ``folds=K``, each separator has K nets; net k
    never sees fold k, decides on it when to stop, and is the one that predicts it for stage 2 (cross-fitting): a net that
    had memorised its rows would bias stage 2. The fold chooses one number, the epoch, for its net.

    Args:
        hidden: widths of the hidden layers, beside a linear path from inputs to outputs. Empty: linear.
        folds: nets per separator for cross-fitting, at least 2; 1: a single net that predicts, and stops by, the rows it
            was trained on.
        form: "instrumental": predictions are instruments of raw features, so that stage 2 stays consistent however poor they are.
            "plain": least squares from one prediction to another, as in [PBP].
        linear: in the instrumental form, take the features of linear stage 1 as instruments, and the nets' predictions
            beside them as far as they tell more on rows that the nets have not seen. Where linear regression does, the
            result is that of :class:`~torchpbp.Ridge`. False: predictions alone.
        epochs: passes over the rows, at most.
        patience: stop after so many epochs without a net that improved on held-out rows; None: never, and the last
            parameters count instead of the best.
        batch_size: rows per step, over all processes. By default a sixteenth of the rows, between 64 and 2,048.
        learning_rate: of Adam, falling to zero along a cosine.
        weight_decay: of AdamW.
        stage_b: settings that differ for S1B of the plain form, such as ``{"hidden": [64]}``.
        dtype: of the nets.
        trainer: arguments of ``lightning.pytorch.Trainer``, such as accelerator, devices, strategy.
        checkpoint: folder for the state of training after each epoch. A fit with the same data, structure and settings as an
            interrupted one goes on from there, to the same result as without interruption.
        seed: of weights, folds and batches.
    """

    def __init__(
        self,
        hidden: Sequence[int] = (32,),
        folds: int = 4,
        form: Literal["instrumental", "plain"] = "instrumental",
        linear: bool = True,
        epochs: int = 40,
        patience: int | None = 8,
        batch_size: int | None = None,
        learning_rate: float = 3e-3,
        weight_decay: float = 1e-3,
        stage_b: Mapping[str, Any] | None = None,
        dtype: torch.dtype = torch.float32,
        trainer: Mapping[str, Any] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        seed: int = 0,
    ) -> None:
        widths: Any = hidden  # any sequence; the constraint makes it a tuple
        self.settings = MLPSettings(
            widths, folds, form, linear, epochs, patience, batch_size, learning_rate, weight_decay, stage_b, dtype, seed
        )
        self.trainer: dict[str, Any] = _options().check("trainer", trainer or {})
        self.checkpoint = None if checkpoint is None else Path(checkpoint)

    def learn(self, plan: Plan, moments: Moments, rows: TrainingRows | None, penalties: Penalties) -> Stage1:
        if rows is None:
            raise ArgumentError(f"{self!r} needs the rows themselves, not only moments.")
        plain = self.settings.form == "plain"
        return PredictedStage1(
            plan,
            moments,
            rows,
            partial(self.fit, stage="stage1a"),
            partial(self.fit, stage="stage1b") if plain else None,
            stacked=self.settings.linear and not plain,
            method=repr(self),
        )

    def fit(self, rows: TrainingRows, regressions: Sequence[Regression], stage: str) -> NetPredictor:
        """Train the nets of all regressions.

        Args:
            rows: of this process.
            regressions: one per separator.
            stage: "stage1a" (features of the core group) or "stage1b" (joint features below), for messages and files.
        """
        own = self.settings.of_stage(stage)
        counts = gather_objects(len(rows))
        total, before = sum(counts), sum(counts[: process_rank()])
        # Weighted rows are joint states, not a sample: there is nothing to memorise, and a fold would depend on the inside.
        folds = own.folds if rows.weights is None else 1
        if total < 2 * folds:
            raise DataError(f"Cross-fitting with {folds} folds needs at least {2 * folds} rows, got {total}.")
        order = torch.randperm(total, generator=torch.Generator().manual_seed(own.seed))
        fold = (torch.argsort(order) % folds)[before : before + len(rows)]
        batch_size = min(total, own.batch_size or max(64, min(2048, total // 16)))
        nets = StageOneNets(regressions, rows, folds, own.hidden, own.seed, own.dtype)
        module = NetTraining(
            nets,
            folds=folds,
            batch_size=batch_size,
            epochs=own.epochs,
            patience=own.patience,
            learning_rate=own.learning_rate,
            weight_decay=own.weight_decay,
            total=total,
        )
        batches = Batches(total, before, len(rows), batch_size, own.seed)
        self._train(module, BatchedRows(rows, fold), batches, _signature(self.settings, regressions, rows), stage)
        if module.patience is not None or int(module.diverged):
            nets.restore_best()
        return NetPredictor(nets, fold)

    def _train(self, module: NetTraining, data: BatchedRows, batches: Batches, signature: str, stage: str) -> None:
        """Run Lightning, from the start or from where an earlier run stopped."""
        loader = DataLoader(data, sampler=batches, batch_size=None)
        held_out = DataLoader(data, sampler=torch.split(torch.arange(len(data)), VALIDATION_ROWS), batch_size=None)
        settings: dict[str, Any] = {"accelerator": "cpu", "devices": 1, **self.trainer}
        callbacks: list[Callback] = [EpochBar(stage)] if settings.pop("enable_progress_bar", True) else []
        resumed = None
        if self.checkpoint is not None:
            folder = self.checkpoint / f"{stage}_{signature[:16]}"  # one for each fit, for there may be many
            callbacks.append(
                ModelCheckpoint(
                    folder, "last", save_top_k=1, save_on_train_epoch_end=True, enable_version_counter=False
                )
            )
            resumed = resumable(folder / "last.ckpt")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*does not have many workers.*")
            warnings.filterwarnings("ignore", message=".*exists and is not empty.*")
            for name in ("lightning.pytorch.utilities.rank_zero", "lightning.pytorch.accelerators.cuda"):
                logging.getLogger(name).setLevel(logging.WARNING)
            trainer = Trainer(
                max_epochs=module.epochs,
                logger=False,
                enable_checkpointing=self.checkpoint is not None,
                enable_model_summary=False,
                enable_progress_bar=False,
                use_distributed_sampler=False,
                num_sanity_val_steps=0,
                callbacks=callbacks,
                plugins=[WholeFiles()],
                **settings,
            )
            trainer.fit(module, loader, held_out, ckpt_path=resumed)
        if int(module.diverged):
            warnings.warn(
                f"Training of {stage}: the loss became NaN in epoch {int(module.diverged)}; the best parameters before that are "
                "used. Lower learning_rate=.",
                DataWarning,
                stacklevel=3,
            )
        module.to(data.rows.device)

    def __repr__(self) -> str:
        return f"MLP(hidden={list(self.settings.hidden)}, folds={self.settings.folds}, form={self.settings.form!r})"


def _signature(settings: MLPSettings, regressions: Sequence[Regression], rows: TrainingRows) -> str:
    """A digest of all that decides a training run, the rows of all processes and their order included."""
    shares = gather_objects(hashlib.sha256(rows.values.cpu().numpy().tobytes()).hexdigest())
    digest = hashlib.sha256(json.dumps([settings.to_dict(), shares], default=str, sort_keys=True).encode())
    for r in regressions:
        digest.update(repr((r.inputs, r.groups)).encode())
        for tensor in (*r.matrices, r.offset):
            digest.update(tensor.cpu().numpy().tobytes())
    return digest.hexdigest()
