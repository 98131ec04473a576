"""Fitting and judging classifiers of the pen digits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor, nn

from torchpbp.classifier import GenerativeClassifier
from torchpbp.datasets.digits import FEATURES
from torchpbp.distributed import own_share
from torchpbp.errors import DataError, StructureError
from torchpbp.models.pbp import PBP

if TYPE_CHECKING:
    from torchpbp.datasets.digits_module import DigitsDataModule

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[Any]


def check_learner(learner: object) -> nn.Module:
    """Refuse a learner that is no model of the sixteen coordinates."""
    if not isinstance(learner, nn.Module):
        raise StructureError(
            "Pen digits: expected a learner with a graph over the pen's points, got one that takes its graph from the model "
            "(such as learner=pbp). Choose learner=pen_average, learner=gram or learner=nystroem."
        )
    observed = tuple(getattr(learner, "graph").observed)  # noqa: B009
    if observed != FEATURES:
        raise StructureError(
            f"Pen digits: expected a learner whose graph observes {', '.join(FEATURES)} in this order, got "
            f"{', '.join(observed)}."
        )
    return learner


def check_data(data: DigitsDataModule, limit: int | None) -> None:
    """Refuse settings under which the experiments would not measure what they say; then load the rows."""
    if limit is not None and limit < 1:
        raise DataError(f"limit: expected at least 1 row or None for all, got {limit}.")
    if data.hidden_points:
        raise DataError("data: expected complete rows (hide=0), since the experiment hides points itself.")
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


def accuracy(predicted: Labels, true: Labels) -> float:
    """Share of rows predicted right."""
    return float((predicted == true).mean())


def log_loss(log_proba: Floats, classes: Labels, true: Labels) -> float:
    """Mean negative log-probability of the true class, in nats; infinite if a true class was never learned."""
    position = {c: i for i, c in enumerate(classes.tolist())}
    of_truth = [row[position[c]] if c in position else -np.inf for row, c in zip(log_proba, true.tolist(), strict=True)]
    return -float(np.mean(of_truth))


def calibration_error(confidence: Floats, right: npt.NDArray[np.bool_], bins: int = 15) -> float:
    """Expected calibration error: mean |accuracy − confidence| over equal bins of confidence, weighted by rows.

    Args:
        confidence: (rows,) probability of the predicted class.
        right: (rows,) whether the prediction is right.
        bins: number of bins from 0 to 1.
    """
    cell = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    gap = np.bincount(cell, weights=right - confidence, minlength=bins)
    return float(np.abs(gap).sum() / len(confidence))


def confusion(predicted: Labels, true: Labels, classes: Sequence[Any]) -> npt.NDArray[np.int64]:
    """(classes, classes) numbers of rows, true class down, predicted class across."""
    return np.array([[int(((true == t) & (predicted == p)).sum()) for p in classes] for t in classes], dtype=np.int64)


def class_table(matrix: npt.NDArray[np.int64], classes: Sequence[Any]) -> pd.DataFrame:
    """Precision, recall and number of rows of each class; NaN where there is nothing to divide by."""
    right = np.diag(matrix).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        precision, recall = right / matrix.sum(axis=0), right / matrix.sum(axis=1)
    return pd.DataFrame({"class": list(classes), "precision": precision, "recall": recall, "count": matrix.sum(axis=1)})


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
