"""Predictions of a classifier, or of a model with a target, for the rows of a CSV file: ``python -m torchpbp predict``."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from torchpbp.classifier import GenerativeClassifier
from torchpbp.errors import CheckpointError, DataError
from torchpbp.graph.domains import shape_of
from torchpbp.inputs.labels import is_code_range
from torchpbp.io import load, replacing

MISSING = frozenset(("", "NA", "N/A", "NaN", "nan", "null", "None", "<NA>"))
"""Texts of cells with missing values, except those that are labels."""


def predict(path: str, rows: str, output: str | None = None, as_json: bool = False) -> str:
    """Predicted class and its probability for each row of a CSV file.

    Args:
        path: of the file of a classifier, or of a model with a target.
        rows: CSV file.
        output: CSV file to write, with the probability of every class.
        as_json: return JSON with the probability of every class, for other programs.
    """
    model = load(path)
    if isinstance(model, GenerativeClassifier):
        model.progress = sys.stderr.isatty()
        features = read_features(rows, model.graph_.observed, model.labels_)
        predictions, classes = predict_rows(model, features), model.classes_.tolist()
    elif target_of(model) is not None:
        predictions, classes = predict_target(model, rows)
    else:
        raise CheckpointError(
            f"'{path}' holds a {type(model).__name__}, not a classifier. Ask it with 'python -m torchpbp query'."
        )
    short = predictions[["row", "predicted", "probability"]]
    if output:
        try:
            with replacing(output) as temporary:
                predictions.to_csv(temporary, index=False)
        except OSError as error:
            raise DataError(f"'{output}' could not be written: {error}. Choose another file.") from error
    if as_json:
        names = [str(c) for c in classes]
        probabilities = predictions.iloc[:, 3:].to_numpy().tolist()
        lines = [
            {**line, "probabilities": dict(zip(names, p, strict=True))}
            for line, p in zip(short.to_dict("records"), probabilities, strict=True)
        ]
        return json.dumps(lines, indent=2)
    if output:
        return f"{len(predictions):,} predictions in {output}"
    return short.to_string(index=False, formatters={"probability": "{:.4f}".format})


def read_features(
    path: str | os.PathLike[str], names: Sequence[str], known: Mapping[str, Sequence[Any]]
) -> pd.DataFrame:
    """Named columns of a CSV file.

    Args:
        path: of a file with a header that includes the features. Empty cells are missing values.
        names: of the features.
        known: feature -> labels of its states, for features given by label.

    Returns:
        A column for each feature: labels for features in ``known``, numbers for others.

    Raises:
        DataError: no such file, no rows, missing columns, or a value that is neither a number nor a known label.
    """
    table = _cells(path)
    header = [str(c).strip() for c in table.iloc[0]]
    twice = sorted({c for c in header if header.count(c) > 1 and c in names})
    if twice:
        raise DataError(f"'{path}': columns {twice} are there twice. Keep one of each.")
    missing = [v for v in names if v not in header]
    if missing:
        raise DataError(
            f"'{path}': missing columns {missing}; its header has {', '.join(header[:20])}. The first line must name the "
            f"features: {', '.join(names[:20])}."
        )
    if len(table) < 2:
        raise DataError(f"'{path}': there is a header, but no rows below it.")
    columns = {}
    for v in names:
        cells = table.iloc[1:, header.index(v)].fillna("").str.strip()
        labels = known.get(v)
        columns[v] = _numbers(path, v, cells) if labels is None else _labels(path, v, cells, labels)
    return pd.DataFrame(columns)


def target_of(model: Any) -> str | None:
    """The variable that a model predicts: its training target or its condition variable; None without either."""
    return getattr(model, "target", None) or getattr(model, "condition", None)


def predict_target(model: Any, path: str | os.PathLike[str]) -> tuple[pd.DataFrame, list[Any]]:
    """Predictions of a model's target.

    Args:
        model: fitted, with a target.
        path: of a CSV file; a leaf that is a vector or an image has a column per entry, ``name[0]``, ``name[1]``, …

    Returns:
        Columns row, predicted, probability, and "P(<class>)" for each class; and the classes.
    """
    target = target_of(model)
    entries = {}
    shapes = {v: shape_of(model.graph.variables[v]) for v in model.graph.observed}
    for v, shape in shapes.items():
        if v != target:
            entries[v] = [f"{v}[{i}]" for i in range(math.prod(shape))] if shape else [v]
    names = [c for columns in entries.values() for c in columns]
    table = read_features(path, names, {v: labels for v, labels in model.labels.items() if v in entries})
    evidence: dict[str, Any] = {}
    for v, columns in entries.items():
        if shapes[v]:
            evidence[v] = table[columns].to_numpy(dtype=np.float64).reshape(len(table), *shapes[v])
        else:
            evidence[v] = table[v].to_numpy()
    with torch.no_grad():
        probabilities = model.posterior(target, evidence).numpy()
    classes = list(model.labels.get(target) or range(probabilities.shape[1]))
    frame = pd.DataFrame(
        {"row": np.arange(len(table)), "predicted": [classes[i] for i in probabilities.argmax(axis=1)]}
    )
    frame["probability"] = probabilities.max(axis=1)
    every = pd.DataFrame(probabilities, columns=[f"P({c})" for c in classes])
    return pd.concat([frame, every], axis=1), classes


def predict_rows(classifier: GenerativeClassifier, rows: pd.DataFrame) -> pd.DataFrame:
    """Predictions with their probabilities.

    Args:
        classifier: fitted.
        rows: its features, by name.

    Returns:
        Columns row, predicted, probability, and "P(<class>)" for each class.
    """
    log_proba = classifier.predict_log_proba(rows)
    frame = pd.DataFrame({"row": np.arange(len(rows)), "predicted": classifier.classes_[log_proba.argmax(axis=1)]})
    frame["probability"] = np.exp(log_proba.max(axis=1))
    every = pd.DataFrame(np.exp(log_proba), columns=[f"P({c})" for c in classifier.classes_])
    return pd.concat([frame, every], axis=1)


def _cells(path: str | os.PathLike[str]) -> pd.DataFrame:
    """All cells as text, including the header, in which pandas would rename repeated columns."""
    if not Path(path).is_file():
        raise DataError(f"No file at '{path}'. Check the path.")
    try:
        return pd.read_csv(path, header=None, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except pd.errors.EmptyDataError:
        raise DataError(f"'{path}' is empty: expected a header that names the features, and rows below it.") from None
    except ValueError as error:  # pandas' own errors, and bytes that are not text
        raise DataError(
            f"'{path}' is not a CSV table ({str(error).strip()}). Save it as comma-separated UTF-8."
        ) from error


def _numbers(path: str | os.PathLike[str], name: str, cells: pd.Series[str]) -> pd.Series[Any]:
    values = pd.Series([_number(c) for c in cells], dtype=float)
    bad = ~cells.isin(MISSING).to_numpy() & ~np.isfinite(values)
    if bad.any():
        line = int(np.flatnonzero(bad)[0])
        raise DataError(
            f"'{path}', column '{name}', row {line}: expected a finite number, got {cells.iloc[line]!r}. Leave the cell empty "
            "if the value is missing."
        )
    return values


def _number(cell: str) -> float:
    """A cell as a float, correctly rounded, unlike pandas' faster parser; NaN if it is not a number."""
    try:
        return float(cell)
    except ValueError:
        return np.nan


def _labels(path: str | os.PathLike[str], name: str, cells: pd.Series[str], labels: Sequence[Any]) -> pd.Series[Any]:
    values: dict[str, Any] = dict.fromkeys(MISSING)
    if is_code_range(labels):  # booleans may be written as numbers
        values |= {str(state): label for state, label in enumerate(labels)}
    values |= {str(label): label for label in labels}
    bad = ~cells.isin(list(values))
    if bad.any():
        line = int(np.flatnonzero(bad)[0])
        raise DataError(
            f"'{path}', column '{name}', row {line}: expected one of {', '.join(map(str, labels))}, got {cells.iloc[line]!r}. "
            "Leave the cell empty if the value is missing."
        )
    return pd.Series([values[c] for c in cells], dtype=object)
