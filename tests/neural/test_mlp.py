"""Training of stage-1 nets: seeds, folds, interruption, divergence."""

from __future__ import annotations

import warnings

import pytest
import torch
from lightning.pytorch import Trainer
from torchpbp.learning.blanks import Blanks
from torchpbp.neural.net_training import Batch, Batches, NetTraining

from torchpbp import MLP, PBP, DiscreteNetwork, templates
from torchpbp.errors import CheckpointError, DataWarning
from torchpbp.features.maps import OneHot
from torchpbp.learning.regressions import Regression
from torchpbp.moments.rows import TrainingRows

QUIET = {"enable_progress_bar": False}
NETWORK = DiscreteNetwork.random(templates.hmm(4), seed=0)
DATA = NETWORK.sample(600, seed=1)


def model(**settings) -> PBP:
    """Its instruments are predictions alone: what training does shows in the operators."""
    usual = {"hidden": [8], "folds": 2, "epochs": 6, "linear": False, "trainer": QUIET}
    return PBP(NETWORK.graph, regressor=MLP(**{**usual, **settings}))


def operators(fitted: PBP) -> list[torch.Tensor]:
    """And the nets, which are part of the model."""
    assert fitted.stage1 is not None
    return [p.detach() for p in fitted.parameters()]


def same(a: PBP, b: PBP) -> bool:
    return all(torch.equal(x, y) for x, y in zip(operators(a), operators(b), strict=True))


def test_same_seed_same_operators_and_another_seed_others():
    first = model(seed=3).fit(DATA)
    assert same(first, model(seed=3).fit(DATA))
    assert not same(first, model(seed=4).fit(DATA))


def regression_rows(count: int, flip: torch.Tensor | None = None) -> tuple[TrainingRows, Regression]:
    """Predict y from x, which it copies nine times out of ten; some rows' y may be flipped."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(2, (count,), generator=generator)
    y = torch.where(torch.rand(count, generator=generator) < 0.9, x, 1 - x)
    if flip is not None:
        y = torch.where(flip, 1 - y, y)
    rows = TrainingRows.of({"x": x, "y": y}, {"x": OneHot(2), "y": OneHot(2)})
    eye = torch.eye(2, dtype=torch.float64)
    return rows, Regression("y", ("x",), (("y",),), (eye,), torch.zeros(2, dtype=torch.float64))


def test_no_row_has_a_say_in_its_own_prediction():
    rows, task = regression_rows(90)
    regressor = MLP(hidden=[8], folds=3, epochs=4, patience=None, trainer=QUIET)
    predictor = regressor.fit(rows, [task])
    everything = torch.arange(90)
    (before,) = predictor.predict(rows, everything)
    changed = predictor.folded.fold == 1
    other, _ = regression_rows(90, flip=changed)
    again = regressor.fit(other, [task])
    (after,) = again.predict(other, everything)
    assert torch.equal(again.folded.fold, predictor.folded.fold)
    torch.testing.assert_close(before[changed], after[changed], rtol=1e-5, atol=1e-6)  # trained in single precision
    assert not torch.isclose(before[~changed], after[~changed]).any()


def test_folds_and_batches_cover_all_rows_once():
    rows, task = regression_rows(100)
    predictor = MLP(folds=3, epochs=1, trainer=QUIET).fit(rows, [task])
    assert sorted(predictor.folded.fold.bincount().tolist()) == [33, 33, 34]
    shares = [Batches(100, 0, 37, 30, seed=5), Batches(100, 37, 63, 30, seed=5)]
    for sampler in shares:
        sampler.set_epoch(2)
    whole = Batches(100, 0, 100, 30, seed=5)
    whole.set_epoch(2)
    for parts, batch in zip(zip(*shares, strict=True), whole, strict=True):
        together = torch.cat([parts[0], parts[1] + 37])
        assert sorted(together.tolist()) == sorted(batch.tolist())
    assert sorted(torch.cat(list(whole)).tolist()) == list(range(100))
    other = Batches(100, 0, 100, 30, seed=5)
    assert not torch.equal(torch.cat(list(other)), torch.cat(list(whole)))


def test_interrupted_and_resumed_equals_uninterrupted(tmp_path, monkeypatch):
    expected = model().fit(DATA)
    epochs = 0
    original = NetTraining.on_validation_epoch_end

    def interrupted(self: NetTraining) -> None:
        nonlocal epochs
        epochs += 1
        if epochs == 3:
            raise RuntimeError("power cut")
        original(self)

    monkeypatch.setattr(NetTraining, "on_validation_epoch_end", interrupted)
    with pytest.raises(RuntimeError, match="power cut"):
        model(checkpoint=tmp_path).fit(DATA)
    assert list(tmp_path.glob("stage1_*/last.ckpt"))
    seen: list[int] = []
    monkeypatch.setattr(
        NetTraining, "on_validation_epoch_end", lambda self: (seen.append(self.current_epoch), original(self))[1]
    )
    resumed = model(checkpoint=tmp_path).fit(DATA)
    assert same(resumed, expected)
    assert seen[0] == 2  # two epochs were already done
    seen.clear()
    assert same(model(checkpoint=tmp_path).fit(DATA), expected)  # finished: nothing to train
    assert not seen


def test_fits_that_differ_do_not_share_a_training_state(tmp_path):
    other = NETWORK.sample(600, seed=2)
    expected = model().fit(other)
    model(checkpoint=tmp_path).fit(DATA)
    assert same(model(checkpoint=tmp_path).fit(other), expected)
    assert same(model(checkpoint=tmp_path, learning_rate=1e-4).fit(other), model(learning_rate=1e-4).fit(other))
    backwards = {v: x.flip(0) for v, x in other.items()}  # the same moments, but other rows in each fold
    assert same(model(checkpoint=tmp_path).fit(backwards), model().fit(backwards))
    assert len(list(tmp_path.iterdir())) == 4


def test_a_corrupt_training_state_raises(tmp_path):
    model(checkpoint=tmp_path).fit(DATA)
    (path,) = tmp_path.glob("*/last.ckpt")
    path.write_bytes(b"no checkpoint")
    with pytest.raises(CheckpointError, match="expected a training state, but it cannot be read"):
        model(checkpoint=tmp_path).fit(DATA)


def test_a_fit_that_stopped_early_is_not_trained_further(tmp_path, monkeypatch):
    settings = {"hidden": [32], "epochs": 200, "patience": 3, "learning_rate": 0.03, "checkpoint": tmp_path}
    expected = model(**settings).fit(DATA)
    epochs: list[int] = []
    original = NetTraining.on_validation_epoch_end
    monkeypatch.setattr(
        NetTraining, "on_validation_epoch_end", lambda self: (epochs.append(self.current_epoch), original(self))[1]
    )
    assert same(model(**settings).fit(DATA), expected)
    assert not epochs


def test_divergence_keeps_the_best_state_and_says_so(monkeypatch):
    steps = 0
    original = NetTraining.forward

    def sometimes_nan(self: NetTraining, batch: Batch, own: bool) -> torch.Tensor:
        nonlocal steps
        losses = original(self, batch, own)
        if self.training:
            steps += 1
            if steps > 5:
                return losses * torch.nan
        return losses

    monkeypatch.setattr(NetTraining, "forward", sometimes_nan)
    with pytest.warns(DataWarning, match="the loss became NaN in epoch"):
        fitted = model(epochs=50).fit(DATA)
    assert all(bool(torch.isfinite(p).all()) for p in operators(fitted))
    assert steps < 60  # it stopped


@pytest.mark.parametrize("patience", [None, 8])
def test_parameters_that_are_no_numbers_are_replaced_by_the_best_before(patience, monkeypatch):
    original = NetTraining.training_step

    def spoiled(self: NetTraining, batch: Batch, number: int) -> torch.Tensor:
        if self.current_epoch == 3:
            with torch.no_grad():
                next(self.nets.parameters()).fill_(torch.nan)
        return original(self, batch, number)

    expected = model(epochs=50, patience=patience)
    monkeypatch.setattr(NetTraining, "training_step", spoiled)
    with pytest.warns(DataWarning, match="the loss became NaN in epoch 4"):
        expected.fit(DATA)
    assert all(bool(torch.isfinite(p).all()) for p in operators(expected))


def test_training_stops_when_nothing_improves():
    epochs: list[int] = []

    class Counting(MLP):
        def _train(self, module, *args):
            super()._train(module, *args)
            epochs.append(int(module.trainer.current_epoch))

    regressor = Counting(hidden=[32], folds=2, epochs=400, patience=3, learning_rate=0.03, trainer=QUIET)
    PBP(NETWORK.graph, regressor=regressor).fit(DATA)
    assert epochs[0] < 200


def test_trainer_settings_reach_lightning(monkeypatch):
    seen = {}

    def recorded(self, *args, **kwargs):
        seen.update(kwargs)
        raise StopIteration

    monkeypatch.setattr(Trainer, "__init__", recorded)
    with pytest.raises(StopIteration), warnings.catch_warnings():
        model(trainer={"accelerator": "gpu", "devices": 4, "strategy": "ddp"}).fit(DATA)
    assert (seen["accelerator"], seen["devices"], seen["strategy"]) == ("gpu", 4, "ddp")


def test_values_are_hidden_in_a_share_of_the_rows_and_others_in_each_epoch():
    blanks = Blanks(4, 0.25, total=20_000, before=0, own=20_000, population=False, seed=3)
    first, second = blanks.seen(0), blanks.seen(1)
    assert first is not None
    assert first.shape == (20_000, 4)
    touched = float((~first.all(dim=1)).float().mean())
    assert 0.15 < touched < 0.25  # a row whose rate is low keeps all of its values
    assert abs(float((~first).float().mean()) - 0.125) < 0.01
    assert not torch.equal(first, second)
    assert torch.equal(first, blanks.seen(0))
    parts = [Blanks(4, 0.25, 20_000, before, own, False, 3).seen(0) for before, own in ((0, 9_000), (9_000, 11_000))]
    assert torch.equal(torch.cat(parts), first)  # however rows are shared among processes
    assert Blanks(4, 0.0, 20_000, 0, 20_000, False, 3).seen(0) is None


def test_hidden_values_are_part_of_training():
    assert not same(model(missing=0.0).fit(DATA), model(missing=0.5).fit(DATA))


def test_targets_that_do_not_fit_into_memory_are_computed_batch_by_batch(monkeypatch):
    expected = model(dtype=torch.float64).fit(DATA)
    monkeypatch.setattr("torchpbp.neural.net_training.KEPT_TARGETS", 0)
    for a, b in zip(operators(model(dtype=torch.float64).fit(DATA)), operators(expected), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)
