"""MLP: stage-1 regressions by small neural networks, trained with Lightning."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch.utils.data import DataLoader

from torchpbp.arguments import check_amounts, check_counts, check_positive, check_seed, is_series
from torchpbp.distributed import gather_objects, process_rank
from torchpbp.errors import DataError, DataWarning, StructureError
from torchpbp.learning.nets import NetPredictor, StageOneNets
from torchpbp.learning.regressor import Form, Regression, Regressor
from torchpbp.moments.rows import Rows
from torchpbp.neural.net_training import BatchedRows, Batches, EpochBar, NetTraining
from torchpbp.neural.training_state import WholeFiles, resumable

VALIDATION_ROWS = 8192
"""Rows evaluated at once where no gradient is needed."""


class MLP(Regressor):
    """Small multilayer perceptrons that predict the inside of each separator from the outside.

    The nets of all separators train together as one batched module. With ``folds=K``, each separator has K nets; net k
    never sees fold k, decides on it when to stop, and is the one that predicts it for stage 2 (cross-fitting): a net that
    had memorised its rows would bias stage 2. The fold chooses one number, the epoch, for its net.

    Args:
        hidden: widths of the hidden layers, beside a linear path from inputs to outputs. Empty: linear.
        folds: nets per separator for cross-fitting, at least 2; 1: a single net that predicts, and stops by, the rows it
            was trained on.
        form: "instrumental" or "plain", see :class:`~torchpbp.learning.regressor.Regressor`.
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
        form: Form = "instrumental",
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
        if form not in ("instrumental", "plain"):
            raise StructureError(f"form: expected 'instrumental' or 'plain', got {form!r}.")
        check_counts(folds=folds, epochs=epochs)
        if not is_series(hidden):
            raise StructureError(f"hidden: expected a list with the width of each hidden layer, got {hidden!r}.")
        for width in hidden:
            check_counts(hidden=width)
        for name, value in (("patience", patience), ("batch_size", batch_size)):
            if value is not None:  # None: no bound, or a rule
                check_counts(**{name: value})
        check_positive(learning_rate=learning_rate)
        check_amounts(weight_decay=weight_decay)
        seed = check_seed(seed)
        for name, options in (("stage_b", stage_b), ("trainer", trainer)):
            if not isinstance(options, Mapping | None):
                raise StructureError(f"{name}: expected names and values, such as a dict, got {options!r}.")
        self.hidden, self.folds, self.form, self.linear = tuple(hidden), folds, form, linear
        self.epochs, self.patience, self.batch_size = epochs, patience, batch_size
        self.learning_rate, self.weight_decay = learning_rate, weight_decay
        self.stage_b = dict(stage_b or {})
        unknown = set(self.stage_b) - {"hidden", "epochs", "patience", "learning_rate", "weight_decay"}
        if unknown:
            raise StructureError(f"stage_b: cannot set {sorted(unknown)} for the second net alone.")
        self.dtype, self.trainer = dtype, dict(trainer or {})
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.seed = seed

    def settings(self) -> dict[str, Any]:
        """What decides the result, as plain values."""
        names = (
            "hidden",
            "folds",
            "form",
            "linear",
            "epochs",
            "patience",
            "batch_size",
            "learning_rate",
            "weight_decay",
            "stage_b",
            "seed",
        )
        return {name: getattr(self, name) for name in names} | {"dtype": str(self.dtype)}

    def fit(self, rows: Rows, regressions: Sequence[Regression], stage: str) -> NetPredictor:
        counts = gather_objects(len(rows))
        total, before = sum(counts), sum(counts[: process_rank()])
        # Weighted rows are joint states, not a sample: there is nothing to memorise, and a fold would depend on the inside.
        folds = self.folds if rows.weights is None else 1
        if total < 2 * folds:
            raise DataError(f"Cross-fitting with {folds} folds needs at least {2 * folds} rows, got {total}.")
        own = self.stage_b if stage == "stage1b" else {}
        order = torch.randperm(total, generator=torch.Generator().manual_seed(self.seed))
        fold = (torch.argsort(order) % folds)[before : before + len(rows)]
        hidden = own.get("hidden", self.hidden)
        batch_size = min(total, self.batch_size or max(64, min(2048, total // 16)))
        nets = StageOneNets(regressions, rows, folds, hidden, self.seed, self.dtype)
        module = NetTraining(
            nets,
            folds=folds,
            batch_size=batch_size,
            epochs=own.get("epochs", self.epochs),
            patience=own.get("patience", self.patience),
            learning_rate=own.get("learning_rate", self.learning_rate),
            weight_decay=own.get("weight_decay", self.weight_decay),
            total=total,
        )
        batches = Batches(total, before, len(rows), batch_size, self.seed)
        self._train(module, BatchedRows(rows, fold), batches, _signature(self.settings(), regressions, rows), stage)
        if module.patience is not None or int(module.diverged):
            nets.restore_best()
        return NetPredictor(nets, fold)

    def _train(self, module: NetTraining, data: BatchedRows, batches: Batches, signature: str, stage: str) -> None:
        """Run Lightning, from the start or from where an earlier run stopped."""
        loader = DataLoader(data, sampler=batches, batch_size=None)
        held_out = DataLoader(data, sampler=torch.split(torch.arange(len(data)), VALIDATION_ROWS), batch_size=None)
        settings: dict[str, Any] = {"accelerator": "cpu", "devices": 1, **self.trainer}
        callbacks: list[Callback] = [EpochBar(stage)] if settings.pop("enable_progress_bar", True) else []
        found = None
        if self.checkpoint is not None:
            folder = self.checkpoint / f"{stage}_{signature[:16]}"  # one for each fit, for there may be many
            callbacks.append(
                ModelCheckpoint(
                    folder, "last", save_top_k=1, save_on_train_epoch_end=True, enable_version_counter=False
                )
            )
            found = resumable(folder / "last.ckpt")
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
            trainer.fit(module, loader, held_out, ckpt_path=found)
        if int(module.diverged):
            warnings.warn(
                f"Training of {stage} gave a loss that is no number in epoch {int(module.diverged)}; the best parameters until "
                "then are used. Lower learning_rate=.",
                DataWarning,
                stacklevel=3,
            )
        module.to(data.rows.device)

    def __repr__(self) -> str:
        return f"MLP(hidden={list(self.hidden)}, folds={self.folds}, form={self.form!r})"


def _signature(settings: Mapping[str, Any], regressions: Sequence[Regression], rows: Rows) -> str:
    """A digest of all that decides a training run, the rows of all processes and their order included."""
    shares = gather_objects(hashlib.sha256(rows.values.cpu().numpy().tobytes()).hexdigest())
    digest = hashlib.sha256(json.dumps([settings, shares], default=str, sort_keys=True).encode())
    for r in regressions:
        digest.update(repr((r.inputs, r.groups)).encode())
        for tensor in (*r.matrices, r.offset):
            digest.update(tensor.cpu().numpy().tobytes())
    return digest.hexdigest()
