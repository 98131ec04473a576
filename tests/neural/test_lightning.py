"""PBPModule in Lightning's Trainer: checkpoints of finished runs, few batches, precision, and solves that fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

from tests.neural.small import class_table, clone, evidence, loop_table, point_model, quiet_trainer, resumed_from, train
from torchpbp import PBP, PBPModule, TableLoader, WeightAverage
from torchpbp.errors import ArgumentError, DataError


def small_module(**options: Any) -> PBPModule:
    return PBPModule(point_model(class_table(1, 1)[0], condition="y"), hidden=[4], **options)


class Rates(Callback):
    """Keeps the learning rates of all steps."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.found.append(trainer.optimizers[0].param_groups[0]["lr"])


def finished_run(folder: Path, **options: Any) -> tuple[PBPModule, str]:
    """A module after an epoch of four steps, and its checkpoint."""
    module = small_module(**options)
    saver = ModelCheckpoint(folder, save_on_train_epoch_end=True)
    callbacks = [saver, WeightAverage(0.9)]
    train(module, class_table(200, 1)[1], 1, 50, callbacks=callbacks, enable_checkpointing=True)
    return module, resumed_from(folder)


def test_more_epochs_from_a_checkpoint_go_on_at_the_last_rate(tmp_path: Path) -> None:
    _, path = finished_run(tmp_path, warmup=3)
    module, rates = small_module(warmup=3), Rates()
    train(module, class_table(200, 1)[1], 3, 50, callbacks=[rates, WeightAverage(0.9)], ckpt_path=path)
    assert rates.found == pytest.approx([3e-3] * 8)
    assert module.model.fitted


def test_the_rate_rises_and_is_constant_from_then_on() -> None:
    rates = Rates()
    train(small_module(warmup=4), class_table(200, 1)[1], 2, 50, callbacks=[rates])
    assert rates.found == pytest.approx([0.75e-3, 1.3125e-3, 1.875e-3, 2.4375e-3, *[3e-3] * 4])


def test_a_finished_run_without_a_step_left_is_solved_with_the_average_of_weights(tmp_path: Path) -> None:
    finished, path = finished_run(tmp_path)
    again = small_module()
    train(again, class_table(200, 1)[1], 1, 50, callbacks=[WeightAverage(0.9)], ckpt_path=path)
    assert again.model.fitted
    assert not again.model.training
    found, expected = again.model.posterior("y", evidence()), finished.model.posterior("y", evidence())
    torch.testing.assert_close(found, expected)


def test_one_batch_may_be_learned_by_heart() -> None:
    seen: list[Tensor] = []

    class Rows(Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            seen.append(batch["a"])

    module = small_module()
    with pytest.warns(UserWarning, match="overfit"):
        quiet_trainer(3, overfit_batches=1, callbacks=[Rows()]).fit(module, TableLoader(class_table(200, 1)[1], 50))
    assert len(seen) == 3
    assert all(torch.equal(seen[0], other) for other in seen[1:])
    assert module.model.fitted


def test_a_loader_of_a_data_module_may_be_overfitted() -> None:
    class Data(LightningDataModule):
        def train_dataloader(self) -> TableLoader:
            return TableLoader(class_table(200, 1)[1], 50)

    module = small_module()
    with pytest.warns(UserWarning, match="overfit"):
        quiet_trainer(2, overfit_batches=1).fit(module, datamodule=Data())
    assert module.model.fitted


@pytest.mark.parametrize("precision", ["bf16-true", "16-true"])
def test_half_precision_of_all_numbers_raises(precision: Any) -> None:
    mixed = precision.replace("true", "mixed")
    with pytest.raises(
        ArgumentError, match=f"precision={precision}: .* cannot be solved in half precision. Use {mixed}"
    ):
        train(small_module(), class_table(60, 1)[1], precision=precision)


@pytest.mark.parametrize("part", ["messages_", "instruments_"])
@pytest.mark.parametrize("kind", ["encoders", "states"])
def test_a_solve_that_fails_says_so_in_words(kind: str, part: str) -> None:
    graph, table = class_table(200, 1) if kind == "encoders" else loop_table(200, 1)
    module = PBPModule(point_model(graph, condition="y") if kind == "encoders" else PBP(graph), hidden=[4])
    module.model.prepare_leaves([table])
    with torch.no_grad():
        for p in getattr(module.model.nets, part).parameters():
            p.mul_(1e30)
    with pytest.raises(DataError, match=r"the operators cannot be solved on these rows .*lower learning_rate="):
        module.solve(TableLoader(clone(table), 200))
