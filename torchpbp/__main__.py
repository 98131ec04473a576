"""Model files at the shell: ``python -m torchpbp show model.pt``, ``query model.pt --target d``, ``predict model.pt rows.csv``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import torch

from torchpbp.classifier import GenerativeClassifier
from torchpbp.contract.frames import state_labels
from torchpbp.errors import CheckpointError, DataError, QueryError, TorchPBPError
from torchpbp.files.loading import load
from torchpbp.files.replacing import replacing
from torchpbp.models.ensemble import ScoreAverage
from torchpbp.models.kernel.kernel_pbp import KernelPBP
from torchpbp.models.pbp import PBP
from torchpbp.prediction import predict_rows, read_features

BAR = 40
"""Characters of a bar that stands for probability 1."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        with torch.no_grad():
            print(options.run(options))
    except TorchPBPError as error:
        print(error, file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever was reading has seen enough
        sys.stderr.close()
    return 0


def show(options: argparse.Namespace) -> str:
    """What a model file holds."""
    model = load(options.model)
    graph = model.graph
    lines = [f"{type(model).__name__} of {len(graph.observed)} observed and {len(graph.latent)} hidden variables"]
    if isinstance(model, GenerativeClassifier):
        lines += [f"classes: {', '.join(map(str, model.classes_))}", "", "one model for each class, the first being"]
        lines += _learned_from(model.models_[0])
    else:
        lines += _learned_from(model)[1:]
    width = max(map(len, graph.names))
    lines.append("")
    known = _labels(model)
    for v in graph.names:
        kind = "hidden  " if v in graph.latent else "observed"
        domain = graph.variables[v]
        size = f"{domain} states" if isinstance(domain, int) else ("continuous" if domain else "states not given")
        labels = ", ".join(map(str, known.get(v, ())))
        lines.append(f"{v:<{width}}  {kind}  {size}{f': {labels}' if labels else ''}")
    lines += ["", "edges: " + ", ".join(f"{a} {'->' if graph.directed else '--'} {b}" for a, b in graph.edges)]
    if isinstance(model, PBP):
        lines += ["", str(model.tree), "", model.diagnostics().to_string(index=False)]
    return "\n".join(lines)


def _learned_from(model: Any) -> list[str]:
    """A model in a line, with its rows if it knows them; the members of an average below."""
    lines = [type(model).__name__]
    if isinstance(model, PBP):
        rows = int(model.rows)
        lines.append(f"learned from {rows:,} rows" if rows else "learned from exact probabilities")
    if isinstance(model, KernelPBP):
        lines.append(f"learned from {len(model.examples):,} rows, which it keeps")
        if model.settings.landmarks is not None:
            lines.append(f"low-rank approximation by {model.settings.landmarks} of them")
        if model.chart.moved:
            lines.append(f"compared by increments: {', '.join(v for v in model.names if v in model.chart.moved)}")
    if isinstance(model, ScoreAverage):
        for i, (weight, member) in enumerate(zip(model.settings.weights, model.members, strict=True), 1):
            about = "; ".join(_learned_from(member))
            lines.append(f"member {i}, weight {weight:.3g}: {about}; {len(member.graph.latent)} hidden variables")  # type: ignore[union-attr, arg-type]
    return lines


def _labels(model: Any) -> dict[str, Any]:
    return dict(model.labels_ if isinstance(model, GenerativeClassifier) else model.labels)


def query(options: argparse.Namespace) -> str:
    """Posteriors of one row of evidence."""
    model = load(options.model)
    if isinstance(model, GenerativeClassifier):
        raise QueryError(
            f"'{options.model}' holds a classifier, with a model for each class. Predict with 'python -m torchpbp predict', or ask "
            "one of torchpbp.load(…).models_."
        )
    evidence = _evidence(model, options.evidence)
    targets = options.target or [v for v in model.graph.observed if v not in evidence]
    answers = {v: _answer(model, v, evidence) for v in targets}
    log_evidence = float(model.log_evidence(evidence)[0]) if evidence else 0.0
    if options.json:
        return json.dumps({"log_evidence": log_evidence, "posteriors": answers}, indent=2)
    name = "average log P(evidence) of the members" if isinstance(model, ScoreAverage) else "log P(evidence)"
    lines = [f"{name} = {log_evidence:.6g}"] if evidence else []
    if isinstance(model, ScoreAverage):
        lines.append("posteriors of the first member:")
    for v, distribution in answers.items():
        given = ", ".join(options.evidence)
        lines += ["", f"P({v} | {given})" if given else f"P({v})"]
        width = max(map(len, distribution))
        lines += [f"  {k:<{width}}  {p:>9.6f}  {'█' * round(BAR * p)}".rstrip() for k, p in distribution.items()]
    return "\n".join(lines)


def predict(options: argparse.Namespace) -> str:
    """Predicted class and its probability for each row of a CSV file."""
    classifier = load(options.model)
    if not isinstance(classifier, GenerativeClassifier):
        raise CheckpointError(
            f"'{options.model}' holds a {type(classifier).__name__}, not a classifier. Ask it with 'python -m torchpbp query'."
        )
    classifier.progress = sys.stderr.isatty()
    found = predict_rows(classifier, read_features(options.rows, classifier))
    short = found[["row", "predicted", "probability"]]
    if options.output:
        try:
            with replacing(options.output) as temporary:
                found.to_csv(temporary, index=False)
        except OSError as error:
            raise DataError(f"'{options.output}' could not be written: {error}. Choose another file.") from error
    if options.json:
        names = [str(c) for c in classifier.classes_]
        every = found.iloc[:, 3:].to_numpy().tolist()
        lines = [
            {**line, "probabilities": dict(zip(names, p, strict=True))}
            for line, p in zip(short.to_dict("records"), every, strict=True)
        ]
        return json.dumps(lines, indent=2)
    if options.output:
        return f"{len(found):,} predictions in {options.output}"
    return short.to_string(index=False, formatters={"probability": "{:.4f}".format})


def _answer(model: Any, name: str, evidence: dict[str, Any]) -> dict[str, float]:
    """Label or number of each state -> probability; of a continuous variable its mean and standard deviation."""
    found = model.posterior(name, evidence or None)
    if not isinstance(found, torch.Tensor):
        return {"mean": float(found.mean[0]), "std": float(found.variance[0]) ** 0.5}
    labels = state_labels(model, name)
    return {str(label): float(p) for label, p in zip(labels, found[0], strict=True)}


def _evidence(model: Any, items: Sequence[str]) -> dict[str, Any]:
    """name=value pairs; a value is a label where the model knows labels, else a number."""
    evidence: dict[str, Any] = {}
    for item in items:
        name, mark, value = item.partition("=")
        if not mark or not value or not name:
            raise QueryError(f"--evidence: expected name=value, got {item!r}.")
        if name in evidence:
            raise QueryError(f"--evidence: '{name}' is given twice.")
        labels = model.labels.get(name)
        evidence[name] = [_labelled(name, value, labels)] if labels else [_number(name, value)]
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m torchpbp", description="Look at a model file, or ask it.")
    commands = parser.add_subparsers(required=True, metavar="show|query|predict")
    showing = commands.add_parser("show", help="variables, junction tree and diagnostics")
    showing.add_argument("model", help="file written by save()")
    showing.set_defaults(run=show)
    asking = commands.add_parser(
        "query",
        help="posteriors given evidence",
        epilog="example: python -m torchpbp query model.pt --evidence a1=3 b2=0 --target d1",
    )
    asking.add_argument("model", help="file written by save()")
    asking.add_argument("--evidence", nargs="*", default=[], metavar="NAME=VALUE", help="states, labels or numbers")
    asking.add_argument(
        "--target", nargs="*", default=[], metavar="NAME", help="variables asked for; default: all others"
    )
    asking.add_argument("--json", action="store_true", help="machine-readable")
    asking.set_defaults(run=query)
    predicting = commands.add_parser(
        "predict",
        help="classes of the rows of a CSV file",
        epilog="example: python -m torchpbp predict classifier.pt rows.csv --output predictions.csv",
    )
    predicting.add_argument("model", help="file written by GenerativeClassifier.save(), or by train.py model=digits")
    predicting.add_argument("rows", help="CSV file; its header names the features, empty cells are missing values")
    predicting.add_argument("--json", action="store_true", help="machine-readable, with the probability of every class")
    predicting.add_argument("--output", metavar="FILE", help="write a CSV file, with the probability of every class")
    predicting.set_defaults(run=predict)
    return parser


if __name__ == "__main__":
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # as train.py: the same answers to the last bit
    sys.exit(main())
