"""Training of stroke networks with Lightning: repeatable to the bit, resumable, and safe from a loss that is no number."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from torchpbp.distributed import gather_objects
from torchpbp.errors import DataError, DataWarning, TorchPBPError
from torchpbp.experiments.digits.distortions import distorted, hidden_at_random
from torchpbp.experiments.embedding.lessons import Lessons
from torchpbp.experiments.embedding.network import NetworkAverage
from torchpbp.neural.training_state import WholeFiles, resumable

WARM_UP = 0.15
"""Share of the steps in which the learning rate rises."""

MOST_HIDDEN = 6


@dataclass(frozen=True)
class TrainingSettings:
    """How a network is trained.

    Args:
        epochs: passes over the training rows.
        batch_size: rows per step.
        learning_rate: largest one; it rises, then falls to nearly 0.
        weight_decay: of AdamW.
        smoothing: of labels: this share of each target is spread over all classes.
        averaging: decay per step of the running average of the weights, which is the network that is used.
        hide: share of the training strokes of which one to six points are hidden.
        rotation: see :func:`torchpbp.experiments.digits.distortions.distorted`, as for the next three.
        shear: x per unit of y.
        warp: bend of each axis.
        jitter: of each coordinate.
        seed: of batches and distortions.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    smoothing: float
    averaging: float
    hide: float
    rotation: float
    shear: float
    warp: float
    jitter: float
    seed: int

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            raise DataError(f"Expected at least 1 epoch and 1 row, got {self.epochs=}, {self.batch_size=}.")
        if not self.learning_rate > 0:
            raise DataError(f"learning_rate: expected a positive number, got {self.learning_rate}.")
        for name in ("smoothing", "averaging", "hide"):
            if not 0 <= getattr(self, name) <= 1:
                raise DataError(f"{name}: expected a number from 0 to 1, got {getattr(self, name)}.")


class StrokeTraining(LightningModule):
    """Cross-entropy on distorted strokes with hidden points; the running average of the weights is validated and used.

    All draws follow from the seed and the number of the step, so that a run resumed from a checkpoint goes on exactly as
    it would have. A loss that is not finite brings back the weights with the least validation loss so far.

    Args:
        network: whose members are trained.
        settings: of the training.
        train: (rows, 16) strokes and (rows,) digits to learn from.
        val: the same to validate with; some points should be hidden.
        lessons: a teacher's answers to learn as well, if any.
    """

    def __init__(
        self,
        network: NetworkAverage,
        settings: TrainingSettings,
        train: Sequence[Tensor],
        val: Sequence[Tensor],
        lessons: Lessons | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.average = copy.deepcopy(network).requires_grad_(False)
        self.settings = settings
        self.lessons = lessons
        self.train_rows, self.val_rows = TensorDataset(*train), TensorDataset(*val)
        self.history: list[dict[str, float]] = []
        self.restored = 0
        self._epoch_losses: list[Tensor] = []
        self._best: tuple[float, dict[str, Tensor]] | None = None

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        # Lightning tells this sampler the epoch, also after resuming; a plain shuffle would begin anew.
        order: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(
            self.train_rows, self.trainer.world_size, self.trainer.global_rank, shuffle=True, seed=self.settings.seed
        )
        return DataLoader(self.train_rows, self.settings.batch_size, sampler=order)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(self.val_rows, 2048)

    def configure_optimizers(self) -> dict[str, Any]:
        s = self.settings
        optimizer = torch.optim.AdamW(self.network.parameters(), s.learning_rate, weight_decay=s.weight_decay)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, s.learning_rate, steps + 1, pct_start=WARM_UP)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        s = self.settings
        number = (s.seed * 1_000_003 + self.global_step) * max(1, self.trainer.world_size) + self.trainer.global_rank
        generator = torch.Generator().manual_seed(number)
        strokes = distorted(batch[0], s.rotation, s.shear, s.warp, s.jitter, generator)
        strokes = hidden_at_random(strokes, s.hide, MOST_HIDDEN, generator)
        lesson = None if self.lessons is None else self.lessons.draw(strokes, generator)
        loss = self._loss(strokes, batch[1], lesson)
        finite = self.trainer.strategy.reduce_boolean_decision(bool(loss.isfinite()), all=True)
        if not finite:
            self._restore()
            loss = self._loss(strokes, batch[1], lesson)
            if not bool(loss.isfinite()):
                raise TorchPBPError(
                    "The loss is not finite even with the best weights so far. Look for infinite values in the strokes, or "
                    "lower learning_rate."
                )
        self._epoch_losses.append(loss.detach() / len(self.network.members))
        return loss

    def _loss(self, strokes: Tensor, digits: Tensor, lesson: tuple[Tensor, Tensor] | None) -> Tensor:
        """Sum of the members' losses, so that each learns as if it were alone."""
        together = strokes if lesson is None else torch.cat([strokes, lesson[0]])
        losses = []
        for member in self.network.members:
            logits = member(together)
            own = logits[: len(strokes)]
            losses.append(nn.functional.cross_entropy(own, digits, label_smoothing=self.settings.smoothing))
            if lesson is not None and self.lessons is not None:
                taught = nn.functional.cross_entropy(logits[len(strokes) :], lesson[1])
                losses.append(self.lessons.weight * taught)
        return torch.stack(losses).sum()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        # A short memory at first, so that the average soon forgets where the weights started.
        decay = min(self.settings.averaging, (1 + self.global_step) / (10 + self.global_step))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.parameters()), list(self.network.parameters()), 1 - decay)

    def on_validation_epoch_start(self) -> None:
        self._val: list[tuple[Tensor, Tensor]] = []

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        self._val.append((self.average(batch[0]), batch[1]))

    def on_validation_epoch_end(self) -> None:
        logits, digits = (torch.cat(parts) for parts in zip(*self._val, strict=True))
        loss = nn.functional.nll_loss(logits, digits)
        right = (logits.argmax(dim=1) == digits).float().mean()
        self.log_dict({"val/loss": loss, "val/accuracy": right}, prog_bar=True, sync_dist=True)
        value = float(loss)
        if self.trainer.sanity_checking:
            return
        if self._epoch_losses:
            mean = float(torch.stack(self._epoch_losses).mean())
            line = {"epoch": self.current_epoch, "train_loss": mean, "val_loss": value, "val_accuracy": float(right)}
            self.history.append(line)
        self._epoch_losses = []
        if value == value and (self._best is None or value < self._best[0]):
            self._best = (value, _copied(self))

    def on_fit_start(self) -> None:
        if self._best is None:
            self._best = (float("inf"), _copied(self))

    def _restore(self) -> None:
        assert self._best is not None
        self.restored += 1
        self.load_state_dict(self._best[1])
        optimizer = self.optimizers()
        optimizer.state.clear()  # its running means hold what is not finite
        text = f"Loss not finite at step {self.global_step}: went back to the weights with the least validation loss."
        warnings.warn(text, DataWarning, stacklevel=2)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        best = self._best if self._best is not None else (float("inf"), _copied(self))
        checkpoint["stroke_training"] = {
            "history": self.history,
            "restored": self.restored,
            "best": {"loss": best[0], "state": best[1]},
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        saved = checkpoint["stroke_training"]
        self.history, self.restored = list(saved["history"]), int(saved["restored"])
        self._best = (float(saved["best"]["loss"]), saved["best"]["state"])


def _copied(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def train_network(
    training: StrokeTraining,
    trainer: Mapping[str, Any],
    folder: Path | None,
    prefix: str = "",
    ckpt_path: str | os.PathLike[str] | None = None,
    verbose: bool = True,
    callbacks: Sequence[Callback] = (),
) -> nn.Module:
    """Train and return the average of the weights, on the CPU and ready to predict.

    Args:
        training: the network with its rows and settings.
        trainer: arguments of Lightning's Trainer: accelerator, devices, strategy, enable_progress_bar.
        folder: for ``checkpoints/<prefix>last.ckpt`` and ``<prefix>best.ckpt`` (least validation loss). ``None``: no files.
        prefix: of their names.
        ckpt_path: checkpoint from which to go on.
        verbose: show the progress bar, if ``trainer`` has one.
        callbacks: further ones.
    """
    watchers = list(callbacks)
    folder = gather_objects(folder)[0]  # only the first process has one, but all must agree on the checkpoints
    if folder is not None:
        keeper = ModelCheckpoint(
            folder / "checkpoints",
            f"{prefix}best",
            monitor="val/loss",
            save_last=True,
            enable_version_counter=False,
        )
        keeper.CHECKPOINT_NAME_LAST = f"{prefix}last"
        watchers.append(keeper)
    options = dict(trainer)
    options["enable_progress_bar"] = verbose and bool(options.get("enable_progress_bar", True))
    fitter = Trainer(
        **options,
        max_epochs=training.settings.epochs,
        gradient_clip_val=1.0,
        callbacks=watchers,
        plugins=[WholeFiles()],
        logger=False,
        enable_checkpointing=folder is not None,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        default_root_dir=folder,
    )
    fitter.fit(training, ckpt_path=None if ckpt_path is None else resumable(Path(ckpt_path)))
    return training.average.cpu().eval()
