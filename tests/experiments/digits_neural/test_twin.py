"""Training of the perceptron twin in a run folder; tests/experiments/test_patches.py has what it sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from torchpbp.datasets import DigitsDataModule
from torchpbp.errors import ArgumentError, CheckpointError
from torchpbp.experiments.digits.neural import NeuralDigits, make_twin
from torchpbp.experiments.digits.stroke_batches import StrokeBatches
from torchpbp.experiments.running.lightning_runs import CPU, TrainingGroups, train
from torchpbp.experiments.running.twins import LeafTwin
from torchpbp.neural.averaging import WeightAverage, move_average


def small() -> LeafTwin:
    learner = NeuralDigits(features=3, width=16, head=8, learning_rate=0.01)
    return make_twin(learner, seed=0)


@pytest.fixture(scope="module")
def batches() -> StrokeBatches:
    data = DigitsDataModule(train_size=12)
    data.setup()
    return StrokeBatches(data, steps=5, support=4, query=16, limit=50)


def checkpoint() -> ModelCheckpoint:
    return ModelCheckpoint(filename="last", save_on_train_epoch_end=True, enable_version_counter=False)


class StopAfter(Callback):
    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.should_stop = trainer.current_epoch >= self.epoch


def test_training_lowers_the_loss(batches: StrokeBatches) -> None:
    history = train(small(), batches, TrainingGroups(), 12, 1.0, None, verbose=False)
    assert history["step"].tolist() == [5 * (i + 1) for i in range(12)]
    assert history["train/loss"].iloc[-1] < 0.8 * history["train/loss"].iloc[0]
    assert history["val/accuracy"].iloc[-1] > 0.2


def test_a_resumed_training_equals_an_uninterrupted_one(batches: StrokeBatches, tmp_path: Path) -> None:
    def trained(folder: str, ckpt: Path | None = None, more: tuple[Callback, ...] = ()) -> tuple[LeafTwin, Any]:
        twin = small()
        callbacks = {"average": WeightAverage(0.9), "checkpoint": checkpoint()}
        groups = TrainingGroups(callbacks=callbacks, ckpt_path=None if ckpt is None else str(ckpt))
        return twin, train(twin, batches, groups, 4, 1.0, tmp_path / folder, "twin_", False, more)

    whole, history = trained("whole")
    trained("cut", more=(StopAfter(1),))
    kept = tmp_path / "cut" / "checkpoints"
    assert [path.name for path in kept.iterdir()] == ["twin_last.ckpt"]
    assert torch.load(kept / "twin_last.ckpt", weights_only=True)["epoch"] == 1
    resumed, again = trained("rest", kept / "last.ckpt")
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))
    assert again.equals(history)
    # The state of a finished training has nothing left to train, but its average is used as well.
    finished, last = trained("done", tmp_path / "whole" / "checkpoints" / "last.ckpt")
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), finished.parameters(), strict=True))
    assert last.equals(history)


def test_the_average_forgets_where_it_started() -> None:
    average, weights = [torch.zeros(3)], [torch.ones(3)]
    for step in range(30):
        move_average(0.998, average, weights, step)
    assert average[0].min() > 0.9
    move_average(0.998, average, [torch.zeros(3)], 10_000)
    assert float(average[0][0]) == pytest.approx(0.998, abs=2e-3)


def test_callbacks_and_loggers_of_the_configuration_are_used(batches: StrokeBatches, tmp_path: Path) -> None:
    stop = EarlyStopping("val/loss", patience=1, min_delta=1e9, mode="min")
    groups = TrainingGroups({**CPU, "limit_train_batches": 2}, CSVLogger, {"stop": stop, "checkpoint": checkpoint()})
    history = train(small(), batches, groups, 10, 1.0, tmp_path, verbose=False)
    assert len(history) == 2  # stopped by the callback
    assert history["step"].tolist() == [2, 4]
    assert list(tmp_path.rglob("metrics.csv"))
    assert stop.stopped_epoch == 0  # a copy was used


def test_states_of_training_that_cannot_be_read_raise(batches: StrokeBatches, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"ckpt_path: expected a state of training.*nowhere.ckpt"):
        train(small(), batches, TrainingGroups(ckpt_path=str(tmp_path / "nowhere.ckpt")), 1, 1.0, None, verbose=False)
    (tmp_path / "last.ckpt").write_text("nothing")
    with pytest.raises(CheckpointError, match=r"last.ckpt: expected a training state.*Delete it"):
        train(small(), batches, TrainingGroups(ckpt_path=str(tmp_path / "last.ckpt")), 1, 1.0, None, verbose=False)
