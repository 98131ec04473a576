"""Label sequences with noisy signals, drawn from a hidden Markov chain with known exact posteriors.

A random walk moves around a ring of labels, forwards or backwards. The label is its position; the direction is latent
and rarely changes. Both directions are equally likely, so a model of neighbouring pairs learns only that labels rarely
repeat; two consecutive labels reveal the direction, and with it the next label. Each site emits a point of the plane near
one of two opposite centres on a circle that belong to its label, so all labels have the same mean and no linear function
of the signal separates them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from torchpbp.errors import ArgumentError, ShapeError
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.graph import templates
from torchpbp.settings import Settings, between, positive, setting, whole

CHANNELS = 2
"""Numbers per site of the signal."""
DIRECTIONS = 2


class LabelledSignals(NamedTuple):
    """Rows drawn from :class:`LabelSequences`.

    Args:
        signals: (rows, length, 2) float64.
        labels: (rows, length) int64.
    """

    signals: Tensor
    labels: Tensor


@dataclass(frozen=True)
class LabelSequences(Settings):
    """A random walk around a ring of labels, its signals, and the exact posterior of every label.

    Args:
        length: sites of a sequence.
        labels: number of labels on the ring, at least 3: with two, both directions are the same.
        keep: probability that the direction does not change from one site to the next.
        stay: probability that the label does not change.
        slip: probability that it moves against the direction.
        noise: standard deviation of the signal around its centre on the unit circle.

    Raises:
        ArgumentError: a number outside its range.

    Example:
        >>> task = LabelSequences(length=5)
        >>> signals, labels = task.sample(2, seed=0)
        >>> tuple(signals.shape), tuple(labels.shape), tuple(task.posterior(signals).shape)
        ((2, 5, 2), (2, 5), (2, 5, 3))
    """

    length: int = setting(15, whole(2))
    labels: int = setting(3, whole(3))
    keep: float = setting(0.95, between(0, 1))
    stay: float = setting(0.05, between(0, 1))
    slip: float = setting(0.05, between(0, 1))
    noise: float = setting(0.5, positive())

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stay + self.slip > 1:
            raise ArgumentError(
                f"stay + slip: expected at most 1, got {self.stay} + {self.slip}. Reduce one of them; the remainder is the "
                "probability of a step in the direction."
            )

    @property
    def hidden_states(self) -> int:
        """States of the hidden chain: direction · labels + label."""
        return DIRECTIONS * self.labels

    @property
    def names(self) -> tuple[str, ...]:
        """The labels' names in :attr:`network`, site by site."""
        return tuple(f"x{t}" for t in range(1, self.length + 1))

    @cached_property
    def network(self) -> DiscreteNetwork:
        """The chain as a network with known tables; its observables are the labels."""
        n = self.labels
        transition = torch.zeros(DIRECTIONS, n, DIRECTIONS, n, dtype=torch.float64)
        moves = ((0, self.stay), (1, 1 - self.stay - self.slip), (-1, self.slip))
        for old in range(DIRECTIONS):
            for new in range(DIRECTIONS):
                turned = self.keep if old == new else 1 - self.keep
                for place in range(n):
                    for step, chance in moves:
                        transition[old, place, new, (place + (1 - 2 * new) * step) % n] += turned * chance
        hidden = self.hidden_states
        cpts = {"h1": torch.full((hidden,), 1 / hidden, dtype=torch.float64)}  # the walk's stationary distribution
        cpts |= dict.fromkeys([f"h{t}" for t in range(2, self.length + 1)], transition.reshape(hidden, hidden))
        cpts |= dict.fromkeys(self.names, torch.eye(n, dtype=torch.float64).repeat(DIRECTIONS, 1))
        return DiscreteNetwork(templates.hmm(self.length, hidden, n), cpts)

    @property
    def places(self) -> Tensor:
        """(labels, 2, 2) centres of the signal of each label: two opposite points of the unit circle."""
        angles = torch.arange(self.labels, dtype=torch.float64) * math.pi / self.labels
        first = torch.stack([angles.cos(), angles.sin()], dim=1)
        return torch.stack([first, -first], dim=1)

    def sample_labels(self, rows: int, seed: int) -> Tensor:
        """(rows, length) int64 labels without signals."""
        drawn = self.network.sample(rows, seed=seed)
        return torch.stack([drawn[v] for v in self.names], dim=1)

    def sample(self, rows: int, seed: int) -> LabelledSignals:
        """Draw labels and their signals; the labels are those of :meth:`sample_labels` with the same seed."""
        labels = self.sample_labels(rows, seed)
        generator = torch.Generator().manual_seed(seed + 1)
        side = torch.randint(2, labels.shape, generator=generator)
        noise = torch.randn(*labels.shape, CHANNELS, generator=generator, dtype=torch.float64)
        return LabelledSignals(self.places[labels, side] + self.noise * noise, labels)

    def log_likelihood(self, signals: Tensor) -> Tensor:
        """(rows, length, labels) log-density of each site's signal under each label."""
        expected = (self.length, CHANNELS)
        if signals.ndim != 3 or tuple(signals.shape[1:]) != expected:
            raise ShapeError(
                f"signals: expected shape (rows, {expected[0]}, {expected[1]}), got {tuple(signals.shape)}."
            )
        offset = signals.double()[:, :, None, None] - self.places  # (rows, length, labels, sides, 2)
        squares = offset.square().sum(dim=-1) / (2 * self.noise**2)
        return torch.logsumexp(-squares, dim=-1) - math.log(2 * 2 * math.pi * self.noise**2)

    def posterior(self, signals: Tensor) -> Tensor:
        """(rows, length, labels) exact P(label of a site | all signals of the row)."""
        log_weights = self.log_likelihood(signals)
        weights = (log_weights - log_weights.amax(dim=-1, keepdim=True)).exp()
        answers = self.network.posteriors({v: weights[:, t] for t, v in enumerate(self.names)})
        return torch.stack([answers[v] for v in self.names], dim=1)
