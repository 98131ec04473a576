"""Training in the folder of a run, with the baseline perceptron as the network."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor

from torchpbp import PBP, ContextEncoder, PBPModule, PointEncoder, WeightAverage, templates
from torchpbp.experiments.grid import Run
from torchpbp.experiments.train.baseline import ImputedSVM, LeafMLP
from torchpbp.experiments.train.leaf_data import hidden_leaves
from torchpbp.experiments.train.strokes import DIGIT, POINT_NAMES, StrokeData
from torchpbp.experiments.train.task import train
from torchpbp.experiments.training import fit

TRAINER = partial(
    Trainer, accelerator="cpu", enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False
)


def module(**options: Any) -> PBPModule:
    torch.manual_seed(0)
    encoder = ContextEncoder(POINT_NAMES, (2,), features=3, width=16, head=8, centre=50.0, scale=33.0)
    graph = templates.pen_tree(leaf_states=4, states=4)
    model = PBP(graph, features=encoder, context=True, condition=DIGIT, seed=0)
    return PBPModule(model, target=DIGIT, hidden=(8,), learning_rate=0.01, **options)


def perceptron() -> LeafMLP:
    made = module()
    assert made.model.encoders is not None
    return LeafMLP(made.model.encoders, DIGIT, 10, made.settings, width=32)


@pytest.fixture(scope="module")
def data() -> StrokeData:
    return StrokeData(train_size=12, steps_per_epoch=5, support=4, query=16, limit=50, copies=1)


def checkpoint(folder: Path) -> ModelCheckpoint:
    options: Any = {"save_on_train_epoch_end": True, "enable_version_counter": False}
    return ModelCheckpoint(folder / "checkpoints", "last", **options)


class Interrupted(Callback):
    """Ends training after an epoch, as a killed process does."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch == 2:
            raise InterruptedError


def test_training_lowers_the_loss(data: StrokeData) -> None:
    facts = fit(perceptron(), data, partial(TRAINER, max_epochs=12), None, None, Run(), "mlp")
    history = facts["history"]
    assert history["step"] == [5 * (i + 1) for i in range(12)]
    assert history["train/loss"][-1] < 0.8 * history["train/loss"][0]
    assert history["val/accuracy"][-1] > 0.2


def test_an_interrupted_training_goes_on_where_it_stopped(data: StrokeData, tmp_path: Path) -> None:
    def trained(folder: str, settings: str = "a", **more: Callback) -> tuple[LeafMLP, Any]:
        callbacks = {"average": WeightAverage(0.9), "checkpoint": checkpoint(tmp_path / folder), **more}
        network, run = perceptron(), Run(0, tmp_path / folder, settings)
        return network, fit(network, data, partial(TRAINER, max_epochs=4), callbacks, None, run, "mlp")["history"]

    def steps(history: Any) -> int:
        return len(history["step"])

    plain, history = trained("plain")
    with pytest.raises(InterruptedError):
        trained("cut", stop=Interrupted())
    last = tmp_path / "cut" / "checkpoints" / "last.ckpt"
    assert torch.load(last, weights_only=True)["epoch"] == 1
    resumed, again = trained("cut")
    assert steps(again) == steps(history) == 4
    for a, b in zip(plain.parameters(), resumed.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)
    # The checkpoint of a finished training has nothing left to train; its average is used as well.
    finished, _ = trained("cut")
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(plain.parameters(), finished.parameters(), strict=True))
    # A checkpoint written with other settings is not used.
    _, anew = trained("cut", settings="b")
    assert anew["train/loss"][0] == pytest.approx(history["train/loss"][0], rel=1e-4)


def test_callbacks_and_loggers_are_copied(data: StrokeData, tmp_path: Path) -> None:
    average, logger = WeightAverage(0.9), CSVLogger(str(tmp_path), "logs")
    make = partial(TRAINER, max_epochs=2, limit_train_batches=2)
    facts = fit(perceptron(), data, make, {"average": average}, {"csv": logger}, Run(0, tmp_path), "mlp")
    assert facts["history"]["step"] == [2, 4]
    assert list((tmp_path / "logs").rglob("metrics.csv"))
    assert average._average_model is None


def test_the_perceptron_sees_only_leaves_that_are_seen(data: StrokeData) -> None:
    network, table = perceptron().eval(), data.tables["val"]
    with torch.no_grad():
        hidden = hidden_leaves(table, POINT_NAMES, 4, 0)
        moved = {
            v: torch.where(hidden[v].isnan(), torch.nan, x) if v != DIGIT else x for v, x in data.tables["val"].items()
        }
        assert torch.equal(network(hidden), network(moved))
        assert not torch.equal(network(hidden), network(table))
        assert torch.allclose(network(table).exp().sum(dim=1), torch.ones(50))
        network.choose_fill(data.tables["train"], table, hidden)
    assert network.fill in ("zero", "mean")


def test_the_support_vector_machine_fills_hidden_values_in(data: StrokeData) -> None:
    machine, table = ImputedSVM(data.tables["train"], DIGIT), data.tables["test"]

    def right(count: int) -> float:
        predicted: Tensor = machine.predict(hidden_leaves(table, POINT_NAMES, count, 0))
        return float((predicted == table[DIGIT]).double().mean())

    assert right(0) > right(6) > 0.15


@pytest.mark.parametrize("kind", ["context", "points"])
def test_a_run_measures_model_and_baseline(kind: str, data: StrokeData, tmp_path: Path) -> None:
    def make(**options: Any) -> PBPModule:
        if kind == "context":
            return module(**options)
        model = PBP(
            templates.pen_tree(leaf_states=4, states=4),
            features=PointEncoder((2,), 3, 8, 50.0, 33.0),
            condition=DIGIT,
            seed=0,
        )
        return PBPModule(model, target=DIGIT, hidden=(8,), **options)

    def result(run: Run) -> Any:
        return train(make, data, partial(TRAINER, max_epochs=3), run, hidden=(0, 4), draws=1, baseline=True, svm=True)

    found = result(Run(0, tmp_path))
    metrics = found.metrics
    assert metrics["test/accuracy"] == metrics["test/accuracy/PBP/0"] > 0.3
    assert {"test/accuracy_half_hidden", "test/log_loss", "val/accuracy/baseline MLP/4"} <= set(metrics)
    assert "test/log_loss/SVM after imputation/0" not in metrics  # it has no probabilities
    assert found.tables["predictions"]["predicted"].isin(range(10)).all()
    assert next(iter(found.pictures)) == "hidden"
    assert "PBP" in found.described()
    again = result(Run(0, tmp_path)).metrics  # parts are kept
    assert {k: v for k, v in again.items() if "second" not in k} == pytest.approx(
        {k: v for k, v in metrics.items() if "second" not in k}, abs=1e-6
    )
    kept = [json.loads(path.read_text())["part"] for path in (tmp_path / "parts").glob("*.json")]
    assert sorted(kept) == ["PBP", "SVM after imputation", "baseline MLP"]
