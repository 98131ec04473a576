"""Model files and folders of runs at the shell: ``python -m torchpbp show|query|predict|report|sweep``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import torch

from torchpbp.cli import model_files, prediction
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


def _report(options: argparse.Namespace) -> str:
    from torchpbp.experiments.running.report import write_report  # loads matplotlib, which takes seconds

    return "\n".join(str(write_report(folder)) for folder in options.folder)


def _sweep(options: argparse.Namespace) -> str:
    from torchpbp.experiments.running.sweep_report import write_sweep_report

    return write_sweep_report(options.folder, options.metric, options.output)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m torchpbp", description="Look at models and at runs of train.py.")
    commands = parser.add_subparsers(required=True, metavar="show|query|predict|report|sweep")
    show = commands.add_parser("show", help="variables, junction tree and diagnostics of a model")
    show.add_argument("model", help="file written by save()")
    show.set_defaults(run=lambda o: model_files.show(o.model))
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
    query.set_defaults(run=lambda o: model_files.query(o.model, o.evidence, o.target, o.json))
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
    predict.set_defaults(run=lambda o: prediction.predict(o.model, o.rows, o.output, o.json))
    report = commands.add_parser("report", help="write report.html of a run again: results, pictures, models, settings")
    report.add_argument("folder", nargs="+", help="folder of a run, such as outputs/<date_time>")
    report.set_defaults(run=_report)
    sweep = commands.add_parser(
        "sweep",
        help="summarise a multirun: averages over seeds",
        description="Writes sweep.csv (a row per job), summary.csv (a row per combination of overrides, averaged over "
        "seeds), sweep.png and report.html.",
    )
    sweep.add_argument("folder", help="multirun folder, such as multirun/<date_time>")
    sweep.add_argument(
        "--metric",
        nargs="+",
        action="extend",
        help="metrics to show, by name or pattern ('kl/*'); default: those that differ between runs, validation first",
    )
    sweep.add_argument("--output", help="folder for the files; default: the multirun folder")
    sweep.set_defaults(run=_sweep)
    return parser


if __name__ == "__main__":
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # as train.py: the same answers to the last bit
    sys.exit(main())
