"""Implementations for tests, in a module of their own: their processes load it, and nothing heavy with it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from benchmarks.implementation import Answer, Implementation


@dataclass
class Adder(Implementation):
    """Adds numbers up, or misbehaves."""

    library: ClassVar[str] = "numpy"
    numbers: list[float]
    fault: str = ""

    def prepare(self) -> None:
        self.calls = 0

    def run(self) -> Any:
        self.calls += 1
        if self.fault == "error":
            raise ValueError("cannot add")
        if self.fault == "slow":
            time.sleep(60)
        if self.fault == "dies":
            os._exit(1)
        return sum(self.numbers) + (1.0 if self.fault == "wrong" else 0.0)

    def answer(self, result: Any) -> Answer:
        threads = np.array([float(os.environ["OMP_NUM_THREADS"])])
        return {"sum": np.array([result]), "process": np.array([float(os.getpid())]), "threads": threads}


@dataclass
class Absent(Adder):
    library: ClassVar[str] = "no-such-package"
