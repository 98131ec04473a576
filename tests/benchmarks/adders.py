"""Work for tests, in a module of its own: other processes load it, and nothing heavy with it."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from benchmarks.work import Answer, Work, needs


@needs("numpy")
def adder(numbers: list[float], fault: str = "") -> Work:
    """Adds numbers up, or misbehaves."""
    if fault == "unprepared":
        raise RuntimeError("cannot prepare")

    def run() -> float:
        if fault == "error":
            raise ValueError("cannot add")
        if fault == "slow":
            time.sleep(60)
        if fault == "dies":
            os._exit(1)
        return sum(numbers) + (1.0 if fault == "wrong" else 0.0)

    def answer(total: Any) -> Answer:
        environment = {"process": float(os.getpid()), "threads": float(os.environ["OMP_NUM_THREADS"])}
        return {"sum": np.array(total), **{name: np.array(value) for name, value in environment.items()}}

    return Work(run, answer)


@needs("no-such-package")
def absent() -> Work:
    """Cannot run."""
    raise AssertionError("a package that is not installed")
