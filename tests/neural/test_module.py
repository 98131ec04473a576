"""PBPModule: what a training leaves behind, and what can be asked then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from torch import Tensor, nn

from tests.neural.small import (
    KINDS,
    VECTORS,
    class_table,
    clone,
    evidence,
    finished,
    held_out_loss,
    mixed_table,
    point_model,
    quiet_trainer,
    resumed_from,
    train,
)
from torchpbp import PBP, PBPLayer, PBPModule, TableLoader
from torchpbp.errors import DataWarning
from torchpbp.learning.message_nets import Masking
from torchpbp.neural.support import solve_support


def operators(model: PBP) -> list[Tensor]:
    return [
        model.operators.root.weight.detach().clone(),
        *(o.weight.detach().clone() for o in model.operators.separator_operators),
    ]


# -- what hidden leaves are -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_hidden_leaves_have_no_influence_by_a_single_bit(kind: str) -> None:
    model = finished(kind).model
    generator = torch.Generator().manual_seed(0)
    seen = {v: torch.rand(20, generator=generator) < 0.5 for v in VECTORS}
    answers, layers = [], []
    for filler in (0.0, 3.0, 1e6):
        given: dict[str, Any] = {"e": evidence()["e"]}
        for v in VECTORS:
            noise = filler * torch.randn(20, 2, generator=generator)
            given[v] = (torch.where(seen[v].unsqueeze(1), evidence()[v], noise), seen[v])
        answers.append(model.posterior("y", given))
        layers.append(PBPLayer(model)(given)["y"])
    missing = {v: x if v == "e" else torch.where(seen[v].unsqueeze(1), x, torch.nan) for v, x in evidence().items()}
    answers.append(model.posterior("y", missing))
    assert all(torch.equal(answers[0], other) for other in answers[1:])
    layers.append(PBPLayer(model)(missing)["y"])
    assert all(torch.equal(layers[0], other) for other in layers[1:])
    torch.testing.assert_close(layers[0], answers[0])
    whole = model.posterior("y", evidence())
    assert not torch.equal(whole, answers[0])


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_leaves_that_are_not_shown_do_not_reach_the_loss(kind: str) -> None:
    """The mask of a training step has the same effect as missing values."""
    module = finished(kind)
    table = class_table(30, 3)[1]
    seen = module.reader.seen(table)
    shown = seen & (torch.rand(seen.shape, generator=torch.Generator().manual_seed(1)) < 0.5)
    noise = {v: x if v in ("e", "y") else torch.randn_like(x) for v, x in table.items()}
    other = {
        v: x if v == "y" else torch.where(shown[:, i].reshape(-1, *[1] * (x.ndim - 1)), x, noise[v])
        for i, (v, x) in enumerate((v, table[v]) for v in [*module.reader.names])
    } | {"y": table["y"]}
    solved = solve_support(module.model, table, seen, seen, seen)
    assert torch.equal(module.answers.loss(solved, table, shown), module.answers.loss(solved, other, shown))


# -- solving on all rows -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("masked", [True, False])
def test_fit_after_training_gives_the_operators_of_the_final_solve(kind: str, masked: bool) -> None:
    graph, table = class_table(240, 1)
    module = PBPModule(KINDS[kind](graph), hidden=[6])
    if not masked:
        module.model.nets.masking = Masking(0.0, 0.0)
    train(module, table)
    module.solve(TableLoader(table, 240 if masked else 60, shuffle=False))  # what is masked depends on the batches
    solved, heads = operators(module.model), module.model.nets.head_a0.clone()
    module.model.fit(table)
    for a, b in zip(solved, operators(module.model), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(heads, module.model.nets.head_a0, rtol=1e-8, atol=1e-8)
    assert int(module.model.rows) == 240


def test_a_data_module_may_say_which_rows_operators_are_solved_on() -> None:
    from lightning.pytorch import LightningDataModule

    graph, table = class_table(200, 1)

    class Data(LightningDataModule):
        def train_dataloader(self) -> Any:
            return TableLoader(table, 50)

        def solve_dataloader(self) -> Any:
            return TableLoader({v: x[:120] for v, x in table.items()}, 60, shuffle=False)

    module = PBPModule(point_model(graph, condition="y"), hidden=[4])
    quiet_trainer().fit(module, datamodule=Data())
    assert int(module.model.rows) == 120


# -- interruptions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*KINDS, "mixed"])
def test_training_goes_on_from_a_checkpoint(kind: str, tmp_path: Path) -> None:
    graph, table = mixed_table(120, 1) if kind == "mixed" else class_table(120, 1)

    def module() -> PBPModule:
        model = point_model(graph) if kind == "mixed" else KINDS[kind](graph)
        return PBPModule(model, "e" if kind == "mixed" else None, hidden=[4])

    class Stop(ModelCheckpoint):
        """Ends training after the first epoch, as a crash would: what is saved is all that is left."""

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            super().on_train_epoch_end(trainer, pl_module)
            raise KeyboardInterrupt

    whole, interrupted, resumed = module(), module(), module()
    train(whole, table, 3, 60)
    options = {"enable_checkpointing": True, "default_root_dir": tmp_path}
    saver = Stop(tmp_path / "states", save_on_train_epoch_end=True)
    with pytest.raises(SystemExit):
        train(interrupted, table, 3, 60, callbacks=[saver], **options)
    train(resumed, table, 3, 60, ckpt_path=resumed_from(tmp_path / "states"))
    state = resumed.state_dict()
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(
            state[name], value, rtol=1e-6, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_weight_averaging_ends_in_a_solve_with_the_average() -> None:
    graph, table = class_table(200, 1)
    plain = PBPModule(point_model(graph, condition="y"), hidden=[4])
    train(plain, table, 2, 50)
    averaged = PBPModule(point_model(graph, condition="y"), hidden=[4])
    train(averaged, table, 2, 50, callbacks=[EMAWeightAveraging(decay=0.5)])
    first, second = plain.model.encoders, averaged.model.encoders
    assert any(not torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    averaged.model.nets.masking = Masking(0.0, 0.0)
    averaged.solve(TableLoader(table, 50))
    exact = operators(averaged.model)
    averaged.model.fit(table)
    for a, b in zip(exact, operators(averaged.model), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)
    assert held_out_loss(averaged, class_table(200, 2)[1]) < 1.5


# -- what happens in steps ---------------------------------------------------------------------------------------------


def test_rows_without_a_target_are_left_out_counted_and_reported() -> None:
    graph, table = class_table(200, 1)
    part = clone(table)
    part["y"][150:] = -1
    module = PBPModule(point_model(graph, condition="y"), hidden=[4])
    with pytest.warns(DataWarning) as caught:
        train(module, part, 2, 50)
    texts = [str(w.message) for w in caught if issubclass(w.category, DataWarning)]
    assert any("50 rows of the last epoch have no 'y'" in text for text in texts)
    assert any("50 of 200 rows have no value of 'y'" in text for text in texts)
    assert int(module.unlabelled) == 50
    assert int(module.model.rows) == 150
    assert module.model.class_rows.tolist() == torch.bincount(table["y"][:150]).tolist()
    # the rows themselves do not matter, then
    noise = clone(part)
    noise["a"][150:] = 100.0
    found = []
    for rows in (part, noise):
        with pytest.warns(DataWarning, match="have no value of 'y'"):
            module.solve(TableLoader(rows, 200, shuffle=False))
        found.append(operators(module.model)[0])
    torch.testing.assert_close(found[0], found[1])


def test_a_batch_without_any_label_is_no_step_of_its_own() -> None:
    graph, table = class_table(120, 1)
    table["y"][60:] = -1
    module = PBPModule(point_model(graph, condition="y"), hidden=[4])
    loader = TableLoader(table, 60, shuffle=False)  # the second batch has no label at all
    trainer = quiet_trainer()
    with pytest.warns(DataWarning):
        trainer.fit(module, loader, TableLoader(table, 60, shuffle=False))
    assert int(module.skipped) == 0
    assert int(module.unlabelled) == 60
    metrics = trainer.callback_metrics
    expected = module.answers.scores({v: x[:60] for v, x in table.items()})
    assert module.answers.scores({v: x[60:] for v, x in table.items()}) == {}
    assert float(metrics["val/accuracy"]) == pytest.approx(float(expected["accuracy"][0]), abs=0.2)


class Failing(nn.Module):
    """An encoder whose output, or gradient, is NaN in some calls in training."""

    def __init__(self, calls: set[int], gradient: bool) -> None:
        super().__init__()
        self.layer, self.calls, self.gradient, self.count = nn.Linear(2, 3), calls, gradient, 0

    def forward(self, values: Tensor) -> Tensor:
        out: Tensor = self.layer(values).tanh()
        if not self.training:
            return out
        self.count += 1
        if self.count not in self.calls:
            return out
        if self.gradient:
            out.register_hook(lambda g: g * torch.nan)
            return out
        return out * torch.nan


@pytest.mark.parametrize("gradient", [False, True])
def test_steps_that_are_not_finite_are_skipped_and_counted(gradient: bool) -> None:
    graph, table = class_table(300, 1)
    torch.manual_seed(0)
    encoder = Failing({3}, gradient)  # a step encodes support and query: those of the second support
    module = PBPModule(PBP(graph, features=encoder, condition="y"), hidden=[4], residual=False)
    with pytest.warns(DataWarning, match="1 steps were skipped because loss or gradient was not finite"):
        train(module, table, 1, 50)
    assert int(module.skipped) == 1
    assert all(bool(p.isfinite().all()) for p in module.parameters())
    assert all(bool(b.isfinite().all()) for b in module.buffers())
    assert held_out_loss(module, table) < 1.5


def test_metrics_of_validation_and_training() -> None:
    graph, table = class_table(200, 1)
    held_out = class_table(150, 2)[1]
    module = PBPModule(point_model(graph, condition="y"), hidden=[4])
    trainer = train(module, table, 2, val_dataloaders=TableLoader(held_out, 50, shuffle=False))
    metrics = trainer.callback_metrics
    assert {"train/loss", "train/stage1_error", "val/loss", "val/accuracy"} <= set(metrics)
    scores = module.answers.scores(held_out)
    assert float(metrics["val/loss"]) == pytest.approx(float(scores["loss"][0]), abs=0.1)
    with torch.no_grad():
        posterior = module.model.posterior("y", {v: x for v, x in held_out.items() if v != "y"})
    chosen = posterior.gather(1, held_out["y"].unsqueeze(1))
    assert float(scores["loss"][0]) == pytest.approx(-float(chosen.log().mean()), rel=1e-4)
    again = quiet_trainer().validate(module, TableLoader(held_out, 50, shuffle=False), verbose=False)[0]
    assert again["val/loss"] == pytest.approx(float(scores["loss"][0]), rel=1e-5)


def test_validation_without_a_target() -> None:
    graph, table = mixed_table(150, 1)
    module = PBPModule(point_model(graph), hidden=[4])
    trainer = train(module, table, 1, val_dataloaders=TableLoader(table, 75, shuffle=False))
    assert torch.isfinite(trainer.callback_metrics["val/loss"])
    assert "val/accuracy" not in trainer.callback_metrics


def test_seeds_decide_and_nothing_else() -> None:
    graph, table = class_table(100, 1)

    def weights(seed: int) -> Tensor:
        module = PBPModule(point_model(graph, condition="y"), hidden=[4], seed=seed)
        torch.rand(seed + 3)  # moves the global generator
        train(module, table, 1, 50)
        return module.model.operators.root.weight.detach()

    torch.testing.assert_close(weights(1), weights(1), rtol=1e-9, atol=1e-9)
    assert float((weights(1) - weights(2)).abs().max()) > 1e-3
