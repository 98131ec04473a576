"""A linear-chain conditional random field: the baseline that knows which label follows which."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchpbp.errors import DataError, ShapeError


class LinearChainCRF(nn.Module):
    """P(labels | scores) ∝ exp(start + Σ score of each label + Σ transition of each pair of neighbours + end).

    Exact in log-space by the forward-backward algorithm, for whole batches of sequences of one length.

    Args:
        num_labels: number of labels.

    Attributes:
        start: (labels,) score of the first label.
        transitions: (labels, labels) score of a label (column) after another (row).
        end: (labels,) score of the last label.
    """

    def __init__(self, num_labels: int) -> None:
        super().__init__()
        if num_labels < 1:
            raise DataError(f"num_labels: expected at least 1, got {num_labels}.")
        self.start = nn.Parameter(torch.zeros(num_labels))
        self.transitions = nn.Parameter(torch.zeros(num_labels, num_labels))
        self.end = nn.Parameter(torch.zeros(num_labels))

    @torch.no_grad()
    def fit_labels(self, labels: Tensor, pseudo_count: float = 1.0) -> LinearChainCRF:
        """Start from the Markov chain of label sequences: log-frequencies of first labels and of pairs of neighbours.

        Args:
            labels: (rows, length) int64.
            pseudo_count: added to each count, so that no pair is impossible.
        """
        n = len(self.start)
        if labels.ndim != 2 or labels.shape[1] < 1:
            raise ShapeError(f"labels: expected shape (rows, length), got {tuple(labels.shape)}.")
        if labels.numel() and not (int(labels.min()) >= 0 and int(labels.max()) < n):
            raise DataError(f"labels: expected numbers from 0 to {n - 1}, got {int(labels.min())}…{int(labels.max())}.")
        first = torch.bincount(labels[:, 0], minlength=n).double() + pseudo_count
        codes = (labels[:, :-1] * n + labels[:, 1:]).flatten()
        pairs = torch.bincount(codes, minlength=n * n).reshape(n, n).double() + pseudo_count
        self.start.copy_((first / first.sum()).log())
        self.transitions.copy_((pairs / pairs.sum(dim=1, keepdim=True)).log())
        self.end.zero_()
        return self

    def log_likelihood(self, scores: Tensor, labels: Tensor) -> Tensor:
        """(batch,) log P(labels | scores).

        Args:
            scores: (batch, length, labels).
            labels: (batch, length) int64.
        """
        self._check(scores)
        if labels.shape != scores.shape[:2]:
            raise ShapeError(
                f"labels: expected shape {tuple(scores.shape[:2])} as the scores, got {tuple(labels.shape)}."
            )
        path = self.start[labels[:, 0]] + self.end[labels[:, -1]]
        path = path + scores.gather(2, labels.unsqueeze(2)).sum(dim=(1, 2))
        path = path + self.transitions[labels[:, :-1], labels[:, 1:]].sum(dim=1)
        return path - torch.logsumexp(self._forward(scores)[-1] + self.end, dim=1)

    def log_marginals(self, scores: Tensor) -> Tensor:
        """(batch, length, labels) log P(label of a site | scores of all sites)."""
        self._check(scores)
        forward = self._forward(scores)
        backward = [self.end.expand_as(forward[-1])]
        for t in range(scores.shape[1] - 1, 0, -1):
            arrived = (backward[-1] + scores[:, t]).unsqueeze(1)  # (batch, 1, label after)
            backward.append(torch.logsumexp(self.transitions + arrived, dim=2))
        both = torch.stack(forward, dim=1) + torch.stack(backward[::-1], dim=1)
        return torch.log_softmax(both, dim=2)

    @torch.no_grad()
    def decode(self, scores: Tensor) -> Tensor:
        """(batch, length) the most probable sequence of labels (Viterbi)."""
        self._check(scores)
        best = self.start + scores[:, 0]
        came_from = []
        for t in range(1, scores.shape[1]):
            best, back = (best.unsqueeze(2) + self.transitions).max(dim=1)
            best = best + scores[:, t]
            came_from.append(back)
        path = [(best + self.end).argmax(dim=1)]
        for back in reversed(came_from):
            path.append(back.gather(1, path[-1].unsqueeze(1)).squeeze(1))
        return torch.stack(path[::-1], dim=1)

    def _forward(self, scores: Tensor) -> list[Tensor]:
        """Per site (batch, labels): log of the total weight of all paths that end there in each label."""
        alpha = [self.start + scores[:, 0]]
        for t in range(1, scores.shape[1]):
            alpha.append(torch.logsumexp(alpha[-1].unsqueeze(2) + self.transitions, dim=1) + scores[:, t])
        return alpha

    def _check(self, scores: Tensor) -> None:
        if scores.ndim != 3 or scores.shape[1] < 1 or scores.shape[2] != len(self.start):
            raise ShapeError(f"scores: expected shape (batch, length, {len(self.start)}), got {tuple(scores.shape)}.")
