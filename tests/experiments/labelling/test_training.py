"""Training of encoders with heads: the best parameters are kept, and fits are not spoilt."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.experiments.labelling.rows import DATA, PAIRS, TRAINER, fitted_head, parts
from torchpbp.datasets import LabelledSignals
from torchpbp.errors import DataError
from torchpbp.experiments.labelling.heads import CRFHead, LabelHead, SignalEncoder, SoftmaxHead
from torchpbp.experiments.labelling.task import measured
from torchpbp.experiments.labelling.training import LabelModule, row_losses, train_heads, train_labels


@pytest.fixture(scope="module")
def rows() -> LabelledSignals:
    return DATA.sample(300, seed=1)


def module(head: LabelHead, rate: float = 1e-2, head_rate: float = 1e-2) -> LabelModule:
    torch.manual_seed(0)
    return LabelModule(SignalEncoder(2, DATA.labels), head, rate, head_rate)


def divergence(trained: LabelModule, rows: LabelledSignals) -> float:
    with torch.no_grad():
        return measured(trained(rows.signals), DATA.posterior(rows.signals), rows.labels)["kl"]


def test_training_ends_with_the_best_parameters_seen(rows: LabelledSignals) -> None:
    train, validation = parts(rows, 200)
    trained = module(SoftmaxHead())
    before = float(row_losses(trained, validation).mean())
    facts = train_labels(trained, train, validation, TRAINER, 120, seed=0, check_every=10)
    after = float(row_losses(trained, validation).mean())
    assert after == pytest.approx(facts["validation_loss"], rel=1e-6)
    assert after < before - 0.2
    assert 0 < facts["best_step"] <= facts["steps"] <= 120


def test_a_trainer_that_ends_before_the_first_validation(rows: LabelledSignals) -> None:
    train, validation = parts(rows, 200)
    trained = module(SoftmaxHead())
    facts = train_labels(trained, train, validation, partial(TRAINER, max_epochs=1), 120, seed=0)
    assert facts["best_step"] == facts["steps"] == 6  # batches of 32 rows
    assert float(row_losses(trained, validation).mean()) == pytest.approx(facts["validation_loss"])


def test_steps_that_spoil_a_good_fit_are_undone(rows: LabelledSignals) -> None:
    train, validation = parts(rows, 200)
    trained = module(fitted_head())
    spoiling = LabelModule(trained.encoder, trained.head, 0.0, head_rate=1.0)
    before = {k: v.clone() for k, v in spoiling.state_dict().items()}
    facts = train_labels(spoiling, train, validation, TRAINER, 4, seed=0, check_every=2, start_counts=True)
    assert facts["best_step"] == 0
    assert facts["steps"] == 4
    for name, value in spoiling.state_dict().items():
        assert torch.equal(value, before[name]), name
    without = LabelModule(trained.encoder, trained.head, 0.0, head_rate=1.0)
    assert train_labels(without, train, validation, TRAINER, 4, seed=0, check_every=2)["best_step"] > 0


def test_refining_repairs_a_poor_fit(rows: LabelledSignals) -> None:
    """An encoder that is exact, on a head fitted to few label sequences: only the head can get better."""

    class Exact(SignalEncoder):
        def forward(self, signals: Tensor) -> Tensor:
            return DATA.log_likelihood(signals) + 0 * super().forward(signals)

    train, validation = parts(DATA.sample(900, seed=4), 600)
    refined = LabelModule(Exact(2, DATA.labels), fitted_head(40), 0.0, 3e-3)
    before = divergence(refined, rows)
    facts = train_labels(refined, train, validation, TRAINER, 100, seed=0, check_every=10, start_counts=True)
    assert facts["best_step"] > 0
    assert divergence(refined, rows) < 0.7 * before


def test_signals_that_are_not_numbers(rows: LabelledSignals) -> None:
    train, validation = parts(rows, 200)
    spoilt = LabelledSignals(torch.full_like(validation.signals, math.nan), validation.labels)
    with pytest.raises(DataError, match="validation loss was never finite"):
        train_labels(module(SoftmaxHead()), train, spoilt, TRAINER, 10, seed=0)


def test_nan_in_training_does_not_reach_the_result(rows: LabelledSignals) -> None:
    train, validation = parts(rows, 200)
    signals = train.signals.clone()
    signals[:, 0] = math.nan
    trained = module(CRFHead(train.labels, DATA.labels))
    spoilt = LabelledSignals(signals, train.labels)
    facts = train_labels(trained, spoilt, validation, TRAINER, 20, seed=0, check_every=5, start_counts=True)
    assert facts["best_step"] == 0
    assert facts["steps"] == 5  # stopped at the first validation
    assert all(p.isfinite().all() for p in trained.parameters())


def test_pbp_uses_label_sequences_where_a_crf_cannot(rows: LabelledSignals) -> None:
    train, validation = parts(DATA.sample(250, seed=6), 200)
    more = {2_000: DATA.sample_labels(2_000, seed=7)}
    found = train_heads(DATA, PAIRS, train, validation, more, TRAINER, steps=250, refining_steps=0)
    kls = {trained.series: divergence(trained.module, rows) for trained in found}
    assert list(kls) == ["softmax", "crf fitted +2000 labels", "pbp fitted +2000 labels"]
    assert kls["pbp fitted +2000 labels"] < 0.5 * kls["crf fitted +2000 labels"]
    assert kls["crf fitted +2000 labels"] < kls["softmax"]


def test_an_encoder_with_a_window_leaves_neighbours_to_the_head_it_is_trained_through(rows: LabelledSignals) -> None:
    """Trained alone it answers for its neighbours too, and the chain counts them twice."""
    train, validation = parts(DATA.sample(400, seed=8), 320)
    more = {2_000: DATA.sample_labels(2_000, seed=7)}
    options: dict[str, Any] = {"window": 5, "steps": 200, "refining_steps": 0, "through_steps": 150}
    kls = {}
    for found in train_heads(DATA, PAIRS, train, validation, more, TRAINER, **options):
        kls[found.head, found.stage] = divergence(found.module, rows)
        if found.stage == "through":
            assert not any(p.requires_grad for p in found.module.head.parameters())
    assert kls["pbp", "through"] < 0.7 * kls["pbp", "fitted"]
    assert kls["pbp", "through"] < 0.7 * kls["crf", "through"]
