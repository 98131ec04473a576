"""MLP: stage-1 regressions by small neural networks, trained with Lightning."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader

from torchpbp.distributed import process_rank, shares
from torchpbp.errors import ArgumentError, DataError
from torchpbp.learning.cross_fitting import CrossFittedStage1, CrossFitting
from torchpbp.learning.message_nets import InstrumentNets
from torchpbp.learning.net_fitting import random_masks
from torchpbp.learning.regressions import Regression, core_regression, leading_directions, projected
from torchpbp.learning.stage1 import Penalties, RowRegressor, Stage1
from torchpbp.moments.moments import Moments
from torchpbp.moments.rows import TrainingRows
from torchpbp.neural.batches import Orders
from torchpbp.planning.plan import Plan
from torchpbp.settings import (
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

INSTRUMENTS = 8.0
"""Dimensions of an instrument per dimension of its message."""


@dataclass(frozen=True, kw_only=True)
class MLPSettings(Settings):
    """Settings of :class:`MLP` that determine its result."""

    hidden: tuple[int, ...] = setting((32,), several(whole(1), expected="a list with the width of each hidden layer"))
    folds: int = setting(2, whole(1))
    linear: bool = setting(True, flag())
    missing: float = setting(0.25, between(0, 1))
    epochs: int = setting(10, whole(1))
    batch_size: int | None = setting(None, optional(whole(1)))
    learning_rate: float = setting(0.03, positive())
    weight_decay: float = setting(1e-3, non_negative())
    dtype: torch.dtype = setting(torch.float32, floating_dtype())
    seed: int = setting(0, seed())


class MLP(RowRegressor):
    """Small multilayer perceptrons that predict the inside of each separator from the outside.

    Each separator has networks g of the observables of its instrument, whose outputs are instruments η = (1, g), with two heads
    in closed form: S1A predicts the message, S1B the products below it. The networks of all separators train together as one
    batched module; their loss is the share of the variance of core features that a head in closed form does not explain. They
    become ``model.stage1``, and ``model.predicted_messages(evidence)`` returns their predictions.

    With ``folds=K``, each separator has K networks (cross-fitting): network k is trained without fold k, and predicts fold k for
    stage 2, which a network that had memorised its rows would bias.

    Args:
        hidden: widths of the hidden layers. Empty: linear.
        folds: networks per separator for cross-fitting, at least 2; 1: a single network that predicts the rows it was trained on.
        linear: use the features of linear stage 1 as instruments, together with the networks' predictions as far as these improve
            on them on held-out rows. Where linear regression suffices, the operators are those of
            :class:`~torchpbp.Ridge`. False: predictions alone.
        missing: share of the rows in which values are hidden at random from the networks, in training and in the solve of their
            heads, so that ``predicted_messages`` accepts incomplete rows. Stage 2 uses predictions from complete rows.
        epochs: number of passes over the rows.
        batch_size: rows per step, over all processes. By default an eighth of the rows, between 256 and 4,096.
        learning_rate: largest rate of AdamW, with a one-cycle schedule.
        weight_decay: of AdamW.
        dtype: of the networks. Heads are solved in float64.
        trainer: arguments of ``lightning.pytorch.Trainer``, such as accelerator, devices, strategy. By default networks train on
            the device of the model, without a progress bar.
        seed: of weights, folds, batches and hidden values.
    """

    def __init__(
        self,
        hidden: Sequence[int] = (32,),
        folds: int = 2,
        linear: bool = True,
        missing: float = 0.25,
        epochs: int = 10,
        batch_size: int | None = None,
        learning_rate: float = 0.03,
        weight_decay: float = 1e-3,
        dtype: torch.dtype = torch.float32,
        trainer: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        self.settings = MLPSettings(
            hidden=hidden,  # type: ignore[arg-type]
            folds=folds,
            linear=linear,
            missing=missing,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            dtype=dtype,
            seed=seed,
        )
        options = instance(Mapping, expected="names and values, such as a dict")
        self.trainer: dict[str, Any] = options.check("trainer", trainer or {})

    def nets(
        self, plan: Plan, dims: Mapping[str, int], widths: Mapping[str, int], classes: int | None
    ) -> InstrumentNets:
        s = self.settings
        nets = InstrumentNets(plan, dims, widths, s.hidden, INSTRUMENTS, s.seed, classes, s.folds, s.dtype)
        return nets.requires_grad_(False)

    def learn(self, plan: Plan, moments: Moments, rows: TrainingRows | None, penalties: Penalties) -> Stage1:
        if rows is None:
            raise ArgumentError(f"{self!r} needs the rows themselves, not only moments.")
        # Targets of the networks are core features, projected on their leading directions.
        cores = [core_regression(plan, s.node, moments)[0] for s in plan.separators]
        directions = leading_directions(cores, rows, [s.rank - 1 for s in plan.separators])
        dims = {v: m.dim for v, m in rows.maps.items()}
        widths = {v: x.shape[1] for v, x in rows[:0].leaves().inputs.items()}
        s = self.settings
        # Weighted rows are joint states, not a sample: networks cannot memorise noise, and a fold would depend on the inside.
        folds = s.folds if rows.weights is None else 1
        with rows.device:
            nets = [
                InstrumentNets(plan, dims, widths, s.hidden, INSTRUMENTS, s.seed, dtype=s.dtype).to(rows.device)
                for _ in range(folds)
            ]
        training = NetTraining(nets, rows, [projected(r, d) for r, d in zip(cores, directions, strict=True)], s)
        training.run(self.trainer)
        linear = directions if s.linear else None
        return CrossFittedStage1(plan, moments, training.fitting, linear, training.shown(-1), repr(self))

    def __repr__(self) -> str:
        return f"MLP(hidden={list(self.settings.hidden)}, folds={self.settings.folds})"


class NetTraining(LightningModule):
    """Joint training of the networks of all separators and folds.

    Args:
        nets: networks of each fold with initial weights.
        rows: rows of this process.
        regressions: one per separator.
        settings: of the training.
    """

    def __init__(
        self,
        nets: Sequence[InstrumentNets],
        rows: TrainingRows,
        regressions: Sequence[Regression],
        settings: MLPSettings,
    ) -> None:
        super().__init__()
        self.nets, self.settings, self.rows = torch.nn.ModuleList(nets), settings, rows
        counts = [n for (n,) in shares(len(rows))]
        self.total, self.before, folds = sum(counts), sum(counts[: process_rank()]), len(nets)
        if self.total < 2 * folds:
            raise DataError(f"Cross-fitting with {folds} folds needs at least {2 * folds} rows, got {self.total}.")
        order = torch.randperm(self.total, generator=torch.Generator().manual_seed(settings.seed), device="cpu")
        fold = (order % folds)[self.before : self.before + len(rows)].to(rows.device)
        self.fitting = CrossFitting(nets, rows, fold, regressions)

    def shown(self, number: int) -> Tensor:
        """(rows, observables) mask of the inputs in a pass over the rows; nothing is hidden from joint states of a population.

        Args:
            number: of the pass, from −1.
        """
        shape = (len(self.rows), len(self.rows.names))
        like = torch.empty(shape, dtype=torch.bool, device=self.rows.device)
        share = self.settings.missing if self.rows.weights is None else 0.0
        generator = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + 1 + number)
        return random_masks(like, share, 1.0, generator, (self.before, self.total))

    def run(self, options: Mapping[str, Any]) -> None:
        """Train the networks, and fit their heads.

        Args:
            options: of Lightning's Trainer.
        """
        settings, device = self.settings, self.rows.device
        size = settings.batch_size or max(256, min(4096, self.total // 8))
        orders = Orders(self.total, -(-self.total // size), True, settings.seed, self.before, len(self.rows))
        positions: Any = torch.arange(len(self.rows), device="cpu")  # the dataset: rows are looked up in each step
        place = {"accelerator": "cpu", "devices": 1}
        if device.type == "cuda":
            place = {"accelerator": "gpu", "devices": [device.index or 0]}
        quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_model_summary", "enable_progress_bar"), False)
        self.nets.requires_grad_(True).train()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*does not have many workers.*")
            for name in ("lightning.pytorch.utilities.rank_zero", "lightning.pytorch.accelerators.cuda"):
                logging.getLogger(name).setLevel(logging.WARNING)
            trainer = Trainer(
                max_epochs=settings.epochs, use_distributed_sampler=False, **{**quiet, **place, **options}
            )
            trainer.fit(self, DataLoader(positions, sampler=orders, batch_size=None))
        self.nets.requires_grad_(False).eval().to(device)
        self.fitting.fit_heads()

    def configure_optimizers(self) -> Any:
        rate = self.settings.learning_rate
        optimizer = torch.optim.AdamW(self.parameters(), rate, weight_decay=self.settings.weight_decay)
        steps = max(2, int(self.trainer.estimated_stepping_batches))
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.15)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_epoch_start(self) -> None:
        self.mask = self.shown(self.current_epoch)

    def training_step(self, positions: Tensor, _: int) -> Tensor:
        index = positions.to(self.rows.device)
        try:
            loss = self.fitting.loss(index, self.mask[index], self.device)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # moments that are not finite have no factors
            loss = torch.tensor(torch.nan)
        if not bool(torch.isfinite(loss.detach())):
            raise DataError(f"MLP: the loss is not finite in epoch {self.current_epoch + 1}. Lower learning_rate=.")
        return loss
