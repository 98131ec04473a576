"""Strokes from fitted classifiers: completed, drawn from each class, and pictures of both."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from torch import Tensor

from torchpbp.classifier import GenerativeClassifier
from torchpbp.datasets.digits import FEATURES, POINTS
from torchpbp.datasets.splits import hide_points
from torchpbp.experiments.results import Picture
from torchpbp.plotting.digits import draw_digits

EXAMPLES = 2
"""Completed strokes of each class in the picture."""


def complete(classifier: GenerativeClassifier, x: Tensor) -> Tensor:
    """Hidden coordinates replaced by their posterior means in the predicted class.

    Args:
        classifier: fitted.
        x: (rows, 16) coordinates with NaN.

    Returns:
        (rows, 16) without NaN.
    """
    result = x.double().clone()
    predicted = torch.from_numpy(classifier.predict(result))
    for value, model in zip(classifier.classes_, classifier.models_, strict=True):
        rows = (predicted == value).nonzero().squeeze(1)
        seen = result[rows]
        if bool(seen.isnan().any()):
            answers = model.posteriors(dict(zip(FEATURES, seen.T, strict=True)))
            means = [answers[v].mean.double() if v in answers else seen[:, i] for i, v in enumerate(FEATURES)]
            result[rows] = torch.where(seen.isnan(), torch.stack(means, dim=1), seen)
    return result


def drawn(classifier: GenerativeClassifier, count: int, seed: int) -> Tensor:
    """(count · classes, 16) strokes drawn from the models: one of each class, then another of each, and so on."""
    samples = [model.sample(count, seed=seed) for model in classifier.models_]
    points = torch.stack([torch.stack([s[v] for v in FEATURES], dim=1) for s in samples], dim=1)
    return points.reshape(-1, len(FEATURES))


def samples_picture(classifier: GenerativeClassifier, count: int, seed: int) -> Picture:
    """Strokes drawn from the models, a column per class."""
    classes = list(classifier.classes_)
    figure = Figure(figsize=(0.95 * len(classes) + 0.2, 1.2 * count + 0.2), layout="constrained")
    draw_digits(drawn(classifier, count, seed), figure.subplots(), labels=classes * count, columns=len(classes))
    return Picture(figure, "Strokes drawn from the model of each digit.")


def completed_picture(classifier: GenerativeClassifier, x: Tensor, y: Tensor) -> Picture:
    """Some strokes of each class as they were written, and completed from half of their points.

    Args:
        classifier: fitted.
        x: (rows, 16) complete coordinates.
        y: (rows,) digits.
    """
    rows = torch.cat([(y == value).nonzero().squeeze(1)[:EXAMPLES] for value in y.unique()])
    seen = hide_points(x[rows], POINTS // 2, seed=0)
    shown = ~seen[:, ::2].isnan()  # (rows, 8)
    pairs = torch.stack([x[rows].double(), complete(classifier, seen)], dim=1).flatten(0, 1)
    observed = torch.stack([torch.ones_like(shown), shown], dim=1).flatten(0, 1)
    labels = [text for value in y[rows].tolist() for text in (f"{value} written", "completed")]
    figure = Figure(figsize=(9.0, 1.45 * -(-len(rows) // 4) + 0.4), layout="constrained")
    draw_digits(pairs, figure.subplots(), labels=labels, observed=observed, columns=8)
    caption = "Test strokes as they were written, and with half of their points replaced by posterior means of the predicted digit."
    return Picture(figure, caption)
