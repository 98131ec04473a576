"""PBPModule.fit: rows for training and validation, the best step, and Lightning without its remarks."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.utilities.warnings import PossibleUserWarning
from torch import Tensor
from tqdm.auto import tqdm

from torchpbp.errors import DataError
from torchpbp.inputs.columns import ColumnReader
from torchpbp.inputs.sources import DataLike
from torchpbp.models.pbp import PBP
from torchpbp.neural.averaging import WeightAverage
from torchpbp.neural.batches import TableLoader

if TYPE_CHECKING:
    from torchpbp.neural.module import PBPModule

HIDDEN = (0.33, 0.5, 0.8)
"""Shares of the leaves that are hidden in copies of the validation rows."""
HELD_OUT, MOST_HELD_OUT = 5, 4_000
"""One row in so many is held out for validation, and at most so many rows."""
MANY_ROWS, INTERVAL, LONG_INTERVAL = 3_000, 100, 250
"""Steps between two validations: with more than so many training rows the long interval."""
GAIN = 1e-3
"""Least relative improvement of the validation loss."""
PATIENCE = 400
"""Least number of steps without an improvement before training stops; half of the steps up to the best one if that is more."""
ROWS_AT_ONCE = 4_096
"""Rows of a batch without gradients."""

Table = dict[str, Tensor]


def fit_table(
    module: PBPModule,
    data: DataLike,
    validation: DataLike | None,
    batch_size: int,
    max_steps: int,
    seed: int,
    progress: bool,
    options: Mapping[str, Any],
) -> list[dict[str, float]]:
    """Train a module on a table; arguments are those of :meth:`torchpbp.PBPModule.fit`.

    Returns:
        A dict for each validation: "step", "loss" and, with a target, "accuracy".
    """
    rows = _Rows(module, data, validation, batch_size, seed)
    every = LONG_INTERVAL if len(next(iter(rows.train.values()))) > MANY_ROWS else INTERVAL
    best = BestStep()
    device = module.model.device
    place = {"accelerator": "cpu"} if device.type == "cpu" else {"accelerator": "gpu", "devices": [device.index or 0]}
    silent = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    settings: dict[str, Any] = {**silent, "devices": 1, **place, **options}
    callbacks = [best, *([StepBar(max_steps, best)] if progress else []), *settings.pop("callbacks", [])]
    with without_remarks():
        trainer = Trainer(
            max_steps=max_steps,
            max_epochs=-1,
            check_val_every_n_epoch=None,
            val_check_interval=max_steps // -(-max_steps // every),
            num_sanity_val_steps=0,
            callbacks=callbacks,
            **settings,
        )
        trainer.fit(module, datamodule=rows)
    module.to(device)
    return best.history


class _Rows(LightningDataModule):
    """Training rows in batches, validation rows with and without hidden leaves, and the rows operators are solved on."""

    def __init__(
        self, module: PBPModule, data: DataLike, validation: DataLike | None, batch_size: int, seed: int
    ) -> None:
        super().__init__()
        model, target = module.model, module.target
        labels = (model.labels if model.fitted else {}) or model.graph.labels
        table, reader = read_rows(model, data, labels)
        reader.missing_values.check(stacklevel=5)
        model.labels, model.missing = dict(reader.labels), reader.missing_values.shares
        self.table = table
        if validation is None:
            one_class = torch.zeros(len(next(iter(table.values()))), dtype=torch.int64)
            held = held_out(one_class if target is None else table[target], seed)
            self.train, self.held = {v: x[~held] for v, x in table.items()}, {v: x[held] for v, x in table.items()}
        else:
            self.train, (self.held, others) = table, read_rows(model, validation, reader.labels, quiet=True)
            if unknown := [v for v in others.labels if v not in reader.labels]:
                raise DataError(
                    f"PBPModule.fit: '{unknown[0]}' has labels in the validation rows and numbers in the training rows. Use the same."
                )
        states = self.held[target] if target is not None else next(iter(self.held.values()))
        if len(states) == 0 or (target is not None and bool((states < 0).all())):
            text = f"no row with a '{target}'" if len(states) else "no row"
            raise DataError(f"PBPModule.fit: {text} to validate on. Give more rows, or validation=.")
        rows = len(next(iter(self.train.values())))
        batches = max(1, round(rows / batch_size))
        self.batches = TableLoader(self.train, -(-rows // batches), seed=seed)
        self.copies = hidden_copies(self.held, [v for v in module.reader.names if v != target], seed)

    def train_dataloader(self) -> TableLoader:
        return self.batches

    def val_dataloader(self) -> list[TableLoader]:
        """The validation rows, and copies of them with hidden leaves."""
        return [TableLoader(table, ROWS_AT_ONCE, shuffle=False) for table in self.copies]

    def solve_dataloader(self) -> TableLoader:
        """The training rows during a validation; in the end these and the rows held out of them, but not rows of ``validation=``."""
        assert self.trainer is not None
        return TableLoader(self.train if self.trainer.validating else self.table, ROWS_AT_ONCE, shuffle=False)


def read_rows(
    model: PBP, data: DataLike, labels: Mapping[str, Sequence[Any]], quiet: bool = False
) -> tuple[Table, ColumnReader]:
    """Rows of any kind of data as one table of tensors, and the reader, which has their labels and missing values."""
    reader = ColumnReader(model.evidence_domains(), labels, missing=True, quiet=quiet)
    parts = list(reader.tables(data))
    return {v: torch.cat([part[v] for part in parts]) for v in parts[0]}, reader


def held_out(classes: Tensor, seed: int) -> Tensor:
    """(rows,) booleans: rows that are held out for validation, the same share of each class.

    Args:
        classes: (rows,); rows of class -1 are not held out.
        seed: of the draw.
    """
    rows = len(classes)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    order = order[classes[order].argsort(stable=True)]  # by class, in random order within each
    grouped = classes[order]
    place = torch.arange(rows) - torch.searchsorted(grouped, grouped)  # within the class
    period = max(HELD_OUT, -(-rows // MOST_HELD_OUT))
    held = torch.zeros(rows, dtype=torch.bool)
    held[order] = (place % period == period - 1) & (grouped >= 0)
    return held


def hidden_copies(table: Mapping[str, Tensor], leaves: Sequence[str], seed: int) -> list[Table]:
    """The table as it is, and copies with hidden leaves, more in each copy; which ones are hidden is drawn row by row.

    Args:
        table: rows.
        leaves: names of the leaves that may be hidden; at least one of them is not.
        seed: of the draws.
    """
    rows = len(next(iter(table.values())))
    order = torch.rand(rows, len(leaves), generator=torch.Generator().manual_seed(seed)).argsort(dim=1)
    counts = [0]
    for share in HIDDEN:
        counts.append(max(counts[-1] + 1, round(share * len(leaves))))
    return [_without(table, leaves, order < count) for count in counts if count < max(1, len(leaves))]


def _without(table: Mapping[str, Tensor], leaves: Sequence[str], hidden: Tensor) -> Table:
    """The table without the values of hidden leaves, (rows, leaves)."""
    result = dict(table)
    for v, flags in zip(leaves, hidden.unbind(1), strict=True):
        x = table[v]
        result[v] = x.masked_fill(flags.reshape(-1, *[1] * (x.ndim - 1)), torch.nan if x.is_floating_point() else -1)
    return result


class BestStep(WeightAverage):
    """Validates a running average of the weights, restores the best one at the end, and stops training some time after it.

    The loss is the mean of those of all validation loaders.

    Attributes:
        history: a dict for each validation, see :func:`fit_table`.
        loss: the smallest loss.
        step: of the smallest loss.
    """

    def __init__(self) -> None:
        super().__init__()
        self.history: list[dict[str, float]] = []
        self.loss, self.step = math.inf, 0
        self.state: dict[str, Tensor] = {}

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        found = {name: float(value) for name, value in trainer.callback_metrics.items()}
        losses = [value for name, value in found.items() if name.startswith("val/loss")]
        accuracies = [value for name, value in found.items() if name.startswith("val/accuracy")]
        step, loss = trainer.global_step, sum(losses) / len(losses)
        line = {"step": step, "loss": loss}
        self.history.append({**line, "accuracy": accuracies[0]} if accuracies else line)  # of the rows as they are
        if loss < (self.loss - GAIN * abs(self.loss) if math.isfinite(self.loss) else math.inf):
            self.loss, self.step = loss, step
            self.state = {name: x.clone() for name, x in pl_module.model.state_dict().items()}
        elif step - self.step >= max(PATIENCE, self.step / 2):
            trainer.should_stop = True
        super().on_validation_epoch_end(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_end(trainer, pl_module)
        if self.state:
            pl_module.model.load_state_dict(self.state)


class StepBar(Callback):
    """A progress bar over steps, with the losses of training and validation, shown after two seconds.

    Args:
        total: largest number of steps.
        best: knows the losses of validations.
    """

    def __init__(self, total: int, best: BestStep) -> None:
        self.total, self.best = total, best
        self.bar: tqdm[Any] | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        shown = trainer.is_global_zero
        self.bar = tqdm(total=self.total, desc="training", unit="step", delay=2, leave=False, disable=not shown)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.bar is None:
            return
        if outputs is not None and trainer.global_step % 10 == 0:
            note = f"loss {float(outputs['loss']):.3f}"
            if self.best.history:
                note += (
                    f", validation {self.best.history[-1]['loss']:.3f}, best {self.best.loss:.3f} at {self.best.step}"
                )
            self.bar.set_postfix_str(note, refresh=False)
        self.bar.update()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self.bar is not None:
            self.bar.close()


@contextmanager
def without_remarks() -> Iterator[None]:
    """Context in which Lightning neither logs nor warns of workers and intervals."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PossibleUserWarning)
            warnings.filterwarnings("ignore", message=".*treespec.*")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
