"""MLP: stage-1 regressions by small neural networks, trained with Lightning."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import Tensor
from torch.utils.data import DataLoader

from torchpbp.distributed import gather_objects, process_rank
from torchpbp.errors import ArgumentError, DataError, DataWarning
from torchpbp.learning.blanks import Blanks
from torchpbp.learning.heads import FoldedRows, HeadPredictor
from torchpbp.learning.nets import HiddenNets, Inputs, NetsInTraining
from torchpbp.learning.regressions import (
    Regression,
    core_regression,
    families,
    leading_directions,
    projected,
    targets_of,
)
from torchpbp.learning.stage1 import Penalties, RowRegressor, Stage1
from torchpbp.learning.trained_stage1 import TrainedStage1
from torchpbp.moments.moments import Moments
from torchpbp.moments.rows import TrainingRows
from torchpbp.neural.net_training import BatchedRows, Batches, EpochBar, NetTraining
from torchpbp.neural.training_state import WholeFiles, resumable
from torchpbp.planning.plan import Plan
from torchpbp.settings import (
    Constraint,
    Settings,
    between,
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

STAGE = "stage1"
"""Name of the training in progress bars and folders."""
VALIDATION_ROWS = 8192
"""Rows evaluated at once without gradients."""


def _options() -> Constraint:
    return instance(Mapping, expected="names and values, such as a dict")


@dataclass(frozen=True, kw_only=True)
class MLPSettings(Settings):
    """Settings of :class:`MLP` that determine its result."""

    hidden: tuple[int, ...] = setting((32,), several(whole(1), expected="a list with the width of each hidden layer"))
    folds: int = setting(2, whole(1))
    linear: bool = setting(True, flag())
    missing: float = setting(0.25, between(0, 1))
    epochs: int = setting(8, whole(1))
    patience: int | None = setting(4, optional(whole(1)))
    batch_size: int | None = setting(None, optional(whole(1)))
    learning_rate: float = setting(0.02, positive())
    weight_decay: float = setting(1e-3, non_negative())
    dtype: torch.dtype = setting(torch.float32, floating_dtype())
    seed: int = setting(0, seed())


class MLP(RowRegressor):
    """Small multilayer perceptrons that predict the inside of each separator from the outside.

    Each separator has one net over the observables of its instrument, with two heads on its hidden layers: S1A predicts
    the message, S1B the products below it. The hidden layers of all separators train together as one batched module, on
    features of the core groups; the heads are then solved in closed form. The nets become ``model.stage1``, and
    ``model.predicted_messages(evidence)`` returns their predictions.

    With ``folds=K``, each separator has K nets (cross-fitting): net k is trained without fold k, stopped by its loss on fold k,
    and predicts fold k for stage 2, which a net that had memorised its rows would bias. Fold k thus selects two
    numbers of its net, the epoch and, with the other folds, the ridge of the heads.

    Args:
        hidden: widths of the hidden layers, beside a linear path from inputs to outputs. Empty: linear.
        folds: nets per separator for cross-fitting, at least 2; 1: a single net that predicts, and stops by, the rows it
            was trained on.
        linear: use the features of linear stage 1 as instruments, together with the nets' predictions as far as these improve
            on them on held-out rows. Where linear regression suffices, the operators are those of
            :class:`~torchpbp.Ridge`. False: predictions alone.
        missing: share of the rows in which values are hidden at random from the nets, in training and in the solve of their
            heads, so that ``predicted_messages`` accepts incomplete rows. Stage 2 uses predictions from complete rows.
        epochs: largest number of passes over the rows.
        patience: stop after this number of epochs in which no net improved on held-out rows; None: never, with the last
            parameters instead of the best.
        batch_size: rows per step, over all processes. By default a sixteenth of the rows, between 256 and 2,048.
        learning_rate: of Adam, falling to zero along a cosine.
        weight_decay: of AdamW.
        dtype: of the nets. Heads are solved in float64.
        trainer: arguments of ``lightning.pytorch.Trainer``, such as accelerator, devices, strategy. By default nets train on the
            device of the model.
        checkpoint: folder for the state of training after each epoch. An interrupted fit, repeated with the same data, structure
            and settings, resumes from it, with the same result as without interruption.
        seed: of weights, folds and batches.
    """

    def __init__(
        self,
        hidden: Sequence[int] = (32,),
        folds: int = 2,
        linear: bool = True,
        missing: float = 0.25,
        epochs: int = 8,
        patience: int | None = 4,
        batch_size: int | None = None,
        learning_rate: float = 0.02,
        weight_decay: float = 1e-3,
        dtype: torch.dtype = torch.float32,
        trainer: Mapping[str, Any] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        seed: int = 0,
    ) -> None:
        self.settings = MLPSettings(
            hidden=hidden,  # type: ignore[arg-type]
            folds=folds,
            linear=linear,
            missing=missing,
            epochs=epochs,
            patience=patience,
            batch_size=batch_size,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            dtype=dtype,
            seed=seed,
        )
        self.trainer: dict[str, Any] = _options().check("trainer", trainer or {})
        self.checkpoint = None if checkpoint is None else Path(checkpoint)

    def learn(self, plan: Plan, moments: Moments, rows: TrainingRows | None, penalties: Penalties) -> Stage1:
        if rows is None:
            raise ArgumentError(f"{self!r} needs the rows themselves, not only moments.")
        # Targets of the nets are core features, projected on their leading directions.
        cores = [core_regression(plan, s.node, moments)[0] for s in plan.separators]
        directions = leading_directions(cores, rows, [s.rank - 1 for s in plan.separators])
        predictor = self.fit(rows, [projected(r, d) for r, d in zip(cores, directions, strict=True)])
        linear = directions if self.settings.linear else None
        return TrainedStage1(plan, moments, predictor, linear, self._share_of(rows).blanks(rows), repr(self))

    def fit(self, rows: TrainingRows, regressions: Sequence[Regression]) -> HeadPredictor:
        """Train the nets of all regressions.

        Args:
            rows: of this process.
            regressions: one per separator.
        """
        settings, process = self.settings, self._share_of(rows)
        # Weighted rows are joint states, not a sample: nets cannot memorise noise, and a fold would depend on the inside.
        folds = settings.folds if rows.weights is None else 1
        total = process.total
        if total < 2 * folds:
            raise DataError(f"Cross-fitting with {folds} folds needs at least {2 * folds} rows, got {total}.")
        order = torch.randperm(total, generator=torch.Generator().manual_seed(settings.seed), device="cpu")
        fold = (torch.argsort(order) % folds)[process.before : process.before + len(rows)].to(rows.device)
        dims = {v: rows.maps[v].dim for v in rows.names}
        with rows.device:
            hidden = HiddenNets(Inputs([r.inputs for r in regressions], dims), folds, settings.hidden, settings.dtype)
        hidden.start(torch.Generator().manual_seed(settings.seed))
        last = self._train_nets(hidden, regressions, rows, fold, process)
        hidden.requires_grad_(False)
        return HeadPredictor(hidden, FoldedRows(rows, fold, folds), targets_of(regressions, rows), last)

    def _share_of(self, rows: TrainingRows) -> _Share:
        counts = gather_objects(len(rows))
        return _Share(self.settings, sum(counts), sum(counts[: process_rank()]))

    def _train_nets(
        self,
        hidden: HiddenNets,
        regressions: Sequence[Regression],
        rows: TrainingRows,
        fold: Tensor,
        process: _Share,
    ) -> list[Tensor]:
        """Train the hidden layers; returns the output layers of the training."""
        settings, total = self.settings, process.total
        members, targets = zip(*families(regressions, rows), strict=True)
        with rows.device:
            nets = NetsInTraining(hidden, members, [t.offset.shape[1] for t in targets])
        batch_size = min(total, settings.batch_size or max(256, min(2048, total // 16)))
        module = NetTraining(
            nets,
            folds=hidden.folds,
            batch_size=batch_size,
            epochs=settings.epochs,
            patience=settings.patience,
            learning_rate=settings.learning_rate,
            weight_decay=settings.weight_decay,
            total=total,
        )
        data = BatchedRows(rows, fold, [t.to(settings.dtype) for t in targets], process.blanks(rows))
        batches = Batches(total, process.before, len(rows), batch_size, settings.seed, data)
        signature = "" if self.checkpoint is None else _signature(settings, regressions, rows)
        self._train(module, data, batches, signature)
        if module.patience is not None or int(module.diverged):
            nets.restore_best()
        return nets.last_layers()

    def _train(self, module: NetTraining, data: BatchedRows, batches: Batches, signature: str) -> None:
        """Run Lightning, from the start or from a checkpoint."""
        loader = DataLoader(data, sampler=batches, batch_size=None)
        every = data.rows.positions(VALIDATION_ROWS)
        held_out = DataLoader(data.complete(), sampler=every, batch_size=None)
        settings: dict[str, Any] = {**_place(data.rows.device), **self.trainer}
        callbacks: list[Callback] = [EpochBar(STAGE)] if settings.pop("enable_progress_bar", True) else []
        resumed = None
        if self.checkpoint is not None:
            folder = self.checkpoint / f"{STAGE}_{signature[:16]}"  # a folder per fit
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
                f"Training of {STAGE}: the loss became NaN in epoch {int(module.diverged)}; the best parameters before that are "
                "used. Lower learning_rate=.",
                DataWarning,
                stacklevel=3,
            )
        module.to(data.rows.device)

    def __repr__(self) -> str:
        return f"MLP(hidden={list(self.settings.hidden)}, folds={self.settings.folds})"


@dataclass(frozen=True)
class _Share:
    """Position of this process's rows among the rows of all processes."""

    settings: MLPSettings
    total: int
    before: int

    def blanks(self, rows: TrainingRows) -> Blanks:
        """Masks of the values hidden from the nets."""
        missing, seed = self.settings.missing, self.settings.seed
        return Blanks(len(rows.names), missing, self.total, self.before, len(rows), rows.weights is not None, seed)


def _place(device: torch.device) -> dict[str, Any]:
    """Arguments of a trainer on the device of the rows."""
    if device.type == "cuda":
        return {"accelerator": "gpu", "devices": [device.index or 0]}
    return {"accelerator": "cpu", "devices": 1}


def _signature(settings: MLPSettings, regressions: Sequence[Regression], rows: TrainingRows) -> str:
    """A digest of all inputs of a training run, including the rows of all processes and their order."""
    shares = gather_objects(hashlib.sha256(rows.values.cpu().numpy().tobytes()).hexdigest())
    digest = hashlib.sha256(json.dumps([settings.to_dict(), shares], default=str, sort_keys=True).encode())
    for r in regressions:
        digest.update(repr((r.inputs, r.groups)).encode())
        for tensor in (*r.matrices, r.offset):
            digest.update(tensor.cpu().numpy().tobytes())
    return digest.hexdigest()
