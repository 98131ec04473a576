"""Pen digits recognised by encoders trained through PBP, or recognised, drawn and completed by one model per class."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from torchpbp.classifier import GenerativeClassifier
from torchpbp.contract.model_files import SaveOptions, packed
from torchpbp.datasets.digits import FEATURES, POINTS
from torchpbp.datasets.splits import hide_points
from torchpbp.errors import CheckpointError, DataWarning
from torchpbp.experiments.digits.classification import check_data, check_learner, complete, fit_classifier, predict
from torchpbp.experiments.digits.missing_training import FILL, KIND, SHARE, training_rows
from torchpbp.experiments.digits.neural import NeuralDigits, run_neural
from torchpbp.experiments.digits.plots import write_completed_digits, write_digits
from torchpbp.experiments.running.plots import write_confusion
from torchpbp.experiments.running.results import Metrics, environment, write_csv, write_results
from torchpbp.experiments.running.scores import accuracy, calibration_error, class_table, confusion, log_loss
from torchpbp.files.checkpoint import write_checkpoint
from torchpbp.settings import Settings, non_negative, optional, setting, whole

if TYPE_CHECKING:
    from torchpbp.datasets.digits_module import DigitsDataModule

COMPLETED_PER_CLASS = 2


@dataclass(frozen=True)
class DigitsSettings(Settings):
    """Settings of :func:`run_digits`. All but the first are for models per class.

    Args:
        limit: validation and test rows at most; all by default.
        samples: digits drawn from each class for samples.png.
        copies: slanted copies of each training stroke to learn from as well.
        slant: how far they lean (see :func:`torchpbp.experiments.digits.distortions.slanted_copies`).
        missing_training: probability with which values of training strokes are hidden, as if they were missing.
        missing_kind: "coordinates" hides each by itself, "points" both coordinates of a point.
        missing_fill: how strokes are completed before they are slanted (see
            :func:`torchpbp.experiments.digits.missing_training.training_rows`); without copies the learner deals with
            missing values itself.
    """

    limit: int | None = setting(None, optional(whole(1)))
    samples: int = setting(4, whole(1))
    copies: int = setting(2, whole(0))
    slant: float = setting(0.15, non_negative())
    missing_training: float = setting(0.0, SHARE)
    missing_kind: str = setting("coordinates", KIND)
    missing_fill: str = setting("mean", FILL)


def run_digits(
    data: DigitsDataModule,
    learner: nn.Module | NeuralDigits,
    seed: int = 0,
    output_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
    **options: Any,
) -> Metrics:
    """Learn to recognise the pen digits, then predict validation and test rows, also with some of their points hidden.

    Args:
        data: the pen digits; its ``train_size`` sets the rows per class to learn from.
        learner: settings of a neural model (:class:`~torchpbp.experiments.digits.neural.NeuralDigits`), or an unfitted model
            of the sixteen coordinates, which is copied for each class.
        seed: of all draws.
        output_dir: folder for metrics.json, metrics.csv, predictions.csv and confusion.png. A neural model adds model.pt
            (``torchpbp.load`` reads it), training.csv, checkpoints/ and figures of training, accuracy by hidden points,
            calibration and the hardest strokes. Models per class add samples.png, completed.png, and
            classifier.pt, which ``torchpbp.load`` reads and ``python -m torchpbp predict`` uses. ``None``: no files.
        verbose: show progress bars (stderr) and results (stdout).
        options: see :class:`DigitsSettings`.

    Returns:
        "val/accuracy", "test/accuracy", "test/log_loss" (nats), "test/calibration_error", "test/accuracy_half_hidden",
        more figures by classifier and number of hidden points (neural) or "test/precision/<digit>" and
        "test/recall/<digit>" (models per class), seconds, and the facts of the run.
    """
    settings = DigitsSettings.from_dict(options)
    if isinstance(learner, NeuralDigits):
        check_data(data)
        return run_neural(data, learner, seed, output_dir, verbose, settings.limit)
    check_learner(learner)
    check_data(data)
    limit = settings.limit
    val_x, val_y = data.val_x[:limit], data.val_y[:limit].numpy()
    test_x, test_y = data.test_x[:limit], data.test_y[:limit].numpy()
    hidden_x = hide_points(data.test_x, POINTS // 2, seed)[:limit]

    rows = training_rows(
        data.train_x,
        data.train_y,
        share=settings.missing_training,
        kind=settings.missing_kind,
        copies=settings.copies,
        slant=settings.slant,
        fill=settings.missing_fill,
        seed=seed,
    )
    classifier, fit_seconds = fit_classifier(learner, rows.x, rows.y, verbose)
    classes = classifier.classes_
    predicted, log_proba, predict_seconds = predict(classifier, test_x)
    confidence = np.exp(log_proba.max(axis=1))
    every = sorted(set(classes.tolist()) | set(test_y.tolist()))
    matrix = confusion(predicted, test_y, every)
    table = class_table(matrix, every)
    metrics: Metrics = {
        "val/accuracy": accuracy(predict(classifier, val_x)[0], val_y),
        "test/accuracy": accuracy(predicted, test_y),
        "test/log_loss": log_loss(log_proba, classes, test_y),
        "test/calibration_error": calibration_error(confidence, predicted == test_y),
        "test/accuracy_half_hidden": accuracy(predict(classifier, hidden_x)[0], test_y),
        "fit_seconds": fit_seconds,
        "predict_seconds": predict_seconds,
    }
    for name in ("precision", "recall"):
        values = [None if np.isnan(v) else float(v) for v in table[name]]
        metrics |= {f"test/{name}/{c}": v for c, v in zip(every, values, strict=True)}
    metrics |= {
        "rows/train": rows.originals,
        "rows/slanted": len(rows.y) - rows.originals,
        "missing/share": rows.missing,
        "missing/kind": settings.missing_kind if settings.missing_training else "none",
        "rows/val": len(val_y),
        "rows/test": len(test_y),
        "learner": type(learner).__name__,
        "seed": seed,
        **environment(),
    }
    if output_dir is not None:
        predictions = {"row": np.arange(len(test_y)), "true": test_y, "predicted": predicted, "probability": confidence}
        folder = write_results(output_dir, metrics, table)
        write_csv(folder / "predictions.csv", pd.DataFrame(predictions))
        write_confusion(folder / "confusion.png", matrix, every)
        write_digits(folder / "samples.png", draw_samples(classifier, settings.samples, seed), classes.tolist())
        chosen = first_rows(test_y, COMPLETED_PER_CLASS)
        seen = hidden_x[chosen]
        completed = complete(classifier, seen)
        write_completed_digits(
            folder / "completed.png", test_x[chosen], completed, ~seen[:, ::2].isnan(), test_y[chosen]
        )
        save_classifier(folder / "classifier.pt", classifier)
    if verbose:
        print(format_digits(metrics, table), flush=True)
    return metrics


def draw_samples(classifier: GenerativeClassifier, count: int, seed: int) -> Tensor:
    """(count · classes, 16) digits drawn from the models: one of each class, then another of each, and so on."""
    drawn = [model.sample(count, seed=seed) for model in classifier.models_]
    points = torch.stack([torch.stack([d[v] for v in FEATURES], dim=1) for d in drawn], dim=1)
    return points.reshape(-1, len(FEATURES))


def first_rows(true: Any, count: int) -> list[int]:
    """Numbers of the first rows of each class, ``count`` at most, in the order of the classes."""
    return [int(i) for value in sorted(set(true.tolist())) for i in np.flatnonzero(true == value)[:count]]


def save_classifier(path: Path, classifier: GenerativeClassifier) -> None:
    """Write the classifier; a learner of one's own that has no file format costs the file, not the run."""
    try:
        content = packed(classifier, path.name, SaveOptions())
    except CheckpointError as error:
        warnings.warn(f"{path.name} is not written. {error}", DataWarning, stacklevel=2)
        return
    write_checkpoint(path, content)


def format_digits(metrics: Metrics, table: pd.DataFrame) -> str:
    """The results as text for a terminal."""
    lines = [f"{'class':>5}  {'precision':>9}  {'recall':>9}  {'count':>6}"]
    lines += [f"{c:>5}  {p:>9.4f}  {r:>9.4f}  {n:>6}" for c, p, r, n in table.itertuples(index=False, name=None)]
    scores = ("val/accuracy", "test/accuracy", "test/accuracy_half_hidden", "test/log_loss", "test/calibration_error")
    lines += [f"{name:<26} {metrics[name]:.4f}" for name in (*scores, "fit_seconds", "predict_seconds")]
    counts = ("rows/train", "rows/val", "rows/test", "missing/share", "threads")
    return "\n".join([*lines, *(f"{name:<26} {metrics[name]}" for name in counts)])
