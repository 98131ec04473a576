"""Measuring one call. Light to import: processes of other libraries load it too."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable


def measure(call: Callable[[], object], times: int) -> float:
    """Seconds per call over ``times`` calls in a row, without garbage collection."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        start = time.perf_counter()
        for _ in range(times):
            call()
        return (time.perf_counter() - start) / times
    finally:
        if collecting:
            gc.enable()
