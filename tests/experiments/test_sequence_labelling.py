"""Sequence labelling: heads against exact answers, training, and the whole experiment."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from torchpbp import PBP, KernelPBP, templates
from torchpbp.datasets import LabelledSignals, LabelSequences
from torchpbp.errors import ArgumentError, DataError, ShapeError, StructureError
from torchpbp.experiments import run_sequence_labelling
from torchpbp.experiments.labelling.heads import CRFHead, LabelHead, PBPHead, SignalEncoder, SoftmaxHead
from torchpbp.experiments.labelling.run import measure
from torchpbp.experiments.labelling.stages import CPU, log_posteriors, train_heads
from torchpbp.experiments.labelling.training import LabelModule, row_losses, train_labels

TASK = LabelSequences(length=6)
PAIRS = functools.partial(PBP, singles=2)
TINY = {"sizes": [20], "label_only": [0, 300], "repeats": 2, "test_rows": 30, "steps": 10, "refining_steps": 4}


@pytest.fixture(scope="module")
def exact_head() -> PBPHead:
    return PBPHead(PAIRS(TASK.network.graph).fit_population(TASK.network), TASK.names)


@pytest.fixture(scope="module")
def rows() -> LabelledSignals:
    return TASK.sample(300, seed=1)


def fitted_head(count: int = 3_000, seed: int = 9) -> PBPHead:
    labels = TASK.sample_labels(count, seed)
    return PBPHead(PAIRS(TASK.network.graph).fit({v: labels[:, t] for t, v in enumerate(TASK.names)}), TASK.names)


def module(head: LabelHead, rate: float = 1e-2, head_rate: float = 1e-2, **options: int) -> LabelModule:
    torch.manual_seed(0)
    return LabelModule(SignalEncoder(2, TASK.labels, **options), head, rate, head_rate)


def parts(rows: LabelledSignals, train: int) -> tuple[LabelledSignals, LabelledSignals]:
    return LabelledSignals(*(x[:train] for x in rows)), LabelledSignals(*(x[train:] for x in rows))


# -- heads -------------------------------------------------------------------------------------------------------


def test_pbp_head_with_exact_operators_and_evidence_is_bayes(exact_head: PBPHead, rows: LabelledSignals) -> None:
    with torch.no_grad():
        answer = exact_head(TASK.log_likelihood(rows.signals))
    assert torch.allclose(answer.exp(), TASK.posterior(rows.signals), atol=1e-7)


def test_joint_loss_is_the_conditional_log_likelihood(exact_head: PBPHead, rows: LabelledSignals) -> None:
    scores = TASK.log_likelihood(rows.signals)
    own = scores.gather(2, rows.labels.unsqueeze(2)).sum(dim=(1, 2))
    prior = TASK.network.log_evidence({v: rows.labels[:, t] for t, v in enumerate(TASK.names)})
    evidence = TASK.network.log_evidence({v: scores[:, t].exp() for t, v in enumerate(TASK.names)})
    expected = -(own + prior - evidence).mean() / TASK.length
    with torch.no_grad():
        assert float(exact_head.loss(scores, rows.labels)) == pytest.approx(float(expected), abs=1e-7)


def test_a_crf_cannot_be_bayes_here_even_with_exact_evidence(exact_head: PBPHead, rows: LabelledSignals) -> None:
    """Pairs of labels do not show the direction: what the CRF lacks is not data."""
    crf = CRFHead(TASK.sample_labels(50_000, seed=2), TASK.labels)
    scores, exact = TASK.log_likelihood(rows.signals), TASK.posterior(rows.signals)
    with torch.no_grad():
        first_order = measure(crf(scores), exact, rows.labels)["kl"]
        alone = measure(SoftmaxHead()(scores), exact, rows.labels)["kl"]
        fitted = measure(fitted_head()(scores), exact, rows.labels)["kl"]
    assert fitted < 0.02
    assert 0.1 < first_order < alone


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("kind", ["pbp", "crf"])
def test_gradients_reach_encoder_and_head(kind: str, joint: bool, rows: LabelledSignals) -> None:
    labels = TASK.sample_labels(500, seed=3)
    head: LabelHead = CRFHead(labels, TASK.labels, joint=joint)
    if kind == "pbp":
        fitted = fitted_head(500).layer.model
        assert isinstance(fitted, PBP)
        head = PBPHead(fitted, TASK.names, joint=joint)
    trained = module(head)
    trained.training_step(rows, 0).backward()
    gradients = {name: p.grad for name, p in trained.named_parameters() if not name.endswith("crf.end")}
    assert len(gradients) > 6
    for name, gradient in gradients.items():
        assert gradient is not None, name
        assert gradient.isfinite().all(), name
        assert gradient.abs().sum() > 0, name


@pytest.mark.parametrize("window", [1, 3, 5])
def test_the_encoder_sees_its_window_and_no_more(window: int) -> None:
    torch.manual_seed(0)
    encoder = SignalEncoder(2, 3, window)
    signals = torch.randn(1, 9, 2, dtype=torch.float64, requires_grad=True)
    encoder(signals)[0, 4].sum().backward()
    assert signals.grad is not None
    seen = signals.grad[0].abs().sum(dim=1).nonzero().flatten().tolist()
    assert seen == list(range(4 - window // 2, 5 + window // 2))


def test_measures() -> None:
    exact = torch.tensor([[[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]], dtype=torch.float64)
    answer = torch.tensor([[[0.25, 0.75, 0.0], [0.5, 0.25, 0.25]]], dtype=torch.float64)
    found = measure(answer.log(), exact, torch.tensor([[0, 0]]))
    kl = (0.5 * math.log(2) + 0.5 * math.log(2 / 3) + math.log(2)) / 2
    assert found == pytest.approx({"kl": kl, "log_loss": (math.log(4) + math.log(2)) / 2, "accuracy": 0.5})
    assert measure(exact.clamp(min=1e-300).log(), exact, torch.tensor([[0, 0]]))["kl"] == 0


# -- training ----------------------------------------------------------------------------------------------------


def test_training_ends_with_the_best_parameters_seen(rows: LabelledSignals) -> None:
    train, validation = parts(rows, 200)
    trained = module(SoftmaxHead())
    with torch.no_grad():
        before = float(row_losses(trained, validation).mean())
    facts = train_labels(trained, train, validation, CPU, 120, seed=0, check_every=10)
    with torch.no_grad():
        after = float(row_losses(trained, validation).mean())
    assert after == pytest.approx(facts["validation_loss"], rel=1e-6)
    assert after < before - 0.2
    assert 0 < facts["best_step"] <= facts["steps"] <= 120


def test_steps_that_spoil_a_good_fit_are_undone(rows: LabelledSignals) -> None:
    train, validation = parts(rows, 200)
    trained = module(fitted_head())
    spoiling = LabelModule(trained.encoder, trained.head, 0.0, head_rate=1.0)
    before = {k: v.clone() for k, v in spoiling.state_dict().items()}
    facts = train_labels(spoiling, train, validation, CPU, 4, seed=0, check_every=2, start_counts=True)
    assert facts["best_step"] == 0
    assert facts["steps"] == 4
    for name, value in spoiling.state_dict().items():
        assert torch.equal(value, before[name]), name
    without = LabelModule(trained.encoder, trained.head, 0.0, head_rate=1.0)
    assert train_labels(without, train, validation, CPU, 4, seed=0, check_every=2)["best_step"] > 0


def test_refining_repairs_a_poor_fit(rows: LabelledSignals) -> None:
    """An encoder that is exact, on a head fitted to few label sequences: only the head can get better."""

    class Exact(SignalEncoder):
        def forward(self, signals: Tensor) -> Tensor:
            return TASK.log_likelihood(signals) + 0 * super().forward(signals)

    train, validation = parts(TASK.sample(900, seed=4), 600)
    refined = LabelModule(Exact(2, TASK.labels), fitted_head(40), 0.0, 3e-3)
    exact = TASK.posterior(rows.signals)
    with torch.no_grad():
        before = measure(refined(rows.signals), exact, rows.labels)["kl"]
    facts = train_labels(refined, train, validation, CPU, 100, seed=0, check_every=10, start_counts=True)
    with torch.no_grad():
        after = measure(refined(rows.signals), exact, rows.labels)["kl"]
    assert facts["best_step"] > 0
    assert after < 0.7 * before


def test_signals_that_are_not_numbers(rows: LabelledSignals) -> None:
    train, validation = parts(rows, 200)
    spoilt = LabelledSignals(torch.full_like(validation.signals, math.nan), validation.labels)
    with pytest.raises(DataError, match="validation loss was never finite"):
        train_labels(module(SoftmaxHead()), train, spoilt, CPU, 10, seed=0)


def test_nan_in_training_does_not_reach_the_result(rows: LabelledSignals) -> None:
    train, validation = parts(rows, 200)
    signals = train.signals.clone()
    signals[:, 0] = math.nan
    trained = module(CRFHead(train.labels, TASK.labels))
    spoilt = LabelledSignals(signals, train.labels)
    facts = train_labels(trained, spoilt, validation, CPU, 20, seed=0, check_every=5, start_counts=True)
    assert facts["best_step"] == 0
    assert facts["steps"] == 5  # stopped at the first look
    assert all(p.isfinite().all() for p in trained.parameters())


# -- the experiment ----------------------------------------------------------------------------------------------


def test_pbp_uses_label_sequences_where_a_crf_cannot(rows: LabelledSignals) -> None:
    train, validation = parts(TASK.sample(250, seed=6), 200)
    more = {2_000: TASK.sample_labels(2_000, seed=7)}
    exact = TASK.posterior(rows.signals)
    kls = {}
    for _, found in train_heads(TASK, PAIRS, train, validation, more, steps=250, refining_steps=0):
        if found.stage != "refined":
            with torch.no_grad():
                kls[found.head] = measure(found.module(rows.signals), exact, rows.labels)["kl"]
    assert kls["pbp"] < 0.5 * kls["crf"]
    assert kls["crf"] < kls["softmax"]


def test_an_encoder_with_a_window_learns_through_the_head_what_to_leave_to_it(rows: LabelledSignals) -> None:
    """Trained alone it answers for its neighbours too, and the chain counts them twice."""
    train, validation = parts(TASK.sample(400, seed=8), 320)
    more = {2_000: TASK.sample_labels(2_000, seed=7)}
    exact = TASK.posterior(rows.signals)
    options = {"window": 5, "steps": 200, "refining_steps": 0, "through_steps": 150}
    kls = {}
    for _, found in train_heads(TASK, PAIRS, train, validation, more, **options):
        kls[found.head, found.stage] = measure(log_posteriors(found.module, rows.signals), exact, rows.labels)["kl"]
        if found.stage == "through":
            assert not any(p.requires_grad for p in found.module.head.parameters())
    assert kls["pbp", "through"] < 0.7 * kls["pbp", "fitted"]
    assert kls["pbp", "through"] < 0.7 * kls["crf", "through"]


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("run")
    options = {**TINY, "through_steps": 4, "from_noise": True, "output_dir": folder, "seed": 5}
    return run_sequence_labelling(TASK, PAIRS, **options), folder


def test_files(small_run: tuple[dict[str, Any], Path]) -> None:
    metrics, folder = small_run
    assert {p.name for p in folder.iterdir()} == {"metrics.json", "metrics.csv", "curves.png", "posteriors.png"}
    assert json.loads((folder / "metrics.json").read_text()) == metrics
    table = pd.read_csv(folder / "metrics.csv")
    assert len(table) == 2 * (1 + 2 * 7)  # repeats, softmax + label_only · (crf, pbp: three stages; noise)
    assert not table.duplicated(["series", "rows", "repeat"]).any()
    assert (table["kl"] > 0).all()
    mean = table[(table["series"] == "pbp fitted +300 labels") & (table["rows"] == 20)]["kl"].mean()
    assert metrics["kl/pbp fitted +300 labels/20"] == pytest.approx(mean)
    assert 0.5 < metrics["bayes/accuracy"] < 1
    for name in ("curves.png", "posteriors.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")


def test_same_seed_same_figures(small_run: tuple[dict[str, Any], Path], capsys: pytest.CaptureFixture[str]) -> None:
    metrics, _ = small_run
    again = run_sequence_labelling(TASK, PAIRS, **TINY, seed=5, verbose=False)
    other = run_sequence_labelling(TASK, PAIRS, **{**TINY, "label_only": [0]}, seed=6, verbose=False)
    assert capsys.readouterr().out == ""
    same = {k: v for k, v in again.items() if "seconds" not in k}
    assert len([k for k in same if k.startswith(("kl", "log_loss", "accuracy"))]) == 6 * 9
    assert same == {k: metrics[k] for k in same}  # the run from noise beside it changes nothing
    assert again["kl/softmax/20"] != other["kl/softmax/20"]


def test_bad_settings() -> None:
    def run(**options: Any) -> None:
        run_sequence_labelling(**{"data": TASK, "learner": PAIRS, "verbose": False, **options})

    with pytest.raises(ArgumentError, match=r"sizes: expected one or more whole numbers of at least 10, got \[5\]"):
        run(sizes=[5])
    with pytest.raises(
        ArgumentError, match=r"label_only: expected one or more whole numbers of at least 0, got \[-1\]"
    ):
        run(label_only=[-1])
    with pytest.raises(ArgumentError, match="repeats: expected a whole number of at least 1, got 0"):
        run(repeats=0)
    with pytest.raises(ArgumentError, match=r"window: expected an odd number of sites.*got 2"):
        run(window=2)
    with pytest.raises(StructureError, match="expected a learner that takes the model's graph, got a KernelPBP"):
        run(learner=KernelPBP(templates.pen_strokes()))


def test_heads_reject_what_does_not_fit(exact_head: PBPHead) -> None:
    with pytest.raises(ShapeError, match=r"scores: expected shape \(batch, 6, labels\), got \(2, 5, 3\)"):
        exact_head(torch.zeros(2, 5, 3, dtype=torch.float64))
    model = exact_head.layer.model
    with pytest.raises(DataError, match="names: expected the model's observables"):
        PBPHead(model, TASK.names[:-1])
    with pytest.raises(DataError, match="width: expected at least 1 hidden unit, got 0"):
        SignalEncoder(2, 3, width=0)
