"""Two checkouts of torchpbp side by side: fitting, batched posteriors and a step through PBPLayer, or maximum likelihood.

Each checkout has its own process. Both do the same work in alternation, and the ratio of times is taken within each pair, so that a
change of the machine's load affects both. Results are compared before timing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from benchmarks.workers import THREAD_VARIABLES, WorkerError
from torchpbp.errors import ArgumentError, DataError

CASES = (
    "fit, diamond",
    "fit, hidden Markov model",
    "fit, loopy network",
    "fit, mixed chain",
    "posteriors, diamond",
    "posteriors, chain of 60",
    "exact posteriors, ALARM",
    "exact queries one by one, ALARM",
    "classes, forward and backward",
    "PBPLayer, forward and backward",
)
LIKELIHOOD = tuple(
    f"likelihood, {structure}, {rows:,} rows"
    for rows in (10_000, 100_000)
    for structure in (
        "diamond",
        "hmm",
        "latent_tree",
        "loopy_network",
        "naive_bayes",
        "nested_loops",
        "factorial_hmm",
    )
)
"""Maximum likelihood; a checkout that does not have it takes ten starts of EM."""
APART, NATS_APART = 1e-6, 0.01
"""Most that answers differ, and likelihoods per row."""
HERE = Path(__file__).resolve().parents[1]
LEAST_SECONDS = 0.2
"""Quick work is repeated until a measurement takes about this long."""


@dataclass(frozen=True)
class Ratios:
    """Time of this checkout over that of the other, pair by pair.

    Args:
        case: what was done.
        wall, cpu: ratios by the wall clock and of processor time.
        seconds: median of the other checkout's wall-clock seconds per call.
    """

    case: str
    wall: list[float]
    cpu: list[float]
    seconds: float

    def __str__(self) -> str:
        shown = [
            f"{middle:>8.3f} ({low:.3f} to {high:.3f})"
            for low, middle, high in (np.percentile(values, [25, 50, 75]) for values in (self.wall, self.cpu))
        ]
        return f"{self.case:<44}{''.join(shown)}  {self.seconds:>9.4f}"


class CheckoutProcess:
    """A process that imports torchpbp from one checkout.

    Args:
        checkout: folder that contains the package ``torchpbp``.
        threads: that it may use.

    Raises:
        ArgumentError: a folder without the package.
        WorkerError: the process did not start, or imported another torchpbp.
    """

    def __init__(self, checkout: Path, threads: int) -> None:
        if not (checkout / "torchpbp" / "__init__.py").is_file():
            raise ArgumentError(f"checkout: expected a folder with the package torchpbp, got {str(checkout)!r}.")
        self.checkout = checkout.resolve()
        environment = {**os.environ, "PYTHONPATH": str(self.checkout), **dict.fromkeys(THREAD_VARIABLES, str(threads))}
        worker = HERE / "benchmarks" / "version_worker.py"
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(worker), str(threads)],  # -P: the worker's folder has names such as report.py
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )
        package = Path(self._reply()["package"])
        if not package.is_relative_to(self.checkout):
            self.stop()
            raise WorkerError(f"expected torchpbp of {self.checkout}, got {package}")

    def ask(self, command: Any) -> dict[str, Any]:
        """The reply to a command of :func:`benchmarks.version_worker.serve`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._reply()

    def _reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.stop()
            raise WorkerError(f"The process of {self.checkout} ended. Does `import torchpbp` work there?")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise WorkerError(f"{self.checkout}: {reply['error']}")
        return reply

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> CheckoutProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def compare_checkouts(new: CheckoutProcess, old: CheckoutProcess, case: str, rounds: int, tiny: bool = False) -> Ratios:
    """Time one case in both checkouts.

    Args:
        new, old: the processes; ratios are new over old.
        case: one of :data:`CASES` or :data:`LIKELIHOOD`.
        rounds: pairs of measurements; who comes first alternates.
        tiny: few rows and no repetition, for tests.

    Raises:
        DataError: the answers differ by more than 1e-6, likelihoods by more than 0.01 nats per row.
    """
    prepared = [process.ask([case, tiny]) for process in (new, old)]
    one, other = (np.array(reply["answer"]) for reply in prepared)
    apart = float(np.abs(one - other).max()) if one.shape == other.shape else math.inf
    if not apart <= (NATS_APART if case in LIKELIHOOD else APART):
        raise DataError(f"{case}: expected the same answers of both checkouts, got some {apart:.3g} apart.")
    calls = 1 if tiny else max(1, math.ceil(LEAST_SECONDS / prepared[1]["seconds"]))
    pairs = []
    for turn in range(rounds):
        order = (new, old) if turn % 2 == 0 else (old, new)
        replies = {process: process.ask(calls) for process in order}
        pairs.append((replies[new], replies[old]))
    wall, cpu = ([a[clock] / b[clock] for a, b in pairs] for clock in ("wall", "cpu"))
    return Ratios(case, wall, cpu, float(np.median([b["wall"] for _, b in pairs])))


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare this checkout with another and print the ratios.

    Args:
        arguments: of the command line.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.versions", description=__doc__)
    parser.add_argument("--other", required=True, type=Path, help="folder of the other checkout, the older one")
    parser.add_argument("--rounds", type=int, default=15, help="pairs of measurements of each case (default 15)")
    parser.add_argument("--threads", type=int, default=1, help="of each process (default 1)")
    choices = (*CASES, *LIKELIHOOD)
    parser.add_argument(
        "--case", action="append", choices=choices, metavar="CASE", help=f"one of {choices}; may be repeated"
    )
    parser.add_argument(
        "--likelihood", action="store_true", help="the cases of maximum likelihood instead of the others"
    )
    parser.add_argument("--tiny", action="store_true", help="few rows: every step, with numbers that mean nothing")
    given = parser.parse_args(arguments)
    if min(given.rounds, given.threads) < 1:
        parser.error("--rounds and --threads: expected whole numbers of at least 1.")
    try:
        with CheckoutProcess(HERE, given.threads) as new, CheckoutProcess(given.other, given.threads) as old:
            print(f"{given.rounds} pairs, {given.threads} thread(s); time here over time in the other checkout:")
            print(f"{'':<44}{'wall clock: median (quartiles)':<32}{'processor time':<25}other, s")
            for case in tqdm(given.case or (LIKELIHOOD if given.likelihood else CASES), unit="case"):
                ratios = compare_checkouts(new, old, case, given.rounds, given.tiny)
                tqdm.write(str(ratios))
    except (ArgumentError, DataError, WorkerError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
