"""The command line of the benchmarks."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from types import ModuleType

import torch
from tqdm.auto import tqdm

from benchmarks import digits, hmm, planning, queries, scale, training
from benchmarks.report import Claim
from benchmarks.side_by_side import RunOptions
from benchmarks.this_library.scaling import AXES
from benchmarks.workers import Workers

BENCHMARKS: tuple[ModuleType, ...] = (training, hmm, queries, digits, scale, planning)
RESULTS = "benchmarks/results"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run benchmarks.

    Args:
        arguments: of the command line.
    """
    available = {module.__name__.rpartition(".")[2]: module for module in BENCHMARKS}
    parser = _parser(list(available))
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in available]
    if unknown:
        parser.error(f"names: expected some of {', '.join(available)}, got {', '.join(unknown)}.")
    if given.axes and given.output == RESULTS:
        parser.error(f"--axes: a part of the results does not replace those in {RESULTS}; expected --output as well.")
    if given.list:
        for name, module in available.items():
            print(f"{name:<10}  {(module.__doc__ or '').splitlines()[0]}")
        return
    size = "tiny" if given.tiny else "quick" if given.quick else "full"
    rounds = given.rounds or {"tiny": 1, "quick": 2, "full": 3}[size]
    limit = given.limit or {"tiny": 30.0, "quick": 5.0, "full": 60.0}[size]
    torch.set_num_threads(given.threads)  # of this process, which samples data and checks results
    claims: list[Claim] = []
    names = given.names or list(available)
    with Workers(given.threads) as workers, tqdm(names, unit="benchmark") as bar:
        budget = 4.0 if size == "quick" else 20.0
        settings = RunOptions(
            workers, size, rounds, limit, budget, lambda text: bar.set_description(text[:70]), given.rows, given.axes
        )
        for name in bar:
            report = available[name].run(settings)
            report.write(given.output, size, given.threads)
            bar.clear()
            print(report, end="\n\n", flush=True)
            claims += report.claims
    missed = sum(claim.met is False for claim in claims)
    unmeasured = sum(claim.met is None for claim in claims)
    print(
        f"{len(claims)} targets: {len(claims) - missed - unmeasured} met, {missed} missed, {unmeasured} not measured."
    )


def _parser(names: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="torchpbp compared with other libraries.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"which ones; all by default: {', '.join(names)}")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="smaller sizes, under three minutes for all")
    size.add_argument("--tiny", action="store_true", help="every step at meaningless sizes, in seconds")
    parser.add_argument("--threads", type=_positive, default=1, help="of each library's process (default 1)")
    parser.add_argument("--rounds", type=_positive, help="measurements of each implementation (default 3; quick: 2)")
    parser.add_argument(
        "--limit", type=_positive, help="seconds for one call of an implementation (default 60; quick: 5)"
    )
    parser.add_argument("--rows", type=_positive, help="of the table that scale counts (default 10^8; quick: 4·10^6)")
    parser.add_argument(
        "--axes", nargs="+", choices=AXES, default=(), metavar="axis", help=f"of scale: {', '.join(AXES)} (default all)"
    )
    parser.add_argument("--output", default=RESULTS, help="folder for the results")
    parser.add_argument("--list", action="store_true", help="list the benchmarks and exit")
    return parser


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return value
