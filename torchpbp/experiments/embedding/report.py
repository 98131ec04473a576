"""Figures of the embedded pen digits: accuracy, log-loss and calibration of each classifier, in words and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from torchpbp.datasets.digits import CLASSES, POINTS
from torchpbp.experiments.embedding.opinions import Opinion, fit_temperature
from torchpbp.experiments.running.results import Metrics
from torchpbp.experiments.running.scores import accuracy, calibration_error, log_loss

HALF = POINTS // 2

HEADINGS = {
    "pbp": "test",
    "twin": "twin",
    "companion": "companion",
    "pbp_companion": "test_with_companion",
    "twin_companion": "twin_with_companion",
}
"""What the classifiers' figures on complete test rows are called."""


def judge(log_proba: Tensor, digits: Any) -> dict[str, float]:
    """Accuracy, log-loss (nats) and calibration error of (rows, classes) log-probabilities."""
    logs = log_proba.numpy()
    true = np.asarray(digits)
    predicted = logs.argmax(axis=1)
    confidence = np.exp(logs.max(axis=1))
    return {
        "accuracy": accuracy(predicted, true),
        "log_loss": log_loss(logs, np.arange(CLASSES), true),
        "calibration_error": calibration_error(confidence, predicted == true),
    }


def report(opinions: Mapping[str, Opinion], val_digits: Tensor, test_digits: Tensor) -> tuple[Metrics, pd.DataFrame]:
    """Bring each classifier to the confidence that validation rows ask for, then judge it on test rows.

    Args:
        opinions: by the names in ``HEADINGS``; test rows complete, half hidden, and as many more as wanted.
        val_digits: (rows,) classes of the validation rows, the same for each number of hidden points.
        test_digits: (rows,) classes of the test rows.

    Returns:
        The metrics, and a table with a row per number of hidden points and columns ``<name>_<figure>``.
    """
    metrics: Metrics = {}
    lines: dict[int, dict[str, float]] = {}
    for name, opinion in opinions.items():
        digits = val_digits.repeat(len(opinion.val))
        temperature = fit_temperature(torch.cat(list(opinion.val.values())), digits)
        calm = opinion.tempered(temperature)
        metrics[f"temperature/{name}"] = temperature
        metrics[f"val/accuracy/{name}"] = judge(torch.cat(list(calm.val.values())), digits)["accuracy"]
        for count in sorted(calm.tests):
            figures = judge(calm.tests[count], test_digits)
            before = judge(opinion.tests[count], test_digits)
            figures |= {f"{what}_before": before[what] for what in ("log_loss", "calibration_error")}
            line = lines.setdefault(count, {"hidden": count})
            line |= {f"{name}_{what}": value for what, value in figures.items()}
            metrics[f"hidden/{count}/{name}"] = figures["accuracy"]
            if count == 0:
                metrics |= {f"{HEADINGS[name]}/{what}": value for what, value in figures.items()}
            if count == HALF:
                for what in ("accuracy", "log_loss", "calibration_error"):
                    metrics[f"{HEADINGS[name]}/{what}_half_hidden"] = figures[what]
    return metrics, pd.DataFrame([lines[k] for k in sorted(lines)])


def format_embedding(metrics: Metrics, table: pd.DataFrame) -> str:
    """The results as text for a terminal."""
    shown = table[["hidden", *(c for c in map(str, table.columns) if c.endswith("_accuracy"))]]
    lines = [shown.to_string(index=False, float_format=lambda v: f"{v:.4f}"), ""]
    names = [name for name in HEADINGS if f"temperature/{name}" in metrics]
    columns = ["accuracy", "accuracy_half_hidden", "log_loss", "calibration_error", "calibration_error_before"]
    rows = [{what: metrics[f"{HEADINGS[name]}/{what}"] for what in columns} for name in names]
    lines.append(pd.DataFrame(rows, index=names).to_string(float_format=lambda v: f"{v:.4f}"))
    lines.append(f"parameters: {metrics['parameters/pbp']}, twin {metrics['parameters/twin']}")
    parts = [k for k in metrics if k.startswith("seconds/")]
    lines.append("seconds: " + ", ".join(f"{k.removeprefix('seconds/')} {metrics[k]:.0f}" for k in parts))
    return "\n".join(lines)
