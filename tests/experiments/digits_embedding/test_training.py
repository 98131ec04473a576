"""Training of networks that read pen strokes: resumed, averaged, saved from losses that are no numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch import Tensor

from tests.experiments.digits_embedding.small_networks import QUIET, network, settings
from torchpbp.errors import DataWarning, TorchPBPError
from torchpbp.experiments.embedding.network import NetworkAverage, StrokeNetwork
from torchpbp.experiments.embedding.training import StrokeTraining, train_network


class StopAfter(Callback):
    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        trainer.should_stop = trainer.current_epoch >= self.epoch


def trained(
    rows: tuple[Tensor, Tensor], folder: Path, ckpt_path: Path | None = None, **more: Any
) -> tuple[dict[str, Tensor], StrokeTraining]:
    training = StrokeTraining(
        NetworkAverage([network(rows), network(rows, seed=1)]), settings(), rows, (rows[0][:50], rows[1][:50])
    )
    train_network(training, QUIET, folder, ckpt_path=ckpt_path, verbose=False, **more)
    return training.state_dict(), training


def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(rows: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    whole, first = trained(rows, tmp_path / "whole")
    trained(rows, tmp_path / "cut", callbacks=[StopAfter(0)])
    cut = torch.load(tmp_path / "cut" / "checkpoints" / "last.ckpt", weights_only=True)
    assert cut["epoch"] == 0
    assert any(not torch.equal(cut["state_dict"][k], v) for k, v in whole.items())
    resumed, second = trained(rows, tmp_path / "rest", tmp_path / "cut" / "checkpoints" / "last.ckpt")
    assert all(torch.equal(resumed[k], v) for k, v in whole.items())
    assert second.history == first.history
    assert len(first.history) == 3


def test_training_lowers_the_loss_and_uses_the_average(rows: tuple[Tensor, Tensor]) -> None:
    training = StrokeTraining(
        NetworkAverage([network(rows), network(rows, seed=1)]), settings(epochs=6), rows, (rows[0][:50], rows[1][:50])
    )
    before = {k: v.clone() for k, v in training.state_dict().items()}
    average = train_network(training, QUIET, None, verbose=False)
    assert training.history[-1]["train_loss"] < 0.8 * training.history[0]["train_loss"]
    after = training.state_dict()
    assert all(not torch.equal(before[f"network.{k}"], after[f"network.{k}"]) for k, _ in average.named_parameters())
    distance = [float((after[f"network.{k}"] - p).abs().max()) for k, p in average.named_parameters()]
    assert max(distance) > 0
    assert not average.training
    assert all(not p.requires_grad for p in average.parameters())


class Poisoned(StrokeNetwork):
    """Gives NaN at one call while training."""

    calls = 0

    def forward(self, strokes: Tensor) -> Tensor:
        self.calls += self.training
        logits = super().forward(strokes)
        return logits * torch.nan if self.training and self.calls in self.bad else logits

    bad: tuple[int, ...] = ()


def poisoned(rows: tuple[Tensor, Tensor], *bad: int) -> StrokeTraining:
    clean = network(rows)
    net = Poisoned(clean.encoder, clean.head)
    net.bad = bad
    return StrokeTraining(NetworkAverage([net]), settings(), rows, (rows[0][:50], rows[1][:50]))


def test_a_loss_that_is_no_number_brings_back_the_best_weights(rows: tuple[Tensor, Tensor]) -> None:
    training = poisoned(rows, 10)
    with pytest.warns(DataWarning, match="went back to the weights with the least validation loss"):
        average = train_network(training, QUIET, None, verbose=False)
    assert training.restored == 1
    assert all(bool(p.isfinite().all()) for p in average.parameters())
    assert len(training.history) == 3
    assert all(math.isfinite(line["train_loss"]) for line in training.history)


def test_a_loss_that_stays_no_number_is_an_error(rows: tuple[Tensor, Tensor]) -> None:
    training = poisoned(rows, 10, 11)
    with (
        pytest.warns(DataWarning, match="went back"),
        pytest.raises(TorchPBPError, match="not finite even with the best weights"),
    ):
        train_network(training, QUIET, None, verbose=False)
