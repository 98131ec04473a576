"""Scores of classifiers, and the picture of their confusions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure

from torchpbp.experiments.results import Picture
from torchpbp.plotting import plot_confusion

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[Any]


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
    excess = np.bincount(cell, weights=right - confidence, minlength=bins)
    return float(np.abs(excess).sum() / len(confidence))


def confusion(predicted: Labels, true: Labels, classes: Sequence[Any]) -> npt.NDArray[np.int64]:
    """(classes, classes) numbers of rows, true class down, predicted class across."""
    return np.array([[int(((true == t) & (predicted == p)).sum()) for p in classes] for t in classes], dtype=np.int64)


def class_table(matrix: npt.NDArray[np.int64], classes: Sequence[Any]) -> pd.DataFrame:
    """Precision, recall and number of rows of each class; NaN where there is nothing to divide by."""
    right = np.diag(matrix).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        precision, recall = right / matrix.sum(axis=0), right / matrix.sum(axis=1)
    return pd.DataFrame({"class": list(classes), "precision": precision, "recall": recall, "count": matrix.sum(axis=1)})


def confusion_picture(matrix: npt.NDArray[np.int64], names: Sequence[object]) -> Picture:
    """A (classes, classes) confusion matrix as a picture."""
    figure = Figure(figsize=(6.2, 5.6), layout="constrained")
    plot_confusion(matrix, names=names, ax=figure.subplots())
    return Picture(figure, "Confusion of test rows: true classes down, predicted classes across.")
