"""The walk around a ring of labels: what it draws, and its exact answers."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from torchpbp.datasets import LabelSequences
from torchpbp.errors import ArgumentError, ShapeError


def enumerated(task: LabelSequences, signals: torch.Tensor) -> torch.Tensor:
    """Posteriors of the labels by summing over all hidden paths, from the description of the walk alone."""
    density = torch.zeros(*signals.shape[:2], task.labels, dtype=torch.float64)
    for label, places in enumerate(task.places):
        for place in places:
            normal = torch.distributions.Normal(place, task.noise)
            density[:, :, label] += 0.5 * normal.log_prob(signals).sum(dim=2).exp()
    total = torch.zeros_like(density)
    moves = {0: task.stay, 1: 1 - task.stay - task.slip, 2: task.slip}
    for path in itertools.product(itertools.product((1, -1), range(task.labels)), repeat=task.length):
        weight = torch.full((len(signals),), 1 / (2 * task.labels), dtype=torch.float64)
        for t, (direction, label) in enumerate(path):
            weight = weight * density[:, t, label]
            if t:
                before, old = path[t - 1]
                step = direction * (label - old) % 3
                weight = weight * (task.keep if direction == before else 1 - task.keep) * moves[step]
        for t, (_, label) in enumerate(path):
            total[:, t, label] += weight
    return total / total.sum(dim=2, keepdim=True)


def test_posterior_agrees_with_enumeration() -> None:
    task = LabelSequences(length=4, keep=0.8, stay=0.1, slip=0.2, noise=0.7)
    signals, _ = task.sample(6, seed=3)
    assert torch.allclose(task.posterior(signals), enumerated(task, signals), atol=1e-12)


def test_labels_are_no_markov_chain() -> None:
    network = LabelSequences(length=3).network
    pair, triple = network.joint(["x1", "x2"]), network.joint(["x1", "x2", "x3"])
    assert torch.allclose(pair, pair.T)  # no preferred direction
    after_one = network.joint(["x2", "x3"]) / network.joint(["x2"]).unsqueeze(1)
    after_two = triple / pair.unsqueeze(2)
    assert after_two[0, 1, 2] > 0.8  # 0, 1: forwards, so 2 comes next
    assert after_two[2, 1, 0] > 0.8
    assert after_one[1, 2] == pytest.approx(float(after_one[1, 0])) == pytest.approx(0.475, abs=0.01)


def test_likelihood_is_a_density_and_labels_share_their_mean() -> None:
    task = LabelSequences(length=2, labels=4, noise=0.4)
    axis = torch.linspace(-4, 4, 161, dtype=torch.float64)
    points = torch.cartesian_prod(axis, axis)
    signals = points.unsqueeze(1).expand(-1, 2, -1)
    density = task.log_likelihood(signals)[:, 0].exp()
    area = float(axis[1] - axis[0]) ** 2
    assert torch.allclose(density.sum(dim=0) * area, torch.ones(4, dtype=torch.float64), atol=1e-6)
    assert torch.allclose(density.T @ points * area, torch.zeros(4, 2, dtype=torch.float64), atol=1e-6)


def test_signals_lie_around_the_places_of_their_label() -> None:
    task = LabelSequences(length=5, noise=0.05)
    signals, labels = task.sample(2_000, seed=0)
    distance = (signals.unsqueeze(2) - task.places[labels]).norm(dim=3)  # (rows, length, sides)
    nearest, side = distance.min(dim=2)
    assert nearest.square().mean().sqrt() == pytest.approx(0.05 * 2**0.5, rel=0.03)
    assert side.double().mean() == pytest.approx(0.5, abs=0.02)
    assert (task.log_likelihood(signals).argmax(dim=2) == labels).all()


def test_posterior_is_calibrated() -> None:
    """Where the posteriors are right, the true label's probability is Σ p² on average."""
    task = LabelSequences()
    signals, labels = task.sample(2_000, seed=5)
    posterior = task.posterior(signals)
    of_truth = posterior.gather(2, labels.unsqueeze(2)).squeeze(2)
    difference = (of_truth - posterior.square().sum(dim=2)).mean(dim=1)
    assert abs(float(difference.mean())) < 4 * float(difference.std()) / 2_000**0.5
    assert of_truth.mean() > 0.6


def test_seeds() -> None:
    task = LabelSequences(length=4)
    first, again, other = task.sample(50, seed=1), task.sample(50, seed=1), task.sample(50, seed=2)
    assert torch.equal(first.signals, again.signals)
    assert torch.equal(first.labels, again.labels)
    assert not torch.equal(first.labels, other.labels)
    assert torch.equal(first.labels, task.sample_labels(50, seed=1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 1}, "length: expected a whole number of at least 2, got 1"),
        ({"labels": 2}, "labels: expected a whole number of at least 3, got 2"),
        ({"keep": 1.5}, "keep: expected a number from 0 to 1, got 1.5"),
        ({"stay": 0.6, "slip": 0.6}, r"stay \+ slip: expected at most 1, got 0.6 \+ 0.6"),
        ({"noise": 0.0}, "noise: expected a positive number, got 0.0"),
    ],
)
def test_bad_numbers(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        LabelSequences(**options)


def test_signals_of_another_length() -> None:
    with pytest.raises(ShapeError, match=r"signals: expected shape \(rows, 15, 2\), got \(3, 4, 2\)"):
        LabelSequences().posterior(torch.zeros(3, 4, 2))
