"""Pen digits: training time, prediction time and accuracy compared with scikit-learn's classifiers.

All train on the official training rows without copies and predict the official test rows. Settings are fixed: those of
conf/learner for torchpbp, those in benchmarks/other_libraries/classifiers.py for the others.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from benchmarks.implementation import Answer, Array
from benchmarks.other_libraries.classifiers import DigitsClassifier, Mixtures, Neighbours, SupportVectors
from benchmarks.report import Panel, Report
from benchmarks.side_by_side import Check, RunOptions, time_side_by_side
from benchmarks.this_library import Average, Features, KernelChain
from torchpbp.datasets.digits import load_digits
from torchpbp.errors import DataError

CHANCE = 0.2
"""Least accuracy of a classifier that works."""


CLASSIFIERS: dict[str, type[DigitsClassifier]] = {
    "PBP, kernel chain": KernelChain,
    "PBP, average of four": Average,
    "PBP, ten features": Features,
    "1-NN": Neighbours,
    "SVM": SupportVectors,
    "GMM per class": Mixtures,
}


def run(settings: RunOptions) -> Report:
    """Train all, then predict with all."""
    report = Report("digits")
    data = load_digits()
    every = settings.choose(1, 6, 60)  # every n-th row
    train_x, train_y = data.train_x[::every].numpy(), data.train_y[::every].numpy()
    few = settings.choose(1, 10, 100)
    test_x, test_y = data.test_x[::few].numpy(), data.test_y[::few].numpy()
    training = f"training on {len(train_y):,} rows"
    predicting = f"predicting {len(test_y):,} rows"

    def implementations(timed_predicting: bool) -> list[DigitsClassifier]:
        return [make(label, train_x, train_y, test_x, timed_predicting) for label, make in CLASSIFIERS.items()]

    predicted = time_side_by_side(settings, implementations(True), predicting, sensible(test_y))
    trained = time_side_by_side(settings, implementations(False), training)
    report.add(trained, training)
    report.add(predicted, predicting)
    panels = [
        Panel("errors by training time", f"seconds, {training}", "test errors, %"),
        Panel("errors by prediction time", f"seconds, {predicting}", "test errors, %"),
    ]
    report.panels += panels
    for label, answer in predicted.answers.items():
        accuracy = float((answer["predicted"] == test_y).mean())
        both = trained.seconds(label), predicted.seconds(label)
        for panel, seconds in zip(panels, both, strict=True):
            panel.add(label, seconds or 0.0, 100 * (1 - accuracy))
        report.records.append({"who": label, "accuracy": accuracy, "fit_seconds": both[0], "predict_seconds": both[1]})
        shown = ["-" if s is None else f"{s:.3g} s" for s in both]
        report.notes.append(f"{label}: {100 * accuracy:.2f} %, training {shown[0]}, prediction {shown[1]}")
    return report


def sensible(labels: Array) -> Check:
    """A check that each classifier is much better than chance."""

    def check(answers: Mapping[str, Answer]) -> None:
        for label, answer in answers.items():
            predicted = answer["predicted"]
            accuracy = float(np.mean(predicted == labels)) if predicted.shape == labels.shape else 0.0
            if accuracy < CHANCE:
                raise DataError(
                    f"{label}: expected digits, got predictions with an accuracy of {accuracy:.2f}. Nothing was timed."
                )

    return check
