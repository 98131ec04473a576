"""Pen digits: training time, prediction time and accuracy compared with scikit-learn's classifiers.

All train on the official training rows without copies and predict the official test rows, with fixed settings.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from benchmarks.other_libraries.classifiers import mixtures, nearest_neighbour, support_vectors
from benchmarks.runner import Runner, WrongAnswer
from benchmarks.this_library import kernel_chains, ten_features
from benchmarks.work import Answer, Implementation, Make
from torchpbp.datasets.digits import load_digits

CHANCE = 0.2
"""Accuracy that a classifier must exceed."""
CLASSIFIERS: dict[str, Make] = {
    "PBP, kernel chain": kernel_chains,
    "PBP, ten features": ten_features,
    "1-NN": nearest_neighbour,
    "SVM": support_vectors,
    "GMM per class": mixtures,
}


def run(runner: Runner) -> None:
    """Predict with all, then train all."""
    data = load_digits()
    train, test = slice(None, None, runner.choose(1, 60)), slice(None, None, runner.choose(1, 100))
    truth = data.test_y[test].numpy()
    rows = {
        "train_x": data.train_x[train].numpy(),
        "train_y": data.train_y[train].numpy(),
        "test_x": data.test_x[test].numpy(),
    }

    def sensible(answers: Mapping[str, Answer]) -> None:
        for label, answer in answers.items():
            if np.mean(answer["predicted"] == truth) < CHANCE:
                raise WrongAnswer(f"{label}: expected digits, got predictions hardly better than chance.")

    def classifiers(predicting: bool) -> list[Implementation]:
        return [Implementation(k, make, rows | {"predicting": predicting}) for k, make in CLASSIFIERS.items()]

    predicted = runner.compare(f"predicting {len(truth):,} rows", classifiers(True), sensible)
    trained = runner.compare(f"training on {len(rows['train_y']):,} rows", classifiers(False))
    panels = [
        runner.report.panel(f"errors by time of {c.title}", "seconds", "test errors, %") for c in (trained, predicted)
    ]
    for label, answer in predicted.answers.items():
        right = 100 * float(np.mean(answer["predicted"] == truth))
        seconds = trained.seconds(label), predicted.seconds(label)
        for panel, value in zip(panels, seconds, strict=True):
            panel.add(label, value or 0.0, 100 - right)
        runner.report.add(
            "pen digits",
            classifier=label,
            **dict(zip(("training, s", "prediction, s"), seconds, strict=True)),
            right=right,
        )
