"""Training of encoders with heads on labelled signals, stopped early by validation rows.

The encoder is trained with the softmax head first. The structured heads start from there: they are fitted to label sequences
alone, by counting pairs (CRF) or by two-stage regression (PBP), and take the encoder's scores as evidence. This is the stage
"fitted". The stage "refined" trains encoder and head together from there, as long as validation rows improve. The stage
"through" trains a fresh encoder through the fitted head, which stays as it is.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import NamedTuple

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from torchpbp.datasets.label_sequences import CHANNELS, LabelledSignals, LabelSequences
from torchpbp.distributed import own_share
from torchpbp.errors import DataError
from torchpbp.experiments.labelling.heads import CRFHead, LabelHead, PBPHead, SignalEncoder, SoftmaxHead
from torchpbp.experiments.training import NOT_USEFUL, quiet_lightning
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.models.pbp import PBP

VALIDATION_LOSS = "val/loss"
RANK_ZERO = logging.getLogger("lightning.pytorch.utilities.rank_zero")
BATCH_ROWS = 32
LEARNING_RATE = 1e-2
REFINING_RATE = 1e-3
HEAD_RATES = {"crf": 1e-2, "pbp": 3e-4}
"""Learning rates of refined heads. PBP's operators need smaller ones: 1e-3 already spoils a good fit."""


class LabelModule(LightningModule):
    """An encoder and a head, trained together.

    Args:
        encoder: signals -> scores.
        head: scores -> posteriors of labels.
        learning_rate: of the encoder.
        head_rate: learning rate of the head.
    """

    def __init__(self, encoder: SignalEncoder, head: LabelHead, learning_rate: float, head_rate: float) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head
        self.learning_rate, self.head_rate = learning_rate, head_rate

    def forward(self, signals: Tensor) -> Tensor:
        """(batch, length, channels) -> (batch, length, labels) log-posteriors."""
        return self.head(self.encoder(signals))

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        signals, labels = batch
        return self.head.loss(self.encoder(signals), labels)

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        # Training losses of heads differ; this one is the reported log-loss for all of them.
        loss = row_losses(self, LabelledSignals(*batch)).mean()
        self.log(VALIDATION_LOSS, loss, batch_size=len(batch[0]), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        rates = {self.encoder: self.learning_rate, self.head: self.head_rate}
        return torch.optim.Adam([{"params": list(part.parameters()), "lr": rate} for part, rate in rates.items()])


class KeepBest(Callback):
    """Keeps the parameters with the lowest validation loss; a loss that is not finite is never the lowest."""

    def __init__(self) -> None:
        self.loss, self.step = math.inf, -1
        self.state: dict[str, Tensor] = {}

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loss = float(trainer.callback_metrics[VALIDATION_LOSS])
        if loss < self.loss:
            self.loss, self.step, self.state = loss, trainer.global_step, deepcopy(pl_module.state_dict())


@torch.no_grad()
def row_losses(module: LabelModule, rows: LabelledSignals) -> Tensor:
    """(rows,) mean over sites of -log posterior of the true label."""
    return -module(rows.signals).gather(2, rows.labels.unsqueeze(2)).mean(dim=(1, 2))


def train_labels(
    module: LabelModule,
    train: LabelledSignals,
    validation: LabelledSignals,
    trainer: Callable[..., Trainer],
    max_steps: int,
    seed: int,
    check_every: int = 20,
    patience: int = 8,
    start_counts: bool = False,
) -> dict[str, float | int]:
    """Train in place; afterwards the module has the parameters with the lowest validation loss.

    Args:
        module: encoder and head.
        train: rows to learn from.
        validation: rows for early stopping.
        trainer: makes Lightning's Trainer, given steps, interval of validation and callbacks.
        max_steps: gradient steps at most.
        seed: of the order of the rows.
        check_every: steps between two validations.
        patience: validations without improvement before training stops.
        start_counts: the module starts from a fit, which is kept unless the gain on validation rows exceeds its standard
            error: on few validation rows, steps that harm a good fit may seem to improve it.

    Returns:
        "validation_loss", "best_step" (0: the start was kept), "steps" and "train_seconds".

    Raises:
        DataError: no validation loss was finite.
    """
    begun, before, best = deepcopy(module.state_dict()), row_losses(module, validation), KeepBest()
    quiet_lightning()
    RANK_ZERO.addFilter(
        lambda record: "`Trainer.fit` stopped" not in record.getMessage()
    )  # it would say so dozens of times
    with warnings.catch_warnings():
        for text in NOT_USEFUL:
            warnings.filterwarnings("ignore", message=text)
        runner = trainer(
            max_steps=max_steps,
            check_val_every_n_epoch=None,  # validation is counted in steps, which mean the same at every size
            val_check_interval=min(check_every, max_steps),
            callbacks=[best, EarlyStopping(VALIDATION_LOSS, patience=patience)],
        )
        # All processes together take steps of the same size as one alone.
        share = max(1, min(BATCH_ROWS, len(train.labels)) // runner.world_size)
        order = torch.Generator().manual_seed(seed)
        batches = DataLoader(TensorDataset(*train), share, shuffle=True, drop_last=True, generator=order)
        start = time.perf_counter()
        runner.fit(module, batches, DataLoader(TensorDataset(*validation), 1024))
        seconds = time.perf_counter() - start
    module.cpu()
    if best.state:
        module.load_state_dict(best.state)
    else:  # the Trainer ended before the first validation, or its loss was not finite
        best.loss, best.step = float(row_losses(module, validation).mean()), runner.global_step
    if start_counts:
        gain = before - row_losses(module, validation)
        error = float(gain.std()) / math.sqrt(len(gain)) if len(gain) > 1 else math.inf
        if not float(gain.mean()) > error:
            module.load_state_dict(begun)
            best.loss, best.step = float(before.mean()), 0
    if not math.isfinite(best.loss):
        raise DataError("Training: the validation loss was never finite. Look for NaN or huge values in the signals.")
    facts = {"validation_loss": best.loss, "best_step": best.step}
    return {**facts, "steps": runner.global_step, "train_seconds": seconds}


class Trained(NamedTuple):
    """One encoder and head after training.

    Args:
        head: "softmax", "crf" or "pbp".
        stage: "trained" (softmax), "fitted", "refined" or "through".
        label_only: number of label sequences without signals that the head was fitted to as well.
        module: signals -> log-posteriors.
        facts: of the training, by name; "fit_seconds" if a head was fitted.
    """

    head: str
    stage: str
    label_only: int
    module: LabelModule
    facts: dict[str, float | int]

    @property
    def series(self) -> str:
        """Name in tables and pictures."""
        text = self.head if self.stage == "trained" else f"{self.head} {self.stage}"
        return f"{text} +{self.label_only} labels" if self.label_only else text


def train_heads(
    data: LabelSequences,
    model: Callable[[LatentGraph], PBP],
    train: LabelledSignals,
    validation: LabelledSignals,
    label_only: Mapping[int, Tensor],
    trainer: Callable[..., Trainer],
    seed: int = 0,
    window: int = 1,
    width: int = 32,
    steps: int = 600,
    refining_steps: int = 80,
    through_steps: int = 0,
) -> Iterator[Trained]:
    """Train all heads on the same rows, one after the other.

    Args:
        data: gives the graph and names of the labels; no row is drawn from it.
        model: makes a PBP model for a graph.
        train: rows to learn from.
        validation: rows for early stopping.
        label_only: number -> (number, length) label sequences without signals.
        trainer: makes Lightning's Trainer.
        seed: of the encoder's first weights, and of the order of the rows.
        window, width, steps, refining_steps, through_steps: as for the experiment.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = SignalEncoder(CHANNELS, data.labels, window, width)
    encoder = deepcopy(fresh)
    plain = LabelModule(encoder, SoftmaxHead(), LEARNING_RATE, LEARNING_RATE)
    yield Trained("softmax", "trained", 0, plain, train_labels(plain, train, validation, trainer, steps, seed))

    def pbp_head(labels: Tensor) -> PBPHead:
        share = labels[own_share(len(labels))]  # processes add up their counts
        columns = {v: share[:, t] for t, v in enumerate(data.names)}
        return PBPHead(model(data.network.graph).fit(columns), data.names)

    makers: dict[str, Callable[[Tensor], LabelHead]] = {"crf": lambda x: CRFHead(x, data.labels), "pbp": pbp_head}
    for count, more in label_only.items():
        labels = torch.cat([train.labels, more])
        for name, make in makers.items():
            start = time.perf_counter()
            head = make(labels)
            fit = {"fit_seconds": time.perf_counter() - start}
            yield Trained(name, "fitted", count, LabelModule(encoder, head, 0.0, 0.0), fit)
            if refining_steps:
                module = LabelModule(deepcopy(encoder), deepcopy(head), REFINING_RATE, HEAD_RATES[name])
                facts = train_labels(module, train, validation, trainer, refining_steps, seed, 10, 4, start_counts=True)
                yield Trained(name, "refined", count, module, {**fit, **facts})
            if through_steps:
                module = LabelModule(deepcopy(fresh), head.requires_grad_(False), LEARNING_RATE, 0.0)
                facts = train_labels(module, train, validation, trainer, through_steps, seed)
                yield Trained(name, "through", count, module, {**fit, **facts})
