"""What classifiers say about the same rows: asked once, then combined and brought to the right confidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchpbp.classifier import GenerativeClassifier
from torchpbp.datasets.digits import CLASSES
from torchpbp.errors import DataError, ShapeError
from torchpbp.experiments.digits.classification import check_learner, fit_classifier
from torchpbp.experiments.digits.distortions import slanted_copies

FLOOR = -60.0
"""Least log-probability of a companion that counts: beyond that it is sure, and how sure would only drown the network."""

SHARPEST = 20.0
"""Bounds of the temperature and of its inverse: rows that are all right would ask for a temperature of 0."""


@dataclass(frozen=True)
class Opinion:
    """Log-probabilities of the digits by one classifier.

    Args:
        val: hidden points -> (rows, classes) of the validation rows.
        tests: the same of the test rows.
    """

    val: Mapping[int, Tensor]
    tests: Mapping[int, Tensor]

    def joined(self, other: Opinion, weight: float, gain: float) -> Opinion:
        """The product of both, normalised, with the other's probabilities raised to ``weight + gain · hidden points``."""

        def product(mine: Mapping[int, Tensor], yours: Mapping[int, Tensor]) -> dict[int, Tensor]:
            return {k: _normalised(logs + (weight + gain * k) * yours[k]) for k, logs in mine.items()}

        return Opinion(product(self.val, other.val), product(self.tests, other.tests))

    def tempered(self, temperature: float) -> Opinion:
        """The same order of digits with another confidence."""
        val, tests = ({k: _normalised(v / temperature) for k, v in part.items()} for part in (self.val, self.tests))
        return Opinion(val, tests)


def log_probabilities(network: nn.Module, strokes: Tensor) -> Tensor:
    """(rows, classes) float64 log-probabilities by a network of (rows, 16) strokes."""
    with torch.no_grad():
        logits = torch.cat([network(part) for part in torch.split(strokes, 1024)])
    return _normalised(logits.double())


def network_opinion(network: nn.Module, val: Mapping[int, Tensor], tests: Mapping[int, Tensor]) -> Opinion:
    """Ask a network that maps (rows, 16) strokes to logits."""
    told, tested = ({k: log_probabilities(network, x) for k, x in part.items()} for part in (val, tests))
    return Opinion(told, tested)


def fit_companion(
    learner: nn.Module, strokes: Tensor, digits: Tensor, copies: int, slant: float, seed: int, verbose: bool
) -> GenerativeClassifier:
    """One generative model per digit, learned from the strokes and slanted copies of them.

    Args:
        learner: an unfitted model of the sixteen coordinates, copied for each digit.
        strokes: (rows, 16) complete strokes.
        digits: (rows,) their classes.
        copies: slanted copies of each stroke (see :func:`torchpbp.experiments.digits.distortions.slanted_copies`).
        slant: how far they lean.
        seed: of the slants.
        verbose: show progress bars.
    """
    more = slanted_copies(strokes, copies, slant, seed)
    return fit_classifier(check_learner(learner), more, digits.repeat(copies + 1), verbose)[0]


def companion_opinion(
    classifier: GenerativeClassifier, val: Mapping[int, Tensor], tests: Mapping[int, Tensor]
) -> Opinion:
    """Ask a generative classifier (see :func:`ask_companion`)."""
    told, tested = ({k: ask_companion(classifier, x) for k, x in part.items()} for part in (val, tests))
    return Opinion(told, tested)


def ask_companion(classifier: GenerativeClassifier, strokes: Tensor) -> Tensor:
    """(rows, classes) float64 log-probabilities; digits that it never saw get the least one that counts."""
    told = torch.from_numpy(classifier.predict_log_proba(strokes.double()))
    full = torch.full((len(told), CLASSES), FLOOR, dtype=torch.float64)
    full[:, torch.from_numpy(classifier.classes_)] = told.clamp(min=FLOOR)
    return _normalised(full)


def fit_temperature(log_proba: Tensor, digits: Tensor) -> float:
    """The temperature with the least log-loss: above 1 for a classifier that is too sure of itself, below 1 for a timid one.

    Args:
        log_proba: (rows, classes) log-probabilities, of rows that it has not learned from.
        digits: (rows,) true classes.
    """
    if log_proba.ndim != 2 or digits.shape != log_proba.shape[:1]:
        raise ShapeError(
            f"fit_temperature: expected (rows, classes) log-probabilities and (rows,) digits, got shapes "
            f"{tuple(log_proba.shape)} and {tuple(digits.shape)}."
        )
    if not len(digits) or not bool(log_proba.isfinite().all()):
        raise DataError(
            "fit_temperature: expected one or more rows of finite log-probabilities. Put a floor under them."
        )

    of_truth = log_proba.gather(1, digits.unsqueeze(1)).mean()

    def slope(sharpness: float) -> float:
        """Of the log-loss in the inverse of the temperature, in which it is convex."""
        expected = (torch.softmax(sharpness * log_proba, dim=1) * log_proba).sum(dim=1).mean()
        return float(expected - of_truth)

    low, high = 1 / SHARPEST, SHARPEST
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return 1 / high


def _normalised(scores: Tensor) -> Tensor:
    return torch.log_softmax(scores, dim=1)
