"""A piece of work, and a library's way to do it. Free of torch: the process of every library loads this module."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Answer = dict[str, Array]
"""Results to compare: name -> numbers."""


class Work(NamedTuple):
    """Prepared work.

    Args:
        run: the call to be timed.
        answer: turns the result of ``run`` into numbers that are compared between implementations.
    """

    run: Callable[[], Any]
    answer: Callable[[Any], Answer] = lambda result: {}


Make = Callable[..., Work]
AnyMake = TypeVar("AnyMake", bound=Make)


def needs(*packages: str) -> Callable[[AnyMake], AnyMake]:
    """Declare the packages, by their names for pip, without which a function that prepares work is left out."""

    def declare(make: AnyMake) -> AnyMake:
        make.packages = packages  # type: ignore[attr-defined]
        return make

    return declare


@dataclass(frozen=True)
class Implementation:
    """A library's way to do a piece of work, sent to that library's process.

    Args:
        label: name in tables and figures.
        make: a function of a module that imports, builds and converts everything that is not timed.
        arguments: of ``make``, by name; picklable.
        threads: of its process; those of the run by default.
        checkout: folder from which its process imports torchpbp; the installed one by default.
    """

    label: str
    make: Make
    arguments: Mapping[str, Any] = field(default_factory=dict)
    threads: int | None = None
    checkout: Path | None = None

    @property
    def packages(self) -> tuple[str, ...]:
        return getattr(self.make, "packages", ("torchpbp",))


@dataclass(frozen=True)
class Tables:
    """A discrete network as plain arrays.

    Args:
        states: name -> number of states.
        parents: name -> its parents.
        cpts: name -> (states of each parent…, states of name) conditional probabilities.
    """

    states: dict[str, int]
    parents: dict[str, tuple[str, ...]]
    cpts: dict[str, Array]

    @property
    def edges(self) -> list[tuple[str, str]]:
        return [(p, v) for v, parents in self.parents.items() for p in parents]


def evidence_rows(evidence: Mapping[str, Array]) -> Iterator[dict[str, int]]:
    """Rows of (rows,) states, -1 where not observed, as one dictionary each."""
    for i in range(len(next(iter(evidence.values())))):
        yield {v: int(x[i]) for v, x in evidence.items() if x[i] >= 0}


def stacked(rows: list[dict[str, Array]], states: Mapping[str, int]) -> Answer:
    """Posteriors of single rows as name -> (rows, states), NaN where a row observes the variable."""
    result = {v: np.full((len(rows), k), np.nan) for v, k in states.items()}
    for i, row in enumerate(rows):
        for v, values in row.items():
            result[v][i] = values
    return result


def first_step(tables: Mapping[str, Any]) -> Answer:
    """Tables after a single iteration of EM, under names of their own."""
    return {f"{v} after one iteration": np.asarray(table) for v, table in tables.items()}


def measure(run: Callable[[], object], calls: int) -> tuple[float, float]:
    """Seconds per call, by the wall clock and of the processor, over several calls in a row without garbage collection."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(calls):
            run()
        return (time.perf_counter() - wall) / calls, (time.process_time() - cpu) / calls
    finally:
        if collecting:
            gc.enable()


def memory_of(run: Callable[[], Any]) -> tuple[Any, float]:
    """The result of a call, and by how many megabytes it raised the peak memory of this process."""
    with suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as switch:
        switch.write("5")  # resets the peak, where the system allows it
    before = _peak_memory()
    result = run()
    return result, (_peak_memory() - before) / 1e6


def _peak_memory() -> int:
    """Peak memory of this process in bytes. ``ru_maxrss`` would start from the size of the parent process."""
    try:
        with open("/proc/self/status", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
