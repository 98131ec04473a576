"""PBPModule.fit: training on a table in one call, and what it leaves behind."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import pandas as pd
import pytest
import torch
from lightning.pytorch import Callback
from torch import Tensor

from tests.neural.small import class_table, held_out_loss, loop_table, mixed_table, point_model, train
from torchpbp import PBP, LatentGraph, PBPModule
from torchpbp.errors import ArgumentError, DataError
from torchpbp.neural.fitting import BestStep, held_out, hidden_copies, read_rows

STEPS = 20


def small_module(graph: LatentGraph, **options: Any) -> PBPModule:
    return PBPModule(point_model(graph, condition="y"), hidden=[6], **options)


def test_one_call_trains_and_solves_on_all_rows() -> None:
    graph, table = class_table(300, 1)
    module = small_module(graph)
    assert module.history is None
    assert module.fit(table, max_steps=STEPS, progress=False) is module
    assert int(module.model.rows) == 300
    assert not module.model.training
    assert module.history is not None
    assert list(module.history.columns) == ["step", "loss", "accuracy"]
    assert module.history["step"].tolist() == [STEPS]
    assert module.model.missing == dict.fromkeys(module.model.missing, 0.0)
    answer = module.model.posterior("y", {v: x[:5] for v, x in table.items() if v != "y"})
    torch.testing.assert_close(answer.sum(dim=1), torch.ones(5, dtype=torch.float64))


@pytest.mark.parametrize("make", [loop_table, mixed_table])
def test_models_without_a_target(make: Any) -> None:
    graph, table = make(300, 1)
    module = PBPModule(PBP(graph) if make is loop_table else point_model(graph), hidden=[6])
    module.fit(table, max_steps=STEPS, progress=False)
    assert module.history is not None
    assert list(module.history.columns) == ["step", "loss"]
    assert bool(module.history["loss"].gt(0).all())
    assert int(module.model.rows) == 300


@pytest.mark.slow
def test_training_stops_by_itself_with_good_answers() -> None:
    graph, table = class_table(600, 1)
    module = PBPModule(point_model(graph, condition="y"), hidden=[16], learning_rate=0.01)
    module.fit(table, max_steps=1_500, progress=False)
    history = module.history
    assert history is not None
    assert history["step"].iloc[-1] < 1_500
    best = history.loc[history["loss"].idxmin()]
    assert history["step"].iloc[-1] - best["step"] >= 300
    test = class_table(1000, 2)[1]
    assert held_out_loss(module, test) < 0.25  # 0.69 by chance


# -- rows ---------------------------------------------------------------------------------------------------------------


def test_strings_and_categories_are_states_and_targets() -> None:
    graph, table = class_table(200, 1)
    words = ["no" if y == 0 else "yes" for y in table["y"].tolist()]
    kinds = pd.Categorical.from_codes(table["e"].tolist(), ["low", "middle", "high"], ordered=True)
    module = small_module(graph).fit({**table, "y": words, "e": kinds}, max_steps=STEPS, progress=False)
    plain = small_module(graph).fit(table, max_steps=STEPS, progress=False)
    assert module.model.labels == {"y": ("no", "yes"), "e": ("low", "middle", "high")}
    found = module.model.posterior("y", {"e": ["high", "low"]})
    torch.testing.assert_close(found, plain.model.posterior("y", {"e": [2, 0]}))


def test_frames_are_tables_and_answers_have_labels() -> None:
    graph, table = loop_table(200, 1)
    frame = pd.DataFrame({v: x.numpy() for v, x in table.items()})
    frame["a1"] = frame["a1"].map(dict(enumerate(["red", "green", "blue", "grey"])))
    module = PBPModule(PBP(graph), "a1", hidden=[6]).fit(frame, max_steps=5, progress=False)
    answer = module.model.posterior("a1", frame.drop(columns="a1").head(3))
    assert list(answer.columns) == ["blue", "green", "grey", "red"]


def test_validation_rows_may_be_passed_with_the_labels_of_the_table() -> None:
    graph, table = class_table(200, 1)
    held = class_table(50, 2)[1]
    words = dict(enumerate(["no", "yes"]))
    named = [{**part, "y": [words[int(y)] for y in part["y"]]} for part in (table, held)]
    module = small_module(graph).fit(*named, max_steps=5, progress=False)
    assert int(module.model.rows) == 200  # without the validation rows
    with pytest.raises(DataError, match="maybe"):
        small_module(graph).fit(named[0], {**held, "y": ["maybe"] * 50}, max_steps=5)
    with pytest.raises(DataError, match="'y' has labels in the validation rows and numbers in the training rows"):
        small_module(graph).fit(table, named[1], max_steps=5)
    with pytest.raises(DataError, match="no row with a 'y' to validate on"):
        small_module(graph).fit(table, {**held, "y": torch.full((50,), -1)}, max_steps=5)


def test_too_few_rows_to_hold_some_out_raise() -> None:
    graph, table = class_table(6, 1)
    table["y"] = torch.tensor([0, 0, 0, 1, 1, 1])
    with pytest.raises(DataError, match=r"no row to validate on. Give more rows, or validation="):
        small_module(graph).fit(table)


def test_the_same_share_of_each_class_is_held_out_and_no_row_without_a_class() -> None:
    classes = torch.tensor([0] * 100 + [1] * 50 + [2] * 4 + [-1] * 30)[torch.randperm(184)]
    held = held_out(classes, seed=0)
    assert torch.bincount(classes[held], minlength=3).tolist() == [20, 10, 0]
    assert not bool(held[classes < 0].any())
    assert torch.equal(held, held_out(classes, seed=0))
    assert not torch.equal(held, held_out(classes, seed=1))
    assert 3_000 < int(held_out(torch.zeros(100_000, dtype=torch.int64), seed=0).sum()) <= 4_000


@pytest.mark.parametrize(
    ("leaves", "counts"), [(1, [0]), (2, [0, 1]), (3, [0, 1, 2]), (5, [0, 2, 3, 4]), (10, [0, 3, 5, 8])]
)
def test_copies_of_validation_rows_hide_different_numbers_of_leaves(leaves: int, counts: list[int]) -> None:
    names = [f"x{i}" for i in range(leaves)]
    table = {v: torch.randint(3, (40,)) if i % 2 else torch.randn(40, 2) for i, v in enumerate(names)}
    copies = hidden_copies({**table, "y": torch.ones(40)}, names, seed=0)
    assert len(copies) == len(counts)
    for copy, count in zip(copies, counts, strict=True):
        hidden = torch.stack([copy[v].isnan().all(dim=1) if copy[v].ndim > 1 else copy[v] < 0 for v in names], dim=1)
        assert hidden.sum(dim=1).tolist() == [count] * 40
        assert torch.equal(copy["y"], torch.ones(40))
    if leaves > 2:
        assert len({tuple(copies[1][v].flatten().isnan().tolist()) for v in names[::2]}) > 1


# -- steps --------------------------------------------------------------------------------------------------------------


def losses(module: PBPModule, steps: list[int], values: list[float], monkeypatch: pytest.MonkeyPatch) -> BestStep:
    """The callback after validations with these losses at these steps; the weights are the number of the step."""

    class Run:
        should_stop = False

        def __init__(self) -> None:
            self.callback_metrics: dict[str, Tensor] = {}
            self.global_step = 0

    best, trainer = BestStep(), Run()
    for step, value in zip(steps, values, strict=True):
        trainer.global_step = step
        trainer.callback_metrics = {f"val/loss/dataloader_idx_{i}": torch.tensor(value + i - 1) for i in range(3)}
        with torch.no_grad():
            module.model.nets.log_ridge.fill_(step)
        best.on_validation_epoch_end(trainer, module)  # type: ignore[arg-type]
        if trainer.should_stop:
            break
    return best


def test_the_best_step_is_kept_and_training_stops_in_proportion_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module = small_module(class_table(10, 1)[0])
    falling = [1.0, 0.9, 0.8995, *[1.0] * 20]
    best = losses(module, list(range(100, 2400, 100)), falling, monkeypatch)
    assert (best.step, best.loss) == (200, pytest.approx(0.9))  # less than 0.1 % is no improvement
    assert [line["step"] for line in best.history] == list(range(100, 700, 100))
    assert bool((best.state["stage1.log_ridge"] == 200).all())
    late = losses(module, list(range(1_000, 4_000, 100)), [1.0, 0.9, *[0.95] * 28], monkeypatch)
    assert late.history[-1]["step"] == 1_100 + 600
    never = losses(module, [100, 200, 300, 400, 500], [float("nan")] * 5, monkeypatch)
    assert not never.state
    assert never.history[-1]["step"] == 400


class Wild(Callback):
    """Spoils the weights after a number of steps."""

    def __init__(self, step: int) -> None:
        self.step = step

    @torch.no_grad()
    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        if trainer.global_step > self.step:
            for p in pl_module.model.encoders.parameters():
                p.mul_(0)


def test_the_model_has_the_weights_of_the_best_validation() -> None:
    graph, table = class_table(300, 1)
    module = small_module(graph, learning_rate=0.01)
    module.fit(table, max_steps=300, progress=False, trainer={"callbacks": [Wild(210)]})
    assert module.history is not None
    assert module.history["loss"].idxmin() < 2
    assert any(bool(p.any()) for p in module.model.encoders.parameters())
    assert held_out_loss(module, class_table(300, 2)[1]) < 0.68


def test_the_same_seed_gives_the_same_model() -> None:
    graph, table = class_table(200, 1)

    def trained(seed: int) -> tuple[float, Tensor]:
        module = small_module(graph).fit(table, max_steps=5, seed=seed, progress=False)
        assert module.history is not None
        return float(module.history["loss"].iloc[0]), module.model.nets.messages_[0].mean

    (loss, weights), (again, same), (other, _) = trained(0), trained(0), trained(1)
    torch.testing.assert_close(weights, same)
    assert loss == pytest.approx(again)
    assert loss != pytest.approx(other)


def test_a_fitted_model_is_trained_further_in_training_mode() -> None:
    graph, table = class_table(200, 1)
    found: list[bool] = []

    class Mode(Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            found.append(all(part.training for part in pl_module.model.modules()))

    options: dict[str, Any] = {"max_steps": 2, "progress": False, "trainer": {"callbacks": [Mode()]}}
    module = small_module(graph).fit(table, **options)
    assert not module.model.training
    module.fit(table, **options)
    PBPModule(module.model).fit(table, **options)
    train(PBPModule(module.model), table, callbacks=[Mode()])
    assert found == [True] * 8


def test_batches_are_about_as_large_as_asked() -> None:
    graph, table = class_table(250, 1)
    sizes: list[int] = []

    class Sizes(Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            sizes.append(len(batch["y"]))

    for size in (400, 60):
        small_module(graph).fit(table, batch_size=size, max_steps=4, progress=False, trainer={"callbacks": [Sizes()]})
    assert sizes[:4] == [200] * 4
    assert {66, 67} == set(sizes[4:])


# -- what it says -------------------------------------------------------------------------------------------------------


def test_lightning_says_nothing(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    graph, table = class_table(200, 1)
    level = logging.getLogger("lightning.pytorch").level
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small_module(graph).fit(table, max_steps=5)
    assert capfd.readouterr() == ("", "")
    assert not caplog.records
    assert logging.getLogger("lightning.pytorch").level == level


def test_the_bar_shows_steps_loss_and_the_best_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []

    class Bar:
        def __init__(self, **options: Any) -> None:
            notes.append(f"{options['desc']} {options['total']}")

        def set_postfix_str(self, text: str, refresh: bool) -> None:
            notes.append(text)

        def update(self) -> None: ...
        def close(self) -> None:
            notes.append("closed")

    monkeypatch.setattr("torchpbp.neural.fitting.tqdm", Bar)
    graph, table = class_table(200, 1)
    small_module(graph).fit(table, max_steps=120)
    assert notes[0] == "training 120"
    assert "best" in notes[-2]
    assert " at 60" in notes[-2]
    assert notes[-1] == "closed"


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"max_steps": 0}, {"seed": -1}, {"progress": "yes"}])
def test_arguments_that_are_wrong(options: dict[str, Any]) -> None:
    graph, table = class_table(20, 1)
    with pytest.raises(ArgumentError, match=f"{next(iter(options))}: expected"):
        small_module(graph).fit(table, **options)


def test_rows_of_any_kind_are_read_as_one_table() -> None:
    graph, table = class_table(30, 1)
    model = point_model(graph, condition="y")
    parts = [{v: x[part] for v, x in table.items()} for part in (slice(10), slice(10, None))]
    read = read_rows(model, parts, {})[0]
    assert all(torch.equal(read[v], table[v]) for v in graph.observed)
