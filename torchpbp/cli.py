"""Commands of ``python -m torchpbp``: description of a model file, queries of it, and predictions for the rows of a CSV file."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from torchpbp.classifier import GenerativeClassifier
from torchpbp.contract.frames import state_labels
from torchpbp.errors import CheckpointError, DataError, QueryError
from torchpbp.graph.domains import shape_of
from torchpbp.inputs.labels import is_code_range
from torchpbp.io import load, replacing
from torchpbp.models.kernel.kernel_pbp import KernelPBP
from torchpbp.models.pbp import PBP

BAR = 40
"""Characters of the bar of probability 1."""
MISSING = frozenset(("", "NA", "N/A", "NaN", "nan", "null", "None", "<NA>"))
"""Texts of cells with missing values, except those that are labels."""


def show(path: str) -> str:
    """A description of a model file: variables, junction tree, diagnostics."""
    model = load(path)
    graph = model.graph
    lines = [f"{type(model).__name__} of {len(graph.observed)} observed and {len(graph.latent)} hidden variables"]
    if isinstance(model, GenerativeClassifier):
        lines += [f"classes: {', '.join(map(str, model.classes_))}", "", "one model for each class, the first being"]
        lines += _learned_from(model.models_[0])
    else:
        lines += _learned_from(model)[1:]
    width = max(map(len, graph.names))
    lines.append("")
    variable_labels = model.labels_ if isinstance(model, GenerativeClassifier) else model.labels
    for v in graph.names:
        kind = "hidden  " if v in graph.latent else "observed"
        domain = graph.variables[v]
        size = f"{domain} states" if isinstance(domain, int) else ("continuous" if domain else "states not given")
        labels = ", ".join(map(str, variable_labels.get(v, ())))
        lines.append(f"{v:<{width}}  {kind}  {size}{f': {labels}' if labels else ''}")
    lines += ["", "edges: " + ", ".join(f"{a} {'->' if graph.directed else '--'} {b}" for a, b in graph.edges)]
    if isinstance(model, PBP):
        lines += ["", str(model.tree), "", model.diagnostics().to_string(index=False)]
    return "\n".join(lines)


def query(path: str, given: Sequence[str] = (), targets: Sequence[str] = (), as_json: bool = False) -> str:
    """Posteriors of one row of evidence.

    Args:
        path: of a model file.
        given: evidence as "name=value".
        targets: queried variables; all others by default.
        as_json: return JSON, for other programs.
    """
    model = load(path)
    if isinstance(model, GenerativeClassifier):
        raise QueryError(
            f"'{path}' holds a classifier, with a model for each class. Predict with 'python -m torchpbp predict', or ask "
            "one of torchpbp.load(…).models_."
        )
    evidence = _evidence(model, given)
    targets = targets or [v for v in model.graph.observed if v not in evidence]
    answers = {v: _answer(model, v, evidence) for v in targets}
    log_evidence = float(model.log_evidence(evidence)[0]) if evidence else 0.0
    if as_json:
        return json.dumps({"log_evidence": log_evidence, "posteriors": answers}, indent=2)
    lines = [f"log P(evidence) = {log_evidence:.6g}"] if evidence else []
    for v, distribution in answers.items():
        lines += ["", f"P({v} | {', '.join(given)})" if given else f"P({v})"]
        width = max(map(len, distribution))
        lines += [f"  {k:<{width}}  {p:>9.6f}  {'█' * round(BAR * p)}".rstrip() for k, p in distribution.items()]
    return "\n".join(lines)


def predict(path: str, rows: str, output: str | None = None, as_json: bool = False) -> str:
    """Predicted class and its probability for each row of a CSV file.

    Args:
        path: of the file of a classifier, or of a model with a target or a condition variable.
        rows: CSV file.
        output: CSV file to write, with the probability of every class.
        as_json: return JSON with the probability of every class, for other programs.
    """
    model = load(path)
    target = getattr(model, "target", None) or getattr(model, "condition", None)
    if isinstance(model, GenerativeClassifier):
        model.progress = sys.stderr.isatty()
        classes = model.classes_.tolist()
        probabilities = model.predict_proba(_read_features(rows, model.graph_.observed, model.labels_))
    elif target is not None:
        probabilities = _target_probabilities(model, target, rows)
        classes = list(model.labels.get(target) or range(probabilities.shape[1]))
    else:
        raise CheckpointError(
            f"'{path}' holds a {type(model).__name__}, not a classifier. Ask it with 'python -m torchpbp query'."
        )
    predicted = [classes[i] for i in probabilities.argmax(axis=1)]
    short = pd.DataFrame(
        {"row": np.arange(len(predicted)), "predicted": predicted, "probability": probabilities.max(axis=1)}
    )
    if output:
        every = pd.DataFrame(probabilities, columns=[f"P({c})" for c in classes])
        try:
            with replacing(output) as temporary:
                pd.concat([short, every], axis=1).to_csv(temporary, index=False)
        except OSError as error:
            raise DataError(f"'{output}' could not be written: {error}. Choose another file.") from error
    if as_json:
        names = [str(c) for c in classes]
        lines = [
            {**line, "probabilities": dict(zip(names, p, strict=True))}
            for line, p in zip(short.to_dict("records"), probabilities.tolist(), strict=True)
        ]
        return json.dumps(lines, indent=2)
    if output:
        return f"{len(short):,} predictions in {output}"
    return short.to_string(index=False, formatters={"probability": "{:.4f}".format})


def _learned_from(model: Any) -> list[str]:
    """Lines with the class of a model, its training rows and its settings."""
    lines = [type(model).__name__]
    if isinstance(model, PBP):
        rows = int(model.rows)
        lines.append(f"learned from {rows:,} rows" if rows else "learned from exact probabilities")
        if model.condition is not None:
            lines.append(f"one operator tree per class of {model.condition}")
    if isinstance(model, KernelPBP):
        lines.append(f"learned from {len(model.examples):,} rows, which it keeps")
        if model.settings.landmarks is not None:
            lines.append(f"low-rank approximation by {model.settings.landmarks} of them")
        if model.chart.moved:
            lines.append(f"compared by increments: {', '.join(v for v in model.names if v in model.chart.moved)}")
    return lines


def _answer(model: Any, name: str, evidence: dict[str, Any]) -> dict[str, float]:
    """Label or number of each state -> probability; mean and standard deviation of a continuous variable."""
    posterior = model.posterior(name, evidence or None)
    if not isinstance(posterior, torch.Tensor):
        return {"mean": float(posterior.mean[0]), "std": float(posterior.variance[0]) ** 0.5}
    labels = state_labels(model, name)
    return {str(label): float(p) for label, p in zip(labels, posterior[0], strict=True)}


def _evidence(model: Any, items: Sequence[str]) -> dict[str, Any]:
    """Evidence from name=value pairs; values are labels for variables with labels, else numbers."""
    evidence: dict[str, Any] = {}
    for item in items:
        name, _, value = item.partition("=")
        if not value or not name:
            raise QueryError(f"--evidence: expected name=value, got {item!r}.")
        if name in evidence:
            raise QueryError(f"--evidence: '{name}' is given twice.")
        labels = _labels_by_text(model.labels.get(name, ()))
        if labels and value not in labels:
            raise QueryError(f"--evidence {name}={value}: expected one of {', '.join(labels)}.")
        try:
            evidence[name] = [labels[value] if labels else float(value)]
        except ValueError:
            raise QueryError(
                f"--evidence {name}={value}: expected a number, for the model has no labels here."
            ) from None
    return evidence


def _labels_by_text(labels: Sequence[Any]) -> dict[str, Any]:
    """Text -> label; booleans may be written as numbers."""
    codes = {str(state): label for state, label in enumerate(labels)} if labels and is_code_range(labels) else {}
    return {**codes, **{str(label): label for label in labels}}


def _target_probabilities(model: Any, target: str, path: str) -> np.ndarray:
    """(rows, classes) probabilities of a model's target.

    Args:
        model: fitted.
        target: its target or condition variable.
        path: of a CSV file; a leaf that is a vector or an image has a column per entry, ``name[0]``, ``name[1]``, …
    """
    shapes = {v: shape_of(model.graph.variables[v]) for v in model.graph.observed if v != target}
    columns = {v: [f"{v}[{i}]" for i in range(math.prod(shape))] if shape else [v] for v, shape in shapes.items()}
    table = _read_features(path, [c for names in columns.values() for c in names], model.labels)
    evidence = {
        v: table[columns[v]].to_numpy(dtype=np.float64).reshape(-1, *shape) if shape else table[v].to_numpy()
        for v, shape in shapes.items()
    }
    with torch.no_grad():
        probabilities: np.ndarray = model.posterior(target, evidence).numpy()
    return probabilities


def _read_features(path: str, names: Sequence[str], labels: Mapping[str, Sequence[Any]]) -> pd.DataFrame:
    """Named columns of a CSV file.

    Args:
        path: of a file with a header that includes the features. Empty cells are missing values.
        names: of the features.
        labels: feature -> labels of its states, for features given by label.

    Returns:
        A column for each feature: labels for features in ``labels``, numbers for others.

    Raises:
        DataError: no such file, no rows, missing columns, or a value that is neither a number nor a label.
    """
    if not Path(path).is_file():
        raise DataError(f"No file at '{path}'. Check the path.")
    try:  # all cells as text, including the header, in which pandas would rename repeated columns
        table = pd.read_csv(path, header=None, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except pd.errors.EmptyDataError:
        raise DataError(f"'{path}' is empty: expected a header that names the features, and rows below it.") from None
    except ValueError as error:  # pandas' own errors, and bytes that are not text
        raise DataError(
            f"'{path}' is not a CSV table ({str(error).strip()}). Save it as comma-separated UTF-8."
        ) from error
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
    return pd.DataFrame(
        {
            v: _read_cells(
                f"'{path}', column '{v}'", table.iloc[1:, header.index(v)].fillna("").str.strip(), labels.get(v)
            )
            for v in names
        }
    )


def _read_cells(where: str, cells: Iterable[str], labels: Sequence[Any] | None) -> pd.Series[Any]:
    """A column of labels, or of finite numbers without ``labels``; None or NaN where missing."""
    texts = {**dict.fromkeys(MISSING), **_labels_by_text(labels or ())}
    values = []
    for row, cell in enumerate(cells):
        try:
            value = texts[cell] if labels is not None or cell in texts else float(cell)
            if labels is None and value is not None and not math.isfinite(value):
                raise ValueError
        except (KeyError, ValueError):
            expected = "a finite number" if labels is None else f"one of {', '.join(map(str, labels))}"
            raise DataError(
                f"{where}, row {row}: expected {expected}, got {cell!r}. Leave the cell empty if the value is missing."
            ) from None
        values.append(value)
    return pd.Series(values, dtype=float if labels is None else object)
