"""A PBP layer inside a network that reads pen strokes: its parts, its training, its run."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from lightning.pytorch import Callback
from torch import Tensor

from torchpbp import PBP, KernelPBP, templates
from torchpbp.data import DigitsDataModule, hide_points, load_digits
from torchpbp.errors import DataError, DataWarning, ShapeError, StructureError, TorchPBPError
from torchpbp.tasks import embedding_start, run_digits_embedding
from torchpbp.tasks.embedding_network import (
    MIDDLE,
    ChainHead,
    NetworkAverage,
    PerceptronHead,
    StrokeEncoder,
    StrokeNetwork,
    stroke_graph,
)
from torchpbp.tasks.embedding_start import build_network, count_parameters, start_remembering, start_two_stage
from torchpbp.tasks.embedding_training import StrokeTraining, TrainingSettings, train_network

SMALL: dict[str, Any] = {"states": 6, "hidden_states": 6, "width": 8, "window": 1, "softness": 0.1}
QUIET = {"accelerator": "cpu", "devices": 1, "enable_progress_bar": False}
KERNEL_DENSITY = KernelPBP(templates.pen_clique(), bandwidth=20.0, evidence_bandwidth=10.0)
learner = functools.partial(PBP, root=None)


@pytest.fixture(scope="module")
def rows() -> tuple[Tensor, Tensor]:
    digits = load_digits()
    return digits.train_x[:400], digits.train_y[:400]


def settings(**changes: Any) -> TrainingSettings:
    values = {
        "epochs": 3,
        "batch_size": 64,
        "learning_rate": 3e-3,
        "weight_decay": 0.01,
        "smoothing": 0.05,
        "averaging": 0.9,
        "hide": 0.5,
        "rotation": 5.0,
        "shear": 0.1,
        "warp": 0.1,
        "jitter": 1.0,
        "seed": 1,
    }
    return TrainingSettings(**{**values, **changes})


def network(rows: tuple[Tensor, Tensor], two_stage: bool = False, seed: int = 0) -> StrokeNetwork:
    return build_network(learner, *rows, **SMALL, two_stage=two_stage, seed=seed)


# -- parts -----------------------------------------------------------------------------------------------------------


def test_a_hidden_point_weighs_all_states_alike_and_touches_only_its_neighbours(rows: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(0)
    encoder = StrokeEncoder(5, 16, window=1)
    strokes = rows[0][:20]
    gap = strokes.clone()
    gap[:, 6:8] = torch.nan  # the fourth point
    whole, with_gap = encoder(strokes), encoder(gap)
    assert torch.allclose(whole.sum(dim=-1), torch.ones(20, 8))
    assert torch.equal(with_gap[:, 3], torch.ones(20, 5))
    far = [0, 1, 5, 6, 7]
    assert torch.equal(whole[:, far], with_gap[:, far])
    assert not torch.allclose(whole[:, [2, 4]], with_gap[:, [2, 4]], atol=1e-3)


@pytest.mark.parametrize("two_stage", [True, False])
def test_gradients_of_the_chain_head_are_exact_where_estimates_are_negative(
    two_stage: bool, rows: tuple[Tensor, Tensor]
) -> None:
    net = network(rows, two_stage).double()
    assert isinstance(net.head, ChainHead)
    with torch.no_grad():
        weights = net.encoder(rows[0].double())
        signed = (net.head.estimates(weights) < 0).any(dim=1)
    assert bool(signed.any())
    weights = weights[signed][:4].requires_grad_(True)
    assert torch.autograd.gradcheck(net.head, (weights,))


def test_the_digit_with_the_largest_estimate_has_the_largest_logit(rows: tuple[Tensor, Tensor]) -> None:
    net = network(rows, two_stage=True)
    weights = net.encoder(hide_points(rows[0], 3, 0))
    estimates, logits = net.head.estimates(weights), net.head(weights)
    assert torch.equal(estimates.argmax(dim=1), logits.argmax(dim=1))
    assert torch.equal(estimates > 0, logits > 0)


def test_estimates_do_not_depend_on_the_scale_of_weights(rows: tuple[Tensor, Tensor]) -> None:
    net = network(rows, two_stage=True).double()
    weights = net.encoder(rows[0][:30].double())
    assert torch.allclose(net.head(weights), net.head(1e-4 * weights), atol=1e-8)


def test_without_any_point_the_two_stage_start_answers_with_the_digits_frequencies(rows: tuple[Tensor, Tensor]) -> None:
    net = network(rows, two_stage=True).double()
    estimate = net.head.estimates(torch.ones(1, 8, 6, dtype=torch.float64))[0]
    frequencies = torch.bincount(rows[1], minlength=10) / len(rows[1])
    assert torch.allclose(estimate / estimate.sum(), frequencies.double(), atol=0.02)


def test_the_two_stage_start_reproduces_its_quantiser(
    rows: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding_start, "REST", 0.0)
    seen: dict[str, Tensor] = {}
    model, encoder = PBP(stroke_graph(6, 6), root=[MIDDLE]), StrokeEncoder(6, 8, window=1)
    fit = model.fit
    monkeypatch.setattr(model, "fit", lambda columns: (seen.update(columns), fit(columns)))
    start_two_stage(model, encoder, *rows, seed=0)
    weights = encoder(rows[0])
    for t in range(8):
        assert torch.equal(weights[:, t].argmax(dim=1), seen[f"x{t + 1}"])
    assert torch.equal(seen["digit"], rows[1])
    assert 0.3 < float(weights.max(dim=-1).values.mean()) < 0.99  # soft, but not vague


def test_the_two_stage_start_knows_digits_before_any_descent(rows: tuple[Tensor, Tensor]) -> None:
    fresh = load_digits().train_x[1000:1400], load_digits().train_y[1000:1400]
    right = {}
    for two_stage in (True, False):
        predicted = network(rows, two_stage)(fresh[0]).argmax(dim=1)
        right[two_stage] = float((predicted == fresh[1]).float().mean())
    assert right[True] > 0.4 > right[False]


def test_a_remembering_start_hands_messages_past_hidden_points() -> None:
    model = PBP(stroke_graph(6, 12), root=[MIDDLE])
    start_remembering(model, seed=0)
    for t in range(1, 9):
        leaf = model._weights()[model.tree.leaf_of[f"x{t}"]]  # not observed: (1, 0, …, 0)
        assert torch.allclose(leaf.sum(dim=1), torch.eye(6, dtype=torch.float64)[0])
    weights = torch.ones(3, 8, 6, dtype=torch.float64)
    weights[1, 7] = torch.eye(6, dtype=torch.float64)[2]  # the last point alone is seen, four steps from the digit
    weights[2, 7] = torch.eye(6, dtype=torch.float64)[3]
    answers = ChainHead(model, 0.1)(weights)
    assert not torch.allclose(answers[1], answers[0], atol=0.1)
    assert not torch.allclose(answers[1], answers[2], atol=0.1)


@pytest.mark.parametrize("parameters", [500, 5_000, 60_000])
def test_the_twin_has_as_many_parameters_as_it_may(parameters: int) -> None:
    head = PerceptronHead(6, parameters)
    width = head.layers[0].out_features
    wider = (48 + 1) * (width + 1) + (width + 2) * (width + 1) + (width + 2) * 10
    assert count_parameters(head) <= parameters < wider


def test_the_twin_sees_hidden_and_undecided_points_alike() -> None:
    head = PerceptronHead(6, 5_000)
    assert torch.allclose(head(torch.ones(1, 8, 6)), head(torch.full((1, 8, 6), 1 / 6)), atol=1e-6)


def test_the_average_is_one_of_probabilities(rows: tuple[Tensor, Tensor]) -> None:
    members = [network(rows, two_stage=True), network(rows, seed=1)]
    logs = NetworkAverage(members)(rows[0][:9])
    expected = sum(torch.softmax(m(rows[0][:9]), dim=1) for m in members) / 2
    assert torch.allclose(logs.exp(), expected, atol=1e-6)
    with pytest.raises(StructureError, match="one or more members"):
        NetworkAverage([])


# -- training --------------------------------------------------------------------------------------------------------


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


# -- the run ---------------------------------------------------------------------------------------------------------


def run(output_dir: Path | None = None, **changes: Any) -> dict[str, Any]:
    data = DigitsDataModule(train_size=20)
    options = {
        **SMALL,
        "epochs": 2,
        "batch_size": 64,
        "hidden": (0, 4),
        "limit": 50,
        "trainer": QUIET,
        "verbose": False,
    }
    return run_digits_embedding(data, learner=learner, output_dir=output_dir, **{**options, **changes})


def without_timings(metrics: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in metrics.items() if not k.startswith("seconds")}


def test_a_run_measures_both_heads_and_writes_its_files(tmp_path: Path) -> None:
    metrics = run(tmp_path)
    names = ("accuracy", "accuracy_half_hidden", "log_loss", "calibration_error", "calibration_error_before")
    assert {f"{who}/{what}" for who in ("test", "twin") for what in names} <= set(metrics)
    assert not any("companion" in name for name in metrics)
    written = json.loads((tmp_path / "metrics.json").read_text())
    assert written == metrics
    table = pd.read_csv(tmp_path / "metrics.csv")
    assert list(table["hidden"]) == [0, 4]
    assert table["twin_accuracy"].tolist() == [metrics["hidden/0/twin"], metrics["hidden/4/twin"]]
    assert metrics["hidden/4/pbp"] == metrics["test/accuracy_half_hidden"]
    assert 0.9 < metrics["parameters/twin_heads"] / metrics["parameters/pbp_heads"] <= 1
    assert len(pd.read_csv(tmp_path / "training.csv")) == 4
    assert {p.name for p in (tmp_path / "checkpoints").iterdir()} == {
        "last.ckpt",
        "best.ckpt",
        "twin_last.ckpt",
        "twin_best.ckpt",
    }
    for name in ("hidden.png", "training.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    # A finished run has nothing left to train, and what it reads back gives the same answers.
    again = run(ckpt_path=str(tmp_path / "checkpoints" / "last.ckpt"))
    assert without_timings(again) == without_timings(metrics)


def test_a_companion_has_a_say_in_both_networks_answers(tmp_path: Path) -> None:
    options = {"companion": KERNEL_DENSITY, "copies": 1}
    metrics = run(tmp_path, companion_weight=1.0, companion_gain=0.5, **options)
    alone = run()
    for name in ("test", "twin"):
        assert metrics[f"{name}/accuracy"] == alone[f"{name}/accuracy"]  # a network by itself stays what it was
        # Two epochs on twenty strokes per digit teach a network little, a kernel density a lot.
        assert metrics[f"{name}_with_companion/accuracy"] > metrics[f"{name}/accuracy"] + 0.2
    assert metrics["hidden/4/pbp_companion"] == metrics["test_with_companion/accuracy_half_hidden"]
    assert list(pd.read_csv(tmp_path / "metrics.csv")["companion_accuracy"]) == [
        metrics["companion/accuracy"],
        metrics["companion/accuracy_half_hidden"],
    ]
    silent = run(companion_weight=0.0, companion_gain=0.0, **options)
    assert silent["test_with_companion/log_loss"] == pytest.approx(silent["test/log_loss"])


def test_same_seed_same_figures_and_another_seed_others() -> None:
    first = without_timings(run(seed=3))
    assert first == without_timings(run(seed=3))
    assert first["test/log_loss"] != run(seed=4)["test/log_loss"]


def test_bad_input_is_refused_with_a_remedy() -> None:
    with pytest.raises(StructureError, match="learner=pbp"):
        run_digits_embedding(DigitsDataModule(train_size=5), learner=KernelPBP(templates.pen_strokes()))
    with pytest.raises(StructureError, match="Choose learner=pen_average"):
        run(companion=learner)
    with pytest.raises(DataError, match="companion_weight: expected a number of at least 0"):
        run(companion=KERNEL_DENSITY, companion_weight=-1.0)
    with pytest.raises(DataError, match="companion_gain: expected a number of at least 0"):
        run(companion=KERNEL_DENSITY, companion_gain=math.nan)
    with pytest.raises(DataError, match="no file"):
        run(ckpt_path="nowhere.ckpt")
    with pytest.raises(DataError, match="at least one network"):
        run(two_stage=0, random=0)
    with pytest.raises(DataError, match="one or more numbers of points"):
        run(hidden=())
    with pytest.raises(DataError, match="at least 1 epoch"):
        run(epochs=0)
    with pytest.raises(DataError, match="learning_rate: expected a positive"):
        run(learning_rate=0.0)
    with pytest.raises(DataError, match="hide: expected a number from 0 to 1"):
        run(hide=1.5)
    with pytest.raises(StructureError, match="softness: expected a positive"):
        run(softness=0.0)
    with pytest.raises(StructureError, match="at least 4 to hold the quantiser"):
        run(width=3)
    with pytest.raises(StructureError, match="at least 2 states"):
        StrokeEncoder(1, 8, 1)
    with pytest.raises(ShapeError, match=r"expected shape \(batch, 16\)"):
        StrokeEncoder(4, 8, 1)(torch.zeros(3, 14))
    with pytest.raises(StructureError, match="too few"):
        PerceptronHead(6, 20)
