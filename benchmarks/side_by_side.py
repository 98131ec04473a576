"""Timing of several implementations in separate processes, after their results have been compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import TypeVar

import numpy as np

from benchmarks.implementation import Answer, Implementation
from benchmarks.timing import Comparison
from benchmarks.workers import STARTUP_SECONDS, TooSlow, Worker, WorkerError, Workers
from torchpbp.errors import DataError

T = TypeVar("T")
Check = Callable[[Mapping[str, Answer]], None]


@dataclass
class RunOptions:
    """How benchmarks are run.

    Args:
        workers: processes.
        size: "full", "quick" or "tiny" (for tests); each benchmark defines its own sizes.
        rounds: measurements of each implementation.
        limit: seconds that one call of an implementation may take.
        budget: seconds for all rounds of one implementation in one comparison; slower ones are measured once.
        note: called with the current step.
        rows: of the table that is counted at scale, if other than the size says.
        axes: along which scale is measured; all of them if empty.
    """

    workers: Workers
    size: str = "full"
    rounds: int = 3
    limit: float = 60.0
    budget: float = 20.0
    note: Callable[[str], None] = lambda text: None
    rows: int | None = None
    axes: Sequence[str] = ()

    def choose(self, full: T, quick: T, tiny: T) -> T:
        """The value for this size."""
        return {"full": full, "quick": quick, "tiny": tiny}[self.size]


@dataclass
class Outcome:
    """Results and timings of a comparison.

    Args:
        answers: label -> answer.
        comparison: the timings; ``None`` if no implementation was left.
        left_out: label -> why.
        too_slow: labels that exceeded the limit, which bounds their time from below.
    """

    answers: dict[str, Answer] = field(default_factory=dict)
    comparison: Comparison | None = None
    left_out: dict[str, str] = field(default_factory=dict)
    too_slow: dict[str, float] = field(default_factory=dict)

    def seconds(self, label: str) -> float | None:
        """Best time; ``None`` for one that was left out."""
        return None if self.comparison is None else self.comparison.best.get(label)

    def times(self, slow: str, quick: str) -> float | None:
        """Time of the first divided by that of the second."""
        one, other = self.seconds(slow), self.seconds(quick)
        return None if one is None or other is None else one / other


def time_side_by_side(
    settings: RunOptions,
    implementations: Sequence[Implementation],
    title: str,
    check: Check | None = None,
    least_seconds: float = 0.02,
) -> Outcome:
    """Have implementations do the same work, compare their results, and time them in interleaved rounds.

    The first call of each is not measured, unless all rounds of it would exceed the budget: then it is the only one.

    Args:
        settings: of the run.
        implementations: with different labels; the first is the reference of ratios.
        title: description of the work.
        check: raises :class:`~torchpbp.errors.DataError` if the answers do not agree.
        least_seconds: quick calls are repeated until a measurement takes about this long.
    """
    outcome = Outcome()
    firsts: dict[str, float] = {}
    entered = []
    present = [c for c in implementations if installed(c.library)]
    outcome.left_out.update({c.label: missing(c.library) for c in implementations if c not in present})
    settings.note(title)
    for implementation in present:  # concurrently, since importing takes longest
        settings.workers.of(implementation).send("prepare", implementation)
    prepared = []
    for implementation in present:
        worker = settings.workers.of(implementation)
        with _failures_recorded(outcome, implementation.label, settings.limit):
            worker.receive(settings.limit + STARTUP_SECONDS)
            worker.holds.add(implementation.label)
            prepared.append(implementation)
    for implementation in prepared:
        label = implementation.label
        settings.note(f"{title}: {label}")
        with _failures_recorded(outcome, label, settings.limit):
            firsts[label], outcome.answers[label] = _ready(settings, implementation).ask(
                "answer", label, limit=settings.limit
            )
            entered.append(implementation)
    if check is not None and outcome.answers:
        check(outcome.answers)
    if entered:
        outcome.comparison = _rounds(settings, entered, firsts, title, least_seconds)
    for implementation in prepared:
        worker = settings.workers.of(implementation)
        if worker.holds:
            worker.holds.clear()
            worker.ask("drop", limit=STARTUP_SECONDS)
    return outcome


def _ready(settings: RunOptions, implementation: Implementation) -> Worker:
    """The implementation's process; if it was terminated meanwhile, a new one with the implementation prepared."""
    worker = settings.workers.of(implementation)
    if implementation.label not in worker.holds:
        worker.ask("prepare", implementation, limit=settings.limit + STARTUP_SECONDS)
        worker.holds.add(implementation.label)
    return worker


@contextmanager
def _failures_recorded(outcome: Outcome, label: str, limit: float) -> Iterator[None]:
    """Record an implementation that fails or takes too long, and continue."""
    try:
        yield
    except TooSlow:
        outcome.left_out[label] = f"more than {limit:g} s"
        outcome.too_slow[label] = limit
    except WorkerError as error:
        outcome.left_out[label] = str(error)


def _rounds(
    settings: RunOptions,
    entered: Sequence[Implementation],
    firsts: Mapping[str, float],
    title: str,
    least_seconds: float,
) -> Comparison:
    seconds: dict[str, list[float]] = {c.label: [] for c in entered}
    calls = {label: max(1, math.ceil(least_seconds / max(first, 1e-9))) for label, first in firsts.items()}
    running = []
    for implementation in entered:
        if firsts[implementation.label] * settings.rounds > settings.budget:
            seconds[implementation.label].append(firsts[implementation.label])
        else:
            running.append(implementation)
    for turn in range(settings.rounds):
        settings.note(f"{title}: round {turn + 1}")
        for implementation in running:
            _ready(settings, implementation).ask("tidy", limit=STARTUP_SECONDS)
        first = turn % max(1, len(running))
        for implementation in running[first:] + running[:first]:
            limit = settings.limit + STARTUP_SECONDS  # it has run within the limit before
            measured = settings.workers.of(implementation).ask(
                "time", implementation.label, calls[implementation.label], limit=limit
            )
            seconds[implementation.label].append(measured)
    return Comparison(title, entered[0].label, seconds, calls)


def agree(tolerance: float) -> Check:
    """A check that all answers are those of the first implementation, with NaN in the same places.

    Args:
        tolerance: largest absolute difference allowed.
    """

    def check(answers: Mapping[str, Answer]) -> None:
        (reference, expected), *others = answers.items()
        for label, result in others:
            shared = sorted(set(expected) & set(result))
            if not shared:
                raise DataError(f"{label}: expected answers about {sorted(expected)}, got {sorted(result)}.")
            for name in shared:
                # an implementation with fewer rows is compared on those
                rows = min(len(expected[name]), len(result[name]))
                one, other = expected[name][:rows], result[name][:rows]
                apart = np.where(np.isnan(one) & np.isnan(other), 0.0, np.abs(one - other))
                worst = float(apart.max(initial=0.0))  # NaN if only one of them has a result
                if not worst <= tolerance:
                    raise DataError(
                        f"{label}: expected the answers of {reference} to {tolerance:g}, got {name} off by {worst:.3g}. "
                        "Nothing was timed."
                    )

    return check


def installed(library: str) -> bool:
    """Whether a package is installed, without importing it."""
    try:
        version(library)
    except PackageNotFoundError:
        return False
    return True


def missing(library: str) -> str:
    """The reason, with a remedy, for a package that is not installed."""
    return f"not installed (pip install -c constraints.txt {library})"
