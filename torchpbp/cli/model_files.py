"""Description and queries of model files: ``python -m torchpbp show`` and ``query``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch

from torchpbp.classifier import GenerativeClassifier
from torchpbp.contract.frames import state_labels
from torchpbp.errors import QueryError
from torchpbp.inputs.labels import is_code_range
from torchpbp.io import load
from torchpbp.models.kernel.kernel_pbp import KernelPBP
from torchpbp.models.pbp import PBP

BAR = 40
"""Characters of the bar of probability 1."""


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
    variable_labels = _labels(model)
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


def _labels(model: Any) -> dict[str, Any]:
    return dict(model.labels_ if isinstance(model, GenerativeClassifier) else model.labels)


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
        name, mark, value = item.partition("=")
        if not mark or not value or not name:
            raise QueryError(f"--evidence: expected name=value, got {item!r}.")
        if name in evidence:
            raise QueryError(f"--evidence: '{name}' is given twice.")
        labels = model.labels.get(name)
        named = labels and (not is_code_range(labels) or value in map(str, labels))
        evidence[name] = [_labelled(name, value, labels)] if named else [_number(name, value)]
    return evidence


def _labelled(name: str, value: str, labels: Sequence[Any]) -> Any:
    for label in labels:
        if str(label) == value:
            return label
    raise QueryError(f"--evidence {name}={value}: expected one of {', '.join(map(str, labels))}.")


def _number(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise QueryError(f"--evidence {name}={value}: expected a number, for the model has no labels here.") from None
