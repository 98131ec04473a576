"""Heads against exact answers: PBP against Bayes, the CRF against enumeration of all label sequences."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from tests.experiments.labelling.rows import DATA, PAIRS, fitted_head
from torchpbp.datasets import LabelledSignals
from torchpbp.experiments.labelling.heads import CRFHead, LabelHead, PBPHead, SignalEncoder, SoftmaxHead
from torchpbp.experiments.labelling.task import measured
from torchpbp.experiments.labelling.training import LabelModule

BATCH, LENGTH, LABELS = 3, 5, 4


@pytest.fixture(scope="module")
def exact_head() -> PBPHead:
    return PBPHead(PAIRS(DATA.network.graph).fit_population(DATA.network), DATA.names)


@pytest.fixture(scope="module")
def rows() -> LabelledSignals:
    return DATA.sample(300, seed=1)


@pytest.fixture
def crf() -> CRFHead:
    generator = torch.Generator().manual_seed(0)
    head = CRFHead(torch.zeros(1, LENGTH, dtype=torch.int64), LABELS)
    for parameter in head.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return head


@pytest.fixture
def scores() -> Tensor:
    return 2 * torch.randn(BATCH, LENGTH, LABELS, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


# -- PBP ---------------------------------------------------------------------------------------------------------


def test_a_pbp_head_with_exact_operators_and_evidence_is_bayes(exact_head: PBPHead, rows: LabelledSignals) -> None:
    with torch.no_grad():
        answer = exact_head(DATA.log_likelihood(rows.signals))
    assert torch.allclose(answer.exp(), DATA.posterior(rows.signals), atol=1e-7)


def test_its_loss_is_the_conditional_log_likelihood(exact_head: PBPHead, rows: LabelledSignals) -> None:
    scores = DATA.log_likelihood(rows.signals)
    own = scores.gather(2, rows.labels.unsqueeze(2)).sum(dim=(1, 2))
    prior = DATA.network.log_evidence({v: rows.labels[:, t] for t, v in enumerate(DATA.names)})
    evidence = DATA.network.log_evidence({v: scores[:, t].exp() for t, v in enumerate(DATA.names)})
    expected = -(own + prior - evidence).mean() / DATA.length
    with torch.no_grad():
        assert float(exact_head.loss(scores, rows.labels)) == pytest.approx(float(expected), abs=1e-7)


def test_a_crf_cannot_be_bayes_here_even_with_exact_evidence(rows: LabelledSignals) -> None:
    """Pairs of labels do not show the direction: more data would not help the CRF."""
    crf = CRFHead(DATA.sample_labels(50_000, seed=2), DATA.labels)
    scores, exact = DATA.log_likelihood(rows.signals), DATA.posterior(rows.signals)
    with torch.no_grad():
        first_order = measured(crf(scores), exact, rows.labels)["kl"]
        alone = measured(SoftmaxHead()(scores), exact, rows.labels)["kl"]
        fitted = measured(fitted_head()(scores), exact, rows.labels)["kl"]
    assert fitted < 0.02
    assert 0.1 < first_order < alone


# -- CRF ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, LENGTH])
def test_marginals_of_the_crf_against_enumeration(crf: CRFHead, scores: Tensor, length: int) -> None:
    scores = scores[:, :length]
    paths = torch.tensor(list(itertools.product(range(LABELS), repeat=length)))
    totals = []
    for path in paths.tolist():
        total = crf.start[path[0]] + crf.end[path[-1]]
        total = total + sum(crf.transitions[a, b] for a, b in itertools.pairwise(path))
        totals.append(total + sum(scores[:, t, label] for t, label in enumerate(path)))
    weights = torch.softmax(torch.stack(totals, dim=1), dim=1)  # (batch, paths)
    one_hot = torch.nn.functional.one_hot(paths, LABELS).double()  # (paths, length, labels)
    assert torch.allclose(crf(scores).exp(), torch.einsum("bp,ptl->btl", weights, one_hot))


def test_long_sequences_stay_finite(crf: CRFHead) -> None:
    scores = 50 * torch.randn(2, 400, LABELS, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    assert crf(scores).exp().sum(dim=2).sub(1).abs().max() < 1e-9


def test_gradients_of_the_crf(crf: CRFHead, scores: Tensor) -> None:
    assert torch.autograd.gradcheck(crf, scores[:, :3].requires_grad_())


def test_labels_give_their_markov_chain() -> None:
    labels = torch.tensor([[0, 1, 0, 1], [0, 1, 1, 0], [1, 0, 1, 1]])
    crf = CRFHead(labels, 2, pseudo_count=0.0)
    assert torch.allclose(crf.start.exp(), torch.tensor([2 / 3, 1 / 3], dtype=torch.float64))
    expected = torch.tensor([[0.0, 1.0], [3 / 5, 2 / 5]], dtype=torch.float64)  # 0 was followed by 1 four times of four
    assert torch.allclose(crf.transitions.exp(), expected)
    second = crf(torch.zeros(1, 2, 2, dtype=torch.float64)).exp()[0, 1]
    assert torch.allclose(second, crf.start.exp() @ expected)


# -- encoder -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pbp", "crf"])
def test_gradients_reach_encoder_and_head(kind: str, rows: LabelledSignals) -> None:
    head: LabelHead = fitted_head(500) if kind == "pbp" else CRFHead(DATA.sample_labels(500, seed=3), DATA.labels)
    torch.manual_seed(0)
    module = LabelModule(SignalEncoder(2, DATA.labels), head, 1e-2, 1e-2)
    module.training_step(rows, 0).backward()
    gradients = {name: p.grad for name, p in module.named_parameters()}
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
