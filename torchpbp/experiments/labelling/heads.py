"""What turns the scores of an encoder into posteriors of labels: three heads with one interface."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchpbp.errors import DataError, ShapeError
from torchpbp.experiments.labelling.crf import LinearChainCRF
from torchpbp.models.pbp import PBP
from torchpbp.neural.layer import PBPLayer


class SignalEncoder(nn.Module):
    """Scores of the labels of each site from a window of signals around it.

    Args:
        channels: numbers per site.
        num_labels: number of labels.
        window: sites it sees, an odd number; 1: the site alone.
        width: hidden units of both layers.
    """

    def __init__(self, channels: int, num_labels: int, window: int = 1, width: int = 32) -> None:
        super().__init__()
        if window < 1 or window % 2 == 0:
            raise DataError(
                f"window: expected an odd number of sites, so that the site is in the middle, got {window}."
            )
        if width < 1:
            raise DataError(f"width: expected at least 1 hidden unit, got {width}.")
        self.layers = nn.Sequential(
            nn.Conv1d(channels, width, window, padding=window // 2),
            nn.Tanh(),
            nn.Conv1d(width, width, 1),
            nn.Tanh(),
            nn.Conv1d(width, num_labels, 1),
        ).double()

    def forward(self, signals: Tensor) -> Tensor:
        """(batch, length, channels) -> (batch, length, labels)."""
        scores: Tensor = self.layers(signals.transpose(1, 2))
        return scores.transpose(1, 2)


class LabelHead(nn.Module):
    """Posteriors of the labels of a sequence from scores."""

    def forward(self, scores: Tensor) -> Tensor:
        """(batch, length, labels) log-posterior of each site's label given the scores of all sites."""
        raise NotImplementedError

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Mean over sites of -log posterior of the true label.

        Args:
            scores: (batch, length, labels).
            labels: (batch, length) int64.
        """
        return -self(scores).gather(2, labels.unsqueeze(2)).mean()


class SoftmaxHead(LabelHead):
    """Each site by itself."""

    def forward(self, scores: Tensor) -> Tensor:
        return torch.log_softmax(scores, dim=2)


class CRFHead(LabelHead):
    """A linear-chain CRF that starts from the Markov chain of label sequences.

    Args:
        labels: (rows, length) label sequences; no signals are needed.
        num_labels: number of labels.
        joint: train on log P(all labels of a sequence | scores), as is usual for CRFs, and not on each site's marginal.
            Validation rows preferred marginals: pairs of labels are not all there is to the chain here, and marginals
            are what is asked for.
    """

    def __init__(self, labels: Tensor, num_labels: int, joint: bool = False) -> None:
        super().__init__()
        self.crf = LinearChainCRF(num_labels).double().fit_labels(labels)
        self.joint = joint

    def forward(self, scores: Tensor) -> Tensor:
        return self.crf.log_marginals(scores)

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        if not self.joint:
            return super().loss(scores, labels)
        return -self.crf.log_likelihood(scores, labels).mean() / labels.shape[1]


class PBPHead(LabelHead):
    """A PBP model of the labels as a layer: scores become evidence on each label, its answers are the posteriors.

    Args:
        model: fitted to label sequences, with one observable per site.
        names: its observables, site by site.
        joint: train on log P(all labels of a sequence | evidence), as a CRF, and not on each site's posterior. Validation rows
            preferred it: a floored answer of one site has no useful slope, the probability of all labels seldom needs
            a floor.
    """

    def __init__(self, model: PBP, names: Sequence[str], joint: bool = True) -> None:
        super().__init__()
        if sorted(names) != sorted(model.observables):
            raise DataError(f"names: expected the model's observables {list(model.observables)}, got {list(names)}.")
        self.layer = PBPLayer(model)
        self.names = tuple(names)
        self.joint = joint

    def forward(self, scores: Tensor) -> Tensor:
        answers = self.layer(self._evidence(scores))
        return torch.stack([answers[v] for v in self.names], dim=1).log()

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        if not self.joint:
            return super().loss(scores, labels)
        truth = {v: labels[:, t] for t, v in enumerate(self.names)}
        return -self.layer.given(self._evidence(scores)).log_prob(truth).mean() / labels.shape[1]

    def _evidence(self, scores: Tensor) -> dict[str, Tensor]:
        """Weights of each site's labels; their scale does not matter."""
        if scores.ndim != 3 or scores.shape[1] != len(self.names):
            raise ShapeError(f"scores: expected shape (batch, {len(self.names)}, labels), got {tuple(scores.shape)}.")
        weights = torch.softmax(scores, dim=2)
        return {v: weights[:, t] for t, v in enumerate(self.names)}
