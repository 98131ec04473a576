"""What a run of the neural model writes and prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from torch import Tensor

from torchpbp.datasets.digits import CLASSES, POINTS
from torchpbp.experiments.digits.plots import (
    write_calibration_plot,
    write_hardest_digits,
    write_hidden_plot,
    write_training_plot,
)
from torchpbp.experiments.running.answers import judged, together, wide_table
from torchpbp.experiments.running.plots import write_confusion
from torchpbp.experiments.running.results import Metrics, environment, write_csv, write_results
from torchpbp.experiments.running.scores import class_table, confusion

if TYPE_CHECKING:
    from torchpbp.datasets.digits_module import DigitsDataModule

NEURAL, TWIN, SVM = "neural PBP", "twin: perceptron", "SVM after imputation"
KEYS = {NEURAL: "neural", TWIN: "twin", SVM: "svm"}
"""Classifier -> its name in metrics."""
PUBLISHED = {
    "InceptionTime": 0.9877,
    "ResNet": 0.9854,
    "ROCKET": 0.9831,
    "Arsenal": 0.9826,
    "HIVE-COTE 2": 0.9791,
    "1-NN by dynamic time warping": 0.9771,
}
"""Published accuracies of multivariate time series classifiers on the same test rows, learned from all 7,494 training rows."""
HARDEST = 24
"""Strokes shown, those with the least probability of the true digit."""


@dataclass(frozen=True)
class Results:
    """What was measured.

    Args:
        classifiers: name -> answers, history, seconds and numbers of parameters.
        rows: "val" and "test", if asked -> strokes and digits.
        tables: name -> "val" and "test" -> columns hidden and accuracy, of classifiers without probabilities.
    """

    classifiers: dict[str, dict[str, Any]]
    rows: Mapping[str, tuple[Tensor, Tensor]]
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)

    def figures(self, part: str) -> pd.DataFrame:
        """Columns classifier, hidden, accuracy, log_loss, calibration_error for "val" or "test"."""
        true = self.rows[part][1]
        tables = {name: judged(found["answers"][part], true) for name, found in self.classifiers.items()}
        return together(tables | {name: pd.DataFrame(found[part]) for name, found in self.tables.items()})


def write_neural(
    results: Results, learner: Any, data: DigitsDataModule, seed: int, folder: Path | None, verbose: bool
) -> Metrics:
    """Metrics of all classifiers; files and output as asked for.

    Args:
        results: answers.
        learner: settings of the model.
        data: the pen digits.
        seed: of the run.
        folder: for files. ``None``: no files.
        verbose: print the results.
    """
    last = "test" if "test" in results.rows else "val"
    tables = {part: results.figures(part) for part in results.rows}
    metrics = collected(results, tables)
    metrics |= {
        "rows/train": len(data.train_y),
        **{f"rows/{part}": len(y) for part, (_, y) in results.rows.items()},
        "split": data.split,
        "encoder": learner.encoder,
        "steps": learner.epochs * learner.epoch,
        "learner": "PBP",
        "seed": seed,
        **environment(),
    }
    if folder is not None:
        write_results(folder, metrics, together_parts(tables))
        write_files(results, tables[last], last, folder)
    if verbose:
        print(described(metrics, tables, last), flush=True)
    return metrics


def collected(results: Results, tables: Mapping[str, pd.DataFrame]) -> Metrics:
    """Flat results: of the model as "test/accuracy" and so on, of all classifiers as "<part>/<figure>/<name>/<hidden>"."""
    metrics: Metrics = {}
    for part, table in tables.items():
        own = {line["hidden"]: line for line in table[table["classifier"] == NEURAL].to_dict("records")}
        for figure in ("accuracy", "log_loss", "calibration_error"):
            metrics[f"{part}/{figure}"] = float(own[0][figure])
            if POINTS // 2 in own:
                metrics[f"{part}/{figure}_half_hidden"] = float(own[POINTS // 2][figure])
    for part, table in tables.items():
        for line in table.to_dict("records"):
            for figure in ("accuracy", "log_loss"):
                if line[figure] == line[figure]:
                    metrics[f"{part}/{figure}/{KEYS[line['classifier']]}/{line['hidden']}"] = float(line[figure])
    for name, found in results.classifiers.items():
        metrics[f"fit_seconds/{KEYS[name]}"] = float(found["fit_seconds"])
        metrics[f"predict_seconds/{KEYS[name]}"] = float(found["predict_seconds"])
        metrics[f"parameters/{KEYS[name]}"] = int(found["parameters"])
    if TWIN in results.classifiers:
        metrics["twin/fill"] = str(results.classifiers[TWIN]["fill"])
    return metrics


def together_parts(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Figures of validation and test rows in one table, with the column rows in front."""
    joined = pd.concat([table.assign(rows=part) for part, table in tables.items()], ignore_index=True)
    return joined[["rows", *(c for c in joined.columns if c != "rows")]]


def write_files(results: Results, table: pd.DataFrame, part: str, folder: Path) -> None:
    """Predictions, figures, the course of training, and published accuracies beside those of the run."""
    x, y = results.rows[part]
    logs, true = results.classifiers[NEURAL]["answers"][part][0][0].numpy(), y.numpy()
    predicted, confidence = logs.argmax(axis=1), np.exp(logs.max(axis=1))
    columns = {"row": np.arange(len(true)), "true": true, "predicted": predicted, "probability": confidence}
    write_csv(folder / "predictions.csv", pd.DataFrame(columns))
    matrix = confusion(predicted, true, range(CLASSES))
    write_csv(folder / "classes.csv", class_table(matrix, range(CLASSES)))
    write_confusion(folder / "confusion.png", matrix, range(CLASSES))
    write_hidden_plot(folder / "hidden.png", table)
    write_calibration_plot(folder / "calibration.png", confidence, predicted == true)
    hardest = np.argsort(logs[np.arange(len(true)), true], kind="stable")[:HARDEST]
    write_hardest_digits(folder / "hardest.png", x[hardest], true[hardest], predicted[hardest])
    histories = {name: pd.DataFrame(found["history"]) for name, found in results.classifiers.items()}
    write_csv(folder / "training.csv", together(histories))
    write_training_plot(folder / "training.png", histories)
    if part == "test":
        complete = table[table["hidden"] == 0]
        rows = [*zip(complete["classifier"], complete["accuracy"], ["this run"] * len(complete), strict=True)]
        rows += [(name, value, "published") for name, value in PUBLISHED.items()]
        frame = pd.DataFrame(rows, columns=["classifier", "test accuracy", "source"])
        write_csv(folder / "published.csv", frame.sort_values("test accuracy", ascending=False))


def described(metrics: Metrics, tables: Mapping[str, pd.DataFrame], last: str) -> str:
    """The results as text for a terminal."""
    hidden = sorted(set(tables[last]["hidden"]))
    rows = "test" if last == "test" else "validation"
    lines = [f"{rows} accuracy", wide_table(tables[last], hidden)]
    names = ["val/accuracy", f"{last}/accuracy", f"{last}/accuracy_half_hidden", f"{last}/log_loss"]
    names += [f"{last}/calibration_error", "fit_seconds/neural", "predict_seconds/neural"]
    lines += [f"{name:<26} {metrics[name]:.4f}" for name in dict.fromkeys(names) if name in metrics]
    lines += [f"{name:<26} {metrics[name]}" for name in ("rows/train", f"rows/{last}", "steps", "threads")]
    return "\n".join(lines)
