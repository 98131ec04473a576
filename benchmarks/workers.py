"""Processes that prepare and time implementations: one per library, number of threads and checkout of torchpbp.

Libraries have their own thread pools, allocators and import-time settings; in separate processes they cannot interfere with
each other. A process that exceeds its time limit is terminated, and a new one is started when needed.
"""

from __future__ import annotations

import concurrent.futures
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.work import Answer, Implementation, Work, measure

THREAD_VARIABLES = [f"{library}_NUM_THREADS" for library in ("OMP", "MKL", "OPENBLAS", "NUMBA")]
"""Read when a library is imported."""
STARTUP_SECONDS = 120.0
"""For importing libraries and preparing, in addition to the time limit."""
Kind = tuple[tuple[str, ...], int, Path | None]
"""Packages, threads and checkout of a process."""


class WorkerError(Exception):
    """An implementation raised an error in its process; the message includes that of the error."""


class TooSlow(Exception):
    """An implementation did not finish in time."""


class Worker:
    """Handle of a process.

    Args:
        kind: of the process.

    Attributes:
        prepared: labels of the implementations prepared in it.
        alive: whether it can be asked.
    """

    def __init__(self, kind: Kind) -> None:
        _, threads, checkout = kind
        self.prepared: set[str] = set()
        self.alive = True
        spawn = multiprocessing.get_context("spawn")
        self._executor = ProcessPoolExecutor(1, spawn, initializer=start, initargs=(checkout,))
        with _environment(dict.fromkeys(THREAD_VARIABLES, str(threads))):
            self._process = self._executor.submit(os.getpid)

    def send(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Have a function of this module called in the process."""
        return self._executor.submit(function, *arguments)

    def receive(self, future: Future[Any], limit: float = STARTUP_SECONDS) -> Any:
        """The result of a call.

        Args:
            future: from :meth:`send`.
            limit: seconds.

        Raises:
            TooSlow: no result in time; the process has been terminated.
            WorkerError: the implementation failed.
        """
        concurrent.futures.wait([future], limit)
        if not future.done():
            self.stop()
            raise TooSlow
        try:
            return future.result()
        except BrokenProcessPool:
            self.alive = False
            raise WorkerError("its process ended, perhaps for lack of memory") from None
        except Exception as error:
            raise WorkerError(f"{type(error).__name__}: {error}") from error

    def ask(self, function: Callable[..., Any], *arguments: Any, limit: float = STARTUP_SECONDS) -> Any:
        """Call a function of this module in the process, and wait for the result."""
        return self.receive(self.send(function, *arguments), limit)

    def stop(self) -> None:
        """Terminate the process."""
        if self.alive:
            self.alive = False
            os.kill(self._process.result(), signal.SIGTERM)
        self._executor.shutdown()


class Workers:
    """The processes of a run, started as they are needed.

    Args:
        threads: of each, where an implementation does not say otherwise.
    """

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self._running: dict[Kind, Worker] = {}

    def of(self, implementation: Implementation) -> Worker:
        """The process of an implementation, whether or not the implementation is prepared in it."""
        kind = implementation.packages, implementation.threads or self.threads, implementation.checkout
        if kind not in self._running or not self._running[kind].alive:
            self._running[kind] = Worker(kind)
        return self._running[kind]

    def ready(self, implementation: Implementation, limit: float) -> Worker:
        """The process of an implementation with the implementation prepared, again if the process was terminated meanwhile."""
        worker = self.of(implementation)
        if implementation.label not in worker.prepared:
            worker.ask(prepare, pickle.dumps(implementation), limit=limit + STARTUP_SECONDS)
            worker.prepared.add(implementation.label)
        return worker

    def drop(self) -> None:
        """Free everything that is prepared."""
        for worker in self._running.values():
            if worker.alive and worker.prepared:
                worker.prepared.clear()
                worker.ask(drop)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._running.values():
            worker.stop()
        self._running.clear()


# -- in the process ----------------------------------------------------------------------------------------------------

WORKS: dict[str, Work] = {}
"""Label -> work that is prepared in this process."""


def start(checkout: Path | None) -> None:
    """Silence the process, and let it import torchpbp from a checkout."""
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # libraries print progress and warnings; errors are results
        os.dup2(silence, stream)
    tqdm.set_lock(threading.RLock())  # its default lock would outlive a terminated process
    if checkout is not None:
        sys.path.insert(0, str(checkout))


def prepare(implementation: bytes) -> None:
    """Prepare a pickled implementation: what does not load here raises an error here."""
    given: Implementation = pickle.loads(implementation)
    if given.checkout is not None:
        import torchpbp

        if not Path(torchpbp.__file__).is_relative_to(given.checkout):
            raise ImportError(f"expected torchpbp of {given.checkout}, got {torchpbp.__file__}")
    WORKS[given.label] = given.make(**given.arguments)


def answer(label: str) -> tuple[float, Answer]:
    """Seconds of a first call, and its answer."""
    before = time.perf_counter()
    result = WORKS[label].run()
    seconds = time.perf_counter() - before
    return seconds, WORKS[label].answer(result)


def timed(label: str, calls: int) -> tuple[float, float]:
    """Seconds per call, by the wall clock and of the processor."""
    return measure(WORKS[label].run, calls)


def collect() -> None:
    """Collect garbage; it is left alone during measurements."""
    gc.collect()


def drop() -> None:
    """Free everything that is prepared."""
    WORKS.clear()
    gc.collect()


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Environment variables for processes started within the context."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
