"""A contest: contestants answer, answers are compared, and only then is the clock started."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import TypeVar

import numpy as np

from benchmarks.contestant import Answer, Contestant
from benchmarks.timing import Comparison
from benchmarks.workers import STARTUP_SECONDS, TooSlow, Worker, WorkerError, Workers
from torchpbp.errors import DataError

T = TypeVar("T")
Check = Callable[[Mapping[str, Answer]], None]


@dataclass
class Settings:
    """How benchmarks are run.

    Args:
        workers: processes.
        size: "full", "quick" or "tiny" (for tests); each benchmark knows its own numbers.
        rounds: measurements of each contestant.
        limit: seconds that one call of a contestant may take.
        budget: seconds for all rounds of one contestant in one contest; who would need more is measured once.
        note: told what is going on.
    """

    workers: Workers
    size: str = "full"
    rounds: int = 3
    limit: float = 60.0
    budget: float = 20.0
    note: Callable[[str], None] = lambda text: None

    def choose(self, full: T, quick: T, tiny: T) -> T:
        """The value for this size."""
        return {"full": full, "quick": quick, "tiny": tiny}[self.size]


@dataclass
class Outcome:
    """What came of a contest.

    Args:
        answers: label -> answer.
        comparison: the timings; ``None`` if nobody was left.
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
        """How many times as long the first takes as the second."""
        one, other = self.seconds(slow), self.seconds(quick)
        return None if one is None or other is None else one / other


def contest(
    settings: Settings,
    contestants: Sequence[Contestant],
    title: str,
    check: Check | None = None,
    least_seconds: float = 0.02,
) -> Outcome:
    """Let contestants do the same work, compare what they answer, and time them in interleaved rounds.

    The first call of each is not measured, unless all rounds of it would exceed the budget: then it is the only one.

    Args:
        settings: of the run.
        contestants: with different labels; the first is the reference of ratios.
        title: what they do.
        check: raises :class:`~torchpbp.errors.DataError` if the answers do not agree.
        least_seconds: quick calls are repeated until a measurement takes about this long.
    """
    outcome = Outcome()
    firsts: dict[str, float] = {}
    entered = []
    present = [c for c in contestants if installed(c.library)]
    outcome.left_out.update({c.label: missing(c.library) for c in contestants if c not in present})
    settings.note(title)
    for contestant in present:  # at the same time, for importing takes longest
        settings.workers.of(contestant).send("prepare", contestant)
    prepared = []
    for contestant in present:
        worker = settings.workers.of(contestant)
        with _excused(outcome, contestant.label, settings.limit):
            worker.receive(settings.limit + STARTUP_SECONDS)
            worker.holds.add(contestant.label)
            prepared.append(contestant)
    for contestant in prepared:
        label = contestant.label
        settings.note(f"{title}: {label}")
        with _excused(outcome, label, settings.limit):
            firsts[label], outcome.answers[label] = _ready(settings, contestant).ask(
                "answer", label, limit=settings.limit
            )
            entered.append(contestant)
    if check is not None and outcome.answers:
        check(outcome.answers)
    if entered:
        outcome.comparison = _rounds(settings, entered, firsts, title, least_seconds)
    for contestant in prepared:
        worker = settings.workers.of(contestant)
        if worker.holds:
            worker.holds.clear()
            worker.ask("drop", limit=STARTUP_SECONDS)
    return outcome


def _ready(settings: Settings, contestant: Contestant) -> Worker:
    """The contestant's process; if it was ended over another contestant meanwhile, a new one that holds it."""
    worker = settings.workers.of(contestant)
    if contestant.label not in worker.holds:
        worker.ask("prepare", contestant, limit=settings.limit + STARTUP_SECONDS)
        worker.holds.add(contestant.label)
    return worker


@contextmanager
def _excused(outcome: Outcome, label: str, limit: float) -> Iterator[None]:
    """Note a contestant that fails or takes too long as left out, and go on."""
    try:
        yield
    except TooSlow:
        outcome.left_out[label] = f"more than {limit:g} s"
        outcome.too_slow[label] = limit
    except WorkerError as error:
        outcome.left_out[label] = str(error)


def _rounds(
    settings: Settings, entered: Sequence[Contestant], firsts: Mapping[str, float], title: str, least_seconds: float
) -> Comparison:
    seconds: dict[str, list[float]] = {c.label: [] for c in entered}
    calls = {label: max(1, math.ceil(least_seconds / max(first, 1e-9))) for label, first in firsts.items()}
    running = []
    for contestant in entered:
        if firsts[contestant.label] * settings.rounds > settings.budget:
            seconds[contestant.label].append(firsts[contestant.label])
        else:
            running.append(contestant)
    for turn in range(settings.rounds):
        settings.note(f"{title}: round {turn + 1}")
        for contestant in running:
            _ready(settings, contestant).ask("tidy", limit=STARTUP_SECONDS)
        first = turn % max(1, len(running))
        for contestant in running[first:] + running[:first]:
            limit = settings.limit + STARTUP_SECONDS  # a slow spell of the machine is no reason to give up now
            measured = settings.workers.of(contestant).ask(
                "time", contestant.label, calls[contestant.label], limit=limit
            )
            seconds[contestant.label].append(measured)
    return Comparison(title, entered[0].label, seconds, calls)


def agree(tolerance: float) -> Check:
    """A check that all answers are those of the first contestant, with NaN in the same places.

    Args:
        tolerance: largest absolute difference allowed.
    """

    def check(answers: Mapping[str, Answer]) -> None:
        (reference, expected), *others = answers.items()
        for label, found in others:
            shared = sorted(set(expected) & set(found))
            if not shared:
                raise DataError(f"{label}: expected answers about {sorted(expected)}, got {sorted(found)}.")
            for name in shared:
                # one that answered fewer rows is compared on those
                rows = min(len(expected[name]), len(found[name]))
                one, other = expected[name][:rows], found[name][:rows]
                apart = np.where(np.isnan(one) & np.isnan(other), 0.0, np.abs(one - other))
                worst = float(apart.max(initial=0.0))  # NaN if only one of them says something
                if not worst <= tolerance:
                    raise DataError(
                        f"{label}: expected the answers of {reference} to {tolerance:g}, got {name} off by {worst:.3g}. "
                        "Nothing was timed."
                    )

    return check


def installed(library: str) -> bool:
    """Whether a package is there, without importing it."""
    try:
        version(library)
    except PackageNotFoundError:
        return False
    return True


def missing(library: str) -> str:
    """What to do about a package that is not there."""
    return f"not installed (pip install -c constraints.txt {library})"
