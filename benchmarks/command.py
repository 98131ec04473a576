"""The command line of the benchmarks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch
from tqdm.auto import tqdm

from benchmarks import digits, hmm, planning, queries, scale, startup, trace, training, versions
from benchmarks.runner import Options, Runner, WrongAnswer, summary
from benchmarks.workers import WorkerError, Workers

MODULES: tuple[ModuleType, ...] = (training, hmm, queries, digits, scale, planning, startup, trace, versions)
BENCHMARKS = {module.__name__.rpartition(".")[2]: module for module in MODULES}
RESULTS = Path(__file__).parent / "results"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run benchmarks.

    Args:
        arguments: of the command line.

    Raises:
        SystemExit: with a message, if an implementation raised an error or gave a wrong answer.
    """
    parser = _parser()
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"names: expected some of {', '.join(BENCHMARKS)}, got {', '.join(unknown)}.")
    if given.list:
        for name, module in BENCHMARKS.items():
            print(f"{name:<10}  {(module.__doc__ or '').splitlines()[0]}")
        return
    if "versions" in given.names and given.other is None:
        parser.error("versions: expected --other <folder of another checkout of torchpbp>.")
    if given.other is not None and not (given.other / "torchpbp" / "__init__.py").is_file():
        parser.error(f"--other: expected a folder with the package torchpbp, got {str(given.other)!r}.")
    if given.only and given.output == RESULTS:
        parser.error(f"--only: a part of the results does not replace those in {RESULTS}; expected --output as well.")
    other = given.other and given.other.resolve()
    options = Options(given.tiny, given.rounds, given.limit, given.threads, (*given.only,), given.rows, other)
    names = given.names or [name for name in BENCHMARKS if name != "versions" or other]
    torch.set_num_threads(given.threads)  # of this process, which draws data and checks results
    reports = []
    with Workers(given.threads) as workers, tqdm(names, unit="benchmark") as bar:
        for name in bar:
            runner = Runner(name, options, workers, lambda text: bar.set_description(text[:70]))
            try:
                BENCHMARKS[name].run(runner)
            except (WorkerError, WrongAnswer) as error:
                bar.close()
                sys.exit(f"{type(error).__name__}: {name}: {error}")
            if given.tiny:
                runner.report.claims.clear()  # targets are for the full sizes
            runner.report.write(given.output, given.tiny, given.threads)
            bar.clear()
            print(runner.report, end="\n\n", flush=True)
            reports.append(runner.report)
    print(summary(reports))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Benchmarks of torchpbp.")
    names = ", ".join(BENCHMARKS)
    parser.add_argument("names", nargs="*", metavar="name", help=f"by default all, versions with --other only: {names}")
    parser.add_argument("--tiny", action="store_true", help="every step at meaningless sizes, in seconds")
    parser.add_argument("--threads", type=_positive, default=1, help="of each library's process (default 1)")
    parser.add_argument("--rounds", type=_positive, help="measurements of each implementation")
    parser.add_argument("--limit", type=_positive, default=60, help="seconds for one call (default 60)")
    parser.add_argument(
        "--only", nargs="+", default=(), metavar="text", help="parts whose name contains one of the texts"
    )
    parser.add_argument("--rows", type=_positive, help="of the table that scale counts (default 10^8)")
    parser.add_argument("--other", type=Path, metavar="folder", help="another checkout, for versions and trace")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for the results")
    parser.add_argument("--list", action="store_true", help="list the benchmarks and exit")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)
