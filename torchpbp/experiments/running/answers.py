"""Answers of classifiers about rows with hidden leaves, and the figures made of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from torchpbp.experiments.running.scores import accuracy, calibration_error, log_loss

Classify = Callable[[Tensor], Tensor]
"""(rows, …) values, NaN where hidden -> (rows, classes) log-probabilities."""


@dataclass(frozen=True)
class Masks:
    """Which leaves are hidden from classifiers: the same for all of them, whatever seed they are trained with.

    Args:
        hidden: numbers of leaves to hide.
        draws: of the leaves, for each number; their results are averaged.
        hide: rows, number of leaves and number of the draw -> rows with so many leaves NaN.
    """

    hidden: tuple[int, ...]
    draws: int
    hide: Callable[[Tensor, int, int], Tensor]

    def of(self, x: Tensor) -> dict[int, list[Tensor]]:
        """Number of hidden leaves -> rows with so many hidden, one tensor per draw; complete rows once."""
        return {k: [self.hide(x, k, i) for i in range(self.draws if k else 1)] for k in self.hidden}


def ask(classify: Classify, x: Tensor, masks: Masks) -> tuple[dict[int, Tensor], float]:
    """Number of hidden leaves -> (draws, rows, classes) log-probabilities, and the seconds for the first of them."""
    answers, seconds = {}, float("nan")
    for k, draws in masks.of(x).items():
        parts = []
        for rows in draws:
            start = time.perf_counter()
            parts.append(classify(rows).double())
            seconds = time.perf_counter() - start if seconds != seconds else seconds
        answers[k] = torch.stack(parts)
    return answers, seconds


def judged(answers: Mapping[int, Tensor], true: Tensor) -> pd.DataFrame:
    """A row per number of hidden leaves: hidden, accuracy, log_loss (nats), calibration_error, averaged over draws.

    Args:
        answers: number of hidden leaves -> (draws, rows, classes) log-probabilities.
        true: (rows,) classes.
    """
    digits = true.numpy()
    lines = []
    for k, draws in sorted(answers.items()):
        figures = []
        for logs in draws.numpy():
            predicted = logs.argmax(axis=1)
            confidence = np.exp(logs.max(axis=1))
            figures.append(
                (
                    accuracy(predicted, digits),
                    log_loss(logs, np.arange(logs.shape[1]), digits),
                    calibration_error(confidence, predicted == digits),
                )
            )
        means = np.mean(figures, axis=0).tolist()
        lines.append({"hidden": k, **dict(zip(("accuracy", "log_loss", "calibration_error"), means, strict=True))})
    return pd.DataFrame(lines)


def judged_labels(predict: Callable[[Tensor], Any], x: Tensor, true: Tensor, masks: Masks) -> pd.DataFrame:
    """The same for a classifier without probabilities: hidden, accuracy."""
    digits = true.numpy()
    lines = []
    for k, draws in sorted(masks.of(x).items()):
        lines.append({"hidden": k, "accuracy": float(np.mean([accuracy(predict(rows), digits) for rows in draws]))})
    return pd.DataFrame(lines)


def together(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Tables of several classifiers as one, with the column classifier in front."""
    parts = [frame.assign(classifier=name) for name, frame in tables.items()]
    joined = pd.concat(parts, ignore_index=True)
    return joined[["classifier", *(c for c in joined.columns if c != "classifier")]]


def wide_table(table: pd.DataFrame, hidden: Sequence[int]) -> str:
    """Accuracies in percent by classifier and number of hidden points, for a terminal; a dash where not measured."""
    cells = table.pivot(index="classifier", columns="hidden", values="accuracy").reindex(columns=list(hidden))
    cells = cells.loc[list(dict.fromkeys(table["classifier"]))]
    width = max(len("points hidden"), *(len(str(name)) for name in cells.index))
    lines = [f"{'points hidden':<{width}}" + "".join(f"{k:>9}" for k in hidden)]
    for name, row in cells.iterrows():
        shown = "".join(f"{'-' if v != v else f'{100 * v:.2f} %':>9}" for v in row)
        lines.append(f"{name!s:<{width}}{shown}")
    return "\n".join(lines)
