"""An encoder of signals, and heads that turn its scores into posteriors of labels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchpbp.models.pbp import PBP
from torchpbp.neural.layer import PBPLayer


class SignalEncoder(nn.Module):
    """Scores of the labels of each site from a window of signals around it.

    Args:
        channels: numbers per site.
        num_labels: number of labels.
        window: sites that it sees, an odd number; 1: the site alone.
        width: hidden units of both layers.
    """

    def __init__(self, channels: int, num_labels: int, window: int = 1, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(channels, width, window, padding=window // 2),
            nn.Tanh(),
            nn.Conv1d(width, width, 1),
            nn.Tanh(),
            nn.Conv1d(width, num_labels, 1),
        ).double()

    def forward(self, signals: Tensor) -> Tensor:
        """(batch, length, channels) -> (batch, length, labels)."""
        return self.layers(signals.transpose(1, 2)).transpose(1, 2)


class LabelHead(nn.Module):
    """(batch, length, labels) scores of all sites -> log-posterior of each site's label, of the same shape."""

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Mean over sites of -log posterior of the true label.

        Args:
            scores: (batch, length, labels).
            labels: (batch, length) int64.
        """
        return -self(scores).gather(2, labels.unsqueeze(2)).mean()


class SoftmaxHead(LabelHead):
    """Each site's label from its own scores."""

    def forward(self, scores: Tensor) -> Tensor:
        return torch.log_softmax(scores, dim=2)


class CRFHead(LabelHead):
    """P(labels | scores) ∝ exp(start + Σ score of each label + Σ transition of each pair of neighbours + end).

    Exact in log-space by the forward-backward algorithm, for batches of sequences of one length. It starts from the Markov
    chain of label sequences: log-frequencies of first labels and of pairs of neighbours. It is trained on each site's
    marginal, which validation rows preferred to the probability of all labels: marginals are measured, and the chain is
    more than pairs of labels.

    Args:
        labels: (rows, length) int64 label sequences; no signals are needed.
        num_labels: number of labels.
        pseudo_count: added to each count, so that no pair is impossible.

    Attributes:
        start: (labels,) score of the first label.
        transitions: (labels, labels) score of a label (column) after another (row).
        end: (labels,) score of the last label.
    """

    def __init__(self, labels: Tensor, num_labels: int, pseudo_count: float = 1.0) -> None:
        super().__init__()
        first = torch.bincount(labels[:, 0], minlength=num_labels).double() + pseudo_count
        codes = (labels[:, :-1] * num_labels + labels[:, 1:]).flatten()
        pairs = torch.bincount(codes, minlength=num_labels**2).reshape(num_labels, -1).double() + pseudo_count
        self.start = nn.Parameter((first / first.sum()).log())
        self.transitions = nn.Parameter((pairs / pairs.sum(dim=1, keepdim=True)).log())
        self.end = nn.Parameter(torch.zeros_like(first))

    def forward(self, scores: Tensor) -> Tensor:
        sites = range(1, scores.shape[1])
        forward = [self.start + scores[:, 0]]  # (batch, labels) log-weight of the paths that end in a label
        for t in sites:
            forward.append(torch.logsumexp(forward[-1].unsqueeze(2) + self.transitions, dim=1) + scores[:, t])
        backward = [self.end.expand_as(forward[-1])]
        for t in reversed(sites):
            arrived = (backward[-1] + scores[:, t]).unsqueeze(1)  # (batch, 1, label after)
            backward.append(torch.logsumexp(self.transitions + arrived, dim=2))
        both = torch.stack(forward, dim=1) + torch.stack(backward[::-1], dim=1)
        return torch.log_softmax(both, dim=2)


class PBPHead(LabelHead):
    """A PBP model of the labels as a layer: scores become evidence on each label, its answers are the posteriors.

    Args:
        model: fitted to label sequences, with one observable per site.
        names: its observables, site by site.
    """

    def __init__(self, model: PBP, names: Sequence[str]) -> None:
        super().__init__()
        self.layer, self.names = PBPLayer(model), tuple(names)

    def forward(self, scores: Tensor) -> Tensor:
        answers = self.layer(self._evidence(scores))
        return torch.stack([answers[v] for v in self.names], dim=1).log()

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Mean over sequences of -log P(all labels | evidence) / length.

        Validation rows preferred it to each site's posterior: a floored answer of one site has no useful slope, and the
        probability of all labels seldom needs a floor.
        """
        truth = {v: labels[:, t] for t, v in enumerate(self.names)}
        return -self.layer.given(self._evidence(scores)).log_prob(truth).mean() / labels.shape[1]

    def _evidence(self, scores: Tensor) -> dict[str, Tensor]:
        """Weights of each site's labels; their scale does not matter."""
        weights = torch.softmax(scores, dim=2)
        return {v: weights[:, t] for t, v in enumerate(self.names)}
