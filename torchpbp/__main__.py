"""Model files at the shell: ``python -m torchpbp show|query|predict``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import torch

from torchpbp import cli
from torchpbp.errors import TorchPBPError


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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m torchpbp", description="Look at models, and ask them.")
    commands = parser.add_subparsers(required=True, metavar="show|query|predict")
    show = commands.add_parser("show", help="variables, junction tree and diagnostics of a model")
    show.add_argument("model", help="file written by save()")
    show.set_defaults(run=lambda o: cli.show(o.model))
    query = commands.add_parser(
        "query",
        help="posteriors given evidence",
        epilog="example: python -m torchpbp query model.pt --evidence a1=3 b2=0 --target d1",
    )
    query.add_argument("model", help="file written by save()")
    query.add_argument("--evidence", nargs="*", default=[], metavar="NAME=VALUE", help="states, labels or numbers")
    query.add_argument(
        "--target", nargs="*", default=[], metavar="NAME", help="variables asked for; default: all others"
    )
    query.add_argument("--json", action="store_true", help="machine-readable")
    query.set_defaults(run=lambda o: cli.query(o.model, o.evidence, o.target, o.json))
    predict = commands.add_parser(
        "predict",
        help="classes of the rows of a CSV file",
        epilog="example: python -m torchpbp predict classifier.pt rows.csv --output predictions.csv",
    )
    predict.add_argument(
        "model", help="file of a GenerativeClassifier or of a model with a target, such as train.py model=digits writes"
    )
    predict.add_argument("rows", help="CSV file; its header names the features, empty cells are missing values")
    predict.add_argument("--json", action="store_true", help="machine-readable, with the probability of every class")
    predict.add_argument("--output", metavar="FILE", help="write a CSV file, with the probability of every class")
    predict.set_defaults(run=lambda o: cli.predict(o.model, o.rows, o.output, o.json))
    return parser


if __name__ == "__main__":
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # as train.py: the same answers to the last bit
    sys.exit(main())
