"""One process per library, with a given number of threads, that prepares and times implementations on demand.

Libraries have their own thread pools, allocators and import-time settings; in separate processes they cannot interfere with
each other. A process that exceeds its time limit is terminated, and a new one is started when needed.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from tqdm import tqdm

from benchmarks.clock import measure
from benchmarks.implementation import Implementation

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
STARTUP_SECONDS = 120.0
"""For importing libraries and preparing, in addition to the time limit."""


class WorkerError(Exception):
    """A implementation raised an error in its process; the message is that of the error."""


class TooSlow(Exception):
    """A implementation did not finish in time."""


class Worker:
    """Handle of the process of one library.

    Args:
        library: for its name.
        threads: that it may use.

    Attributes:
        holds: labels of the implementations prepared in it.
    """

    def __init__(self, library: str, threads: int) -> None:
        self.holds: set[str] = set()
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs,), name=f"benchmark {library}", daemon=True)
        with _environment(dict.fromkeys(THREAD_VARIABLES, str(threads))):
            self._process.start()
        theirs.close()

    def ask(self, command: str, *arguments: Any, limit: float) -> Any:
        """Send a command and wait for the reply; see :meth:`send` and :meth:`receive`."""
        self.send(command, *arguments)
        return self.receive(limit)

    def send(self, command: str, *arguments: Any) -> None:
        """Send a command.

        Args:
            command: one of those listed below.
            arguments: of it; picklable.
        """
        if self.alive:
            with suppress(BrokenPipeError, ConnectionResetError):  # receive() reports it
                self._connection.send((command, arguments))

    def receive(self, limit: float) -> Any:
        """The reply to the earliest command without one.

        Args:
            limit: seconds.

        Raises:
            TooSlow: no reply in time; the process has been terminated.
            WorkerError: the implementation failed.
        """
        try:
            if not self._connection.poll(limit):
                self.stop()
                raise TooSlow
            good, value = self._connection.recv()
        except (EOFError, OSError):
            self.stop()
            raise WorkerError("its process ended, perhaps for lack of memory") from None
        if not good:
            raise WorkerError(value)
        return value

    def stop(self, patience: float = 0.0) -> None:
        """End the process.

        Args:
            patience: seconds to wait for it to exit on its own, as it does when the connection is closed.
        """
        self._connection.close()
        self._process.join(patience)
        if self._process.is_alive():
            self._process.terminate()
        self._process.join()

    @property
    def alive(self) -> bool:
        return self._process.is_alive()


class Workers:
    """The processes of a run, started as they are needed.

    Args:
        threads: of each, where an implementation does not say otherwise.
    """

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self._running: dict[tuple[str, int], Worker] = {}

    def of(self, implementation: Implementation) -> Worker:
        """The process of an implementation's library."""
        key = implementation.library, implementation.threads or self.threads
        if key not in self._running or not self._running[key].alive:
            self._running[key] = Worker(*key)
        return self._running[key]

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._running.values():
            worker.stop(patience=5.0)
        self._running.clear()


def serve(connection: Connection) -> None:
    """Main loop of a worker process: execute commands until the connection is closed."""
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # libraries print progress and warnings; errors travel through the connection
        os.dup2(silence, stream)
    tqdm.set_lock(threading.RLock())  # its default lock would outlive a terminated process
    kept: dict[str, Implementation] = {}
    while True:
        try:
            command, arguments = connection.recv()
        except EOFError:
            return
        except Exception as error:  # an implementation whose module does not load here
            connection.send((False, f"{type(error).__name__}: {error}"))
            continue
        try:
            value = _COMMANDS[command](kept, *arguments)
            connection.send((True, value))
        except Exception as error:
            connection.send((False, f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]))


def _prepare(kept: dict[str, Implementation], implementation: Implementation) -> None:
    implementation.prepare()
    kept[implementation.label] = implementation


def _answer(kept: dict[str, Implementation], label: str) -> tuple[float, Any]:
    """Seconds of a first call, and its answer."""
    implementation = kept[label]
    start = time.perf_counter()
    result = implementation.run()
    seconds = time.perf_counter() - start
    return seconds, implementation.answer(result)


def _time(kept: dict[str, Implementation], label: str, calls: int) -> float:
    return measure(kept[label].run, calls)


def _tidy(kept: dict[str, Implementation]) -> None:
    gc.collect()


def _drop(kept: dict[str, Implementation]) -> None:
    kept.clear()
    gc.collect()


def peak_memory() -> int:
    """Peak memory of this process in bytes. ``ru_maxrss`` would start from the size of the parent process."""
    try:
        with open("/proc/self/status", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


_COMMANDS: dict[str, Callable[..., Any]] = {
    "prepare": _prepare,
    "answer": _answer,
    "time": _time,
    "tidy": _tidy,
    "drop": _drop,
}


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Environment variables for processes started within the context."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
