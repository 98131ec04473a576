"""The CRF against enumeration and against the package pytorch-crf."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from torchpbp.errors import DataError, ShapeError
from torchpbp.experiments.labelling.crf import LinearChainCRF

BATCH, LENGTH, LABELS = 3, 5, 4


@pytest.fixture
def crf() -> LinearChainCRF:
    generator = torch.Generator().manual_seed(0)
    model = LinearChainCRF(LABELS).double()
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


@pytest.fixture
def scores() -> Tensor:
    return 2 * torch.randn(BATCH, LENGTH, LABELS, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def enumerated(crf: LinearChainCRF, scores: Tensor) -> tuple[Tensor, Tensor]:
    """All paths and their log-probabilities, (paths, length) and (batch, paths)."""
    paths = torch.tensor(list(itertools.product(range(scores.shape[2]), repeat=scores.shape[1])))
    totals = []
    for path in paths.tolist():
        total = crf.start[path[0]] + crf.end[path[-1]]
        total = total + sum(crf.transitions[a, b] for a, b in itertools.pairwise(path))
        totals.append(total + sum(scores[:, t, label] for t, label in enumerate(path)))
    return paths, torch.log_softmax(torch.stack(totals, dim=1), dim=1)


@pytest.mark.parametrize("length", [1, 2, LENGTH])
def test_against_enumeration(crf: LinearChainCRF, scores: Tensor, length: int) -> None:
    scores = scores[:, :length]
    paths, logs = enumerated(crf, scores)
    chosen = torch.tensor([0, len(paths) // 2, len(paths) - 1])
    assert torch.allclose(crf.log_likelihood(scores, paths[chosen]), logs[torch.arange(BATCH), chosen])
    one_hot = torch.nn.functional.one_hot(paths, LABELS).double()  # (paths, length, labels)
    marginals = torch.einsum("bp,ptl->btl", logs.exp(), one_hot)
    assert torch.allclose(crf.log_marginals(scores).exp(), marginals)
    assert torch.equal(crf.decode(scores), paths[logs.argmax(dim=1)])


def test_against_pytorch_crf(crf: LinearChainCRF, scores: Tensor) -> None:
    torchcrf = pytest.importorskip("torchcrf", reason="pip install pytorch-crf")
    other = torchcrf.CRF(LABELS, batch_first=True).double()
    other.start_transitions.data = crf.start.data
    other.end_transitions.data = crf.end.data
    other.transitions.data = crf.transitions.data
    labels = torch.randint(LABELS, (BATCH, LENGTH), generator=torch.Generator().manual_seed(2))
    ours, theirs = crf.log_likelihood(scores, labels), other(scores, labels, reduction="none")
    assert torch.allclose(ours, theirs)
    assert crf.decode(scores).tolist() == other.decode(scores)
    ours.sum().backward()
    theirs.sum().backward()
    assert torch.allclose(crf.transitions.grad, other.transitions.grad)
    assert torch.allclose(crf.start.grad, other.start_transitions.grad)
    assert torch.allclose(crf.end.grad, other.end_transitions.grad)


def test_long_sequences_stay_finite(crf: LinearChainCRF) -> None:
    scores = 50 * torch.randn(2, 400, LABELS, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    assert crf.log_marginals(scores).exp().sum(dim=2).sub(1).abs().max() < 1e-9
    assert crf.log_likelihood(scores, crf.decode(scores)).isfinite().all()


def test_gradients(crf: LinearChainCRF, scores: Tensor) -> None:
    assert torch.autograd.gradcheck(crf.log_marginals, scores[:, :3].requires_grad_())


def test_labels_give_their_markov_chain() -> None:
    labels = torch.tensor([[0, 1, 0, 1], [0, 1, 1, 0], [1, 0, 1, 1]])
    crf = LinearChainCRF(2).double().fit_labels(labels, pseudo_count=0.0)
    assert torch.allclose(crf.start.exp(), torch.tensor([2 / 3, 1 / 3], dtype=torch.float64))
    expected = torch.tensor([[0.0, 1.0], [3 / 5, 2 / 5]], dtype=torch.float64)  # 0 was followed by 1 four times of four
    assert torch.allclose(crf.transitions.exp(), expected)
    second = crf.log_marginals(torch.zeros(1, 2, 2, dtype=torch.float64)).exp()[0, 1]
    assert torch.allclose(second, crf.start.exp() @ expected)


def test_bad_input(crf: LinearChainCRF, scores: Tensor) -> None:
    with pytest.raises(DataError, match="num_labels: expected at least 1, got 0"):
        LinearChainCRF(0)
    with pytest.raises(ShapeError, match=r"scores: expected shape \(batch, length, 4\), got \(3, 5, 3\)"):
        crf.decode(scores[:, :, :3])
    with pytest.raises(ShapeError, match=r"labels: expected shape \(3, 5\) as the scores, got \(3, 4\)"):
        crf.log_likelihood(scores, torch.zeros(3, 4, dtype=torch.int64))
    with pytest.raises(DataError, match="labels: expected numbers from 0 to 3, got 0…4"):
        crf.fit_labels(torch.tensor([[0, 4]]))
    with pytest.raises(ShapeError, match=r"labels: expected shape \(rows, length\), got \(3,\)"):
        crf.fit_labels(torch.zeros(3, dtype=torch.int64))
