"""A look at model files from the shell: ``python -m torchpbp show model.pt`` and ``query model.pt --target d``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

import torch

from torchpbp.errors import QueryError, TorchPBPError
from torchpbp.loading import load
from torchpbp.model.pbp import PBP

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
    if isinstance(model, PBP):
        rows = int(model.rows)
        lines.append(f"learned from {rows:,} rows" if rows else "learned from exact probabilities")
    width = max(map(len, graph.names))
    lines.append("")
    for v in graph.names:
        kind = "hidden  " if v in graph.latent else "observed"
        domain = graph.variables[v]
        size = f"{domain} states" if isinstance(domain, int) else ("continuous" if domain else "states not given")
        labels = ", ".join(map(str, model.labels.get(v, ())))
        lines.append(f"{v:<{width}}  {kind}  {size}{f': {labels}' if labels else ''}")
    lines += ["", "edges: " + ", ".join(f"{a} {'->' if graph.directed else '--'} {b}" for a, b in graph.edges)]
    if isinstance(model, PBP):
        lines += ["", str(model.tree), "", model.diagnostics().to_string(index=False)]
    return "\n".join(lines)


def query(options: argparse.Namespace) -> str:
    """Posteriors of one row of evidence."""
    model = load(options.model)
    evidence = _evidence(model, options.evidence)
    targets = options.target or [v for v in model.graph.observed if v not in evidence]
    answers = {v: _answer(model, v, evidence) for v in targets}
    log_evidence = float(model.log_evidence(evidence)[0]) if evidence else 0.0
    if options.json:
        return json.dumps({"log_evidence": log_evidence, "posteriors": answers}, indent=2)
    lines = [f"log P(evidence) = {log_evidence:.6g}"] if evidence else []
    for v, distribution in answers.items():
        given = ", ".join(options.evidence)
        lines += ["", f"P({v} | {given})" if given else f"P({v})"]
        width = max(map(len, distribution))
        lines += [f"  {k:<{width}}  {p:>9.6f}  {'█' * round(BAR * p)}".rstrip() for k, p in distribution.items()]
    return "\n".join(lines)


def _answer(model: Any, name: str, evidence: dict[str, Any]) -> dict[str, float]:
    """Label or number of each state -> probability; of a continuous variable its mean and standard deviation."""
    found = model.posterior(name, evidence or None)
    if not isinstance(found, torch.Tensor):
        return {"mean": float(found.mean[0]), "std": float(found.variance[0]) ** 0.5}
    labels = model.labels.get(name) or range(found.shape[1])
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
    commands = parser.add_subparsers(required=True, metavar="show|query")
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
    return parser


if __name__ == "__main__":
    sys.exit(main())
