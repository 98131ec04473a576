"""Runs the implementations of a piece of work: results are compared first, then all are timed in interleaved rounds."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from benchmarks.report import Panel, Report, Row, installed_version
from benchmarks.work import Answer, Implementation
from benchmarks.workers import STARTUP_SECONDS, TooSlow, WorkerError, Workers, answer, collect, prepare, timed

T = TypeVar("T")
Check = Callable[[Mapping[str, Answer]], None]


class WrongAnswer(Exception):
    """Implementations of the same work disagree; nothing was timed."""


@dataclass(frozen=True)
class Options:
    """How benchmarks are run.

    Args:
        tiny: every step at meaningless sizes.
        rounds: measurements of each implementation; by default each benchmark's own number.
        limit: seconds that one call of an implementation may take.
        threads: of each process.
        only: texts; parts of a benchmark whose name contains none of them are left out.
        rows: of the table that ``scale`` counts.
        other: folder of another checkout of torchpbp.
    """

    tiny: bool = False
    rounds: int | None = None
    limit: float = 60.0
    threads: int = 1
    only: tuple[str, ...] = ()
    rows: int | None = None
    other: Path | None = None


@dataclass(frozen=True)
class Comparison:
    """Answers and timings of several implementations of the same work.

    Args:
        title: description of the work.
        wall, cpu: label -> seconds per call by the wall clock and of the processor, one number for each round.
        answers: label -> answer.
        bounds: label -> seconds that an implementation exceeded.
    """

    title: str
    wall: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    bounds: dict[str, float] = field(default_factory=dict)

    def seconds(self, label: str) -> float | None:
        """Wall-clock seconds of the best round, since disturbances only add time; ``None`` for one that was left out."""
        return min(self.wall[label]) if label in self.wall else None

    def ratio(self, label: str, reference: str) -> float | None:
        """Best time of one over the best time of another."""
        one, other = self.seconds(label), self.seconds(reference)
        return None if one is None or other is None else one / other

    def table(self) -> list[Row]:
        """A row per implementation, with times as multiples of the first one's."""
        reference = next(iter(self.wall), "")
        return [
            {
                "": label,
                "ratio": self.ratio(label, reference),
                "best, s": min(times),
                "worst/best": max(times) / min(times),
            }
            for label, times in self.wall.items()
        ]

    def panel(self) -> Panel:
        """Times of all rounds over the best time of the first implementation, the best round first."""
        unit = min(next(iter(self.wall.values())))
        curves = {label: [(0.0, seconds / unit) for seconds in sorted(times)] for label, times in self.wall.items()}
        return Panel(self.title, "time / best time of the first", curves=curves)


class Runner:
    """Runs one benchmark.

    Args:
        name: of the benchmark.
        options: of the run.
        workers: processes, shared by the benchmarks of a run.
        say: called with the current step.

    Attributes:
        report: the results.
    """

    def __init__(
        self, name: str, options: Options, workers: Workers, say: Callable[[str], None] = lambda text: None
    ) -> None:
        self.options, self.workers, self.say = options, workers, say
        self.report = Report(name)

    def choose(self, full: T, tiny: T) -> T:
        """The value for the size of the run."""
        return tiny if self.options.tiny else full

    def rounds(self, usual: int = 3) -> int:
        """Measurements of each implementation; ``usual`` where the command line names no number."""
        return self.options.rounds or self.choose(usual, 1)

    def wanted(self, part: str) -> bool:
        """Whether a part of the benchmark is to be run."""
        return not self.options.only or any(text.lower() in part.lower() for text in self.options.only)

    def installed(self, *packages: str) -> bool:
        """Whether packages are installed; those that are not are listed as left out, with the remedy."""
        absent = [package for package in packages if installed_version(package) is None]
        remedy = "not installed (pip install -c constraints.txt {})"
        self.report.left_out.update({package: remedy.format(package) for package in absent})
        return not absent

    def compare(
        self,
        title: str,
        implementations: Sequence[Implementation],
        check: Check | None = None,
        *,
        rounds: int | None = None,
        limit: float | None = None,
        least_seconds: float = 0.02,
        show: bool = True,
    ) -> Comparison:
        """Compare the results of implementations, and time them in rounds, each of which starts with another one.

        The first call of each is not measured, unless all rounds would take more than a third of the run's time limit: then it is the only one.

        Args:
            title: description of the work.
            implementations: with different labels; the first is the reference of ratios.
            check: raises :class:`WrongAnswer` if the answers do not agree.
            rounds: measurements of each, if other than the run's.
            limit: seconds of a call, if other than the run's.
            least_seconds: quick calls are repeated until a measurement takes about this long.
            show: add a table to the report.

        Raises:
            WorkerError: an implementation raised an error.
        """
        rounds, limit = rounds or self.rounds(), limit or self.options.limit
        result, firsts = Comparison(title), {}
        present = [i for i in implementations if self.installed(*i.packages)]
        self.say(title)
        preparing = []
        for implementation in present:  # concurrently, since importing takes longest
            worker = self.workers.of(implementation)
            preparing.append((implementation, worker, worker.send(prepare, pickle.dumps(implementation))))
        for implementation, worker, future in preparing:
            with self._limited(result, present, implementation, limit):
                if worker.alive:  # otherwise an earlier one has exceeded its limit
                    worker.receive(future, limit + STARTUP_SECONDS)
                    worker.prepared.add(implementation.label)
        for implementation in list(present):
            label = implementation.label
            self.say(f"{title}: {label}")
            with self._limited(result, present, implementation, limit):
                worker = self.workers.ready(implementation, limit)
                firsts[label], result.answers[label] = worker.ask(answer, label, limit=limit)
        if check is not None and result.answers:
            check(result.answers)
        repeated = []
        for implementation in present:
            label = implementation.label
            result.wall[label], result.cpu[label] = [], []
            if firsts[label] * rounds > self.options.limit / 3:
                result.wall[label].append(firsts[label])
            else:
                repeated.append(implementation)
        for turn in range(rounds):
            self.say(f"{title}: round {turn + 1}")
            for implementation in repeated:
                self.workers.ready(implementation, limit).ask(collect)
            first = turn % max(1, len(repeated))
            for implementation in repeated[first:] + repeated[:first]:
                label = implementation.label
                calls = max(1, math.ceil(least_seconds / max(firsts[label], 1e-9)))
                with self._limited(result, repeated, implementation, limit + STARTUP_SECONDS):
                    worker = self.workers.ready(implementation, limit)
                    wall, cpu = worker.ask(timed, label, calls, limit=limit + STARTUP_SECONDS)
                    result.wall[label].append(wall)
                    result.cpu[label].append(cpu)
        for label in result.bounds.keys() & result.wall.keys():  # exceeded in a later round
            del result.wall[label], result.cpu[label]
        self.workers.drop()
        if result.wall:
            self.report.measurements.append(
                {"title": title, "wall": result.wall, "cpu": result.cpu, "bounds": result.bounds}
            )
            if show:
                self.report.tables[title] = result.table()
        return result

    def numbers(self, title: str, implementation: Implementation) -> dict[str, float] | None:
        """Numbers that an implementation measures itself, as the answer of its only call, in a new process.

        Args:
            title: description of the work.
            implementation: with an answer of single numbers.

        Returns:
            The numbers; ``None`` if a package is missing or the time limit was exceeded.
        """
        present = [implementation]
        if not self.installed(*implementation.packages):
            return None
        self.say(title)
        limit = self.options.limit + STARTUP_SECONDS
        with Workers(self.workers.threads) as alone, self._limited(Comparison(title), present, implementation, limit):
            _, numbers = alone.ready(implementation, limit).ask(answer, implementation.label, limit=limit)
            return {name: float(value) for name, value in numbers.items()}
        return None

    @contextmanager
    def _limited(
        self, result: Comparison, present: list[Implementation], implementation: Implementation, limit: float
    ) -> Iterator[None]:
        """Take out an implementation that exceeds its time limit, and say which one raised an error."""
        try:
            yield
        except TooSlow:
            present.remove(implementation)
            result.bounds[implementation.label] = limit
            self.report.left_out[f"{result.title}: {implementation.label}"] = f"more than {limit:g} s"
        except WorkerError as error:
            raise WorkerError(f"{self.report.name}, {result.title}: {implementation.label}: {error}") from None


def agree(tolerance: float) -> Check:
    """A check that all answers are finite and those of the first implementation, with NaN in the same places.

    Args:
        tolerance: largest absolute difference allowed.
    """

    def check(answers: Mapping[str, Answer]) -> None:
        (reference, expected), *others = answers.items()
        for label, result in others:
            shared = sorted(set(expected) & set(result))
            if not shared and (expected or result):
                raise WrongAnswer(f"{label}: expected answers about {sorted(expected)}, got {sorted(result)}.")
            for name in shared:
                one, other = np.atleast_1d(expected[name]), np.atleast_1d(result[name])
                rows = min(len(one), len(other))  # some implementations are asked about fewer
                one, other = one[:rows], other[:rows]
                apart = np.where(np.isnan(one) & np.isnan(other), 0.0, np.abs(one - other))
                worst = float(apart.max(initial=0.0))  # NaN if only one of them has a result
                if not worst <= tolerance:
                    raise WrongAnswer(
                        f"{label}: expected the answers of {reference} to {tolerance:g}, got {name} off by {worst:.3g}."
                    )

    return check


def summary(reports: Sequence[Report]) -> str:
    """The last line of a run: targets, and what was left out, with the reasons."""
    claims = [claim for report in reports for claim in report.claims]
    missed, unmeasured = (sum(claim.met is verdict for claim in claims) for verdict in (False, None))
    met = len(claims) - missed - unmeasured
    left_out: dict[str, Any] = {}
    for report in reports:
        for name, reason in report.left_out.items():
            missing = reason.startswith("not installed")
            left_out[name if missing else f"{report.name}, {name}"] = reason
    listed = "; ".join(f"{name}: {reason}" for name, reason in left_out.items()) or "nothing"
    return f"{len(claims)} targets: {met} met, {missed} missed, {unmeasured} not measured. Left out: {listed}."
