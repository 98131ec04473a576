"""Classifiers of the pen digits: one model per class."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from torchpbp.classifier import GenerativeClassifier
from torchpbp.datasets.digits import FEATURES
from torchpbp.distributed import own_share
from torchpbp.errors import ArgumentError, StructureError
from torchpbp.experiments.running.scores import Floats, Labels
from torchpbp.models.pbp import PBP

if TYPE_CHECKING:
    from torchpbp.datasets.digits_module import DigitsDataModule


def check_learner(learner: object) -> nn.Module:
    """Reject a learner that is not a model of the sixteen coordinates."""
    if not isinstance(learner, nn.Module):
        raise StructureError(
            "Pen digits: expected a learner with a graph over the pen's points, got one that takes its graph from the model "
            "(such as learner=pbp). Choose learner=pen_average, learner=gram or learner=nystroem; model=digits also takes "
            "learner=neural."
        )
    observed = tuple(getattr(learner, "graph").observed)  # noqa: B009
    if observed != FEATURES:
        raise StructureError(
            f"Pen digits: expected a learner whose graph observes {', '.join(FEATURES)} in this order, got "
            f"{', '.join(observed)}."
        )
    return learner


def check_data(data: DigitsDataModule) -> None:
    """Load the rows, which must be complete."""
    if data.hidden_points:
        raise ArgumentError("data: expected complete rows (hide=0), since the experiment hides points itself.")
    data.setup()


def fit_classifier(learner: nn.Module, x: Tensor, y: Tensor, verbose: bool) -> tuple[GenerativeClassifier, float]:
    """One model per class, with the seconds that took."""
    classifier = GenerativeClassifier(learner=learner, progress=verbose)
    if isinstance(learner, PBP):  # several processes share the rows of each class; kernel models need all of them
        share = torch.cat(
            [rows[own_share(len(rows))] for rows in (torch.nonzero(y == c).squeeze(1) for c in sorted(set(y.tolist())))]
        )
        x, y = x[share], y[share]
    start = time.perf_counter()
    classifier.fit(x.double(), y)
    return classifier, time.perf_counter() - start


def predict(classifier: GenerativeClassifier, x: Tensor) -> tuple[Labels, Floats, float]:
    """Predicted classes, (rows, classes) log-probabilities, and the seconds that took."""
    start = time.perf_counter()
    log_proba = classifier.predict_log_proba(x.double())
    return classifier.classes_[log_proba.argmax(axis=1)], log_proba, time.perf_counter() - start


def complete(classifier: GenerativeClassifier, x: Tensor) -> Tensor:
    """Fill what is hidden (NaN) by the posterior means of the class that the rest of the row speaks for.

    Args:
        classifier: fitted.
        x: (rows, 16) coordinates with NaN.

    Returns:
        (rows, 16) without NaN.
    """
    result = x.double().clone()
    predicted = predict(classifier, x)[0]
    for value, model in zip(classifier.classes_, classifier.models_, strict=True):
        rows = torch.from_numpy(np.flatnonzero(predicted == value))
        seen = result[rows]
        if not bool(seen.isnan().any()):
            continue
        answers = model.posteriors(dict(zip(FEATURES, seen.T, strict=True)))
        means = torch.stack([answers[v].mean.double() if v in answers else seen[:, i] for i, v in enumerate(FEATURES)])
        result[rows] = torch.where(seen.isnan(), means.T, seen)
    return result
