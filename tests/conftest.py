"""Settings shared by all tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from multiprocessing.process import BaseProcess
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

# Matrices in the tests are small: a second thread would mostly wait for the first. TEST_THREADS=2 tries what it changes.
torch.set_num_threads(int(os.environ.get("TEST_THREADS", "1")))

# The default run repeats the same examples, so that a failure is a change in the code and not in the draw.
# HYPOTHESIS_PROFILE=explore looks further and draws anew each time.
_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
settings.register_profile("repeatable", max_examples=40, derandomize=True, database=None, **_COMMON)
settings.register_profile("explore", max_examples=500, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked gpu are skipped where there is none."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(autouse=True)
def _subnormal_numbers() -> None:
    """Runs of train.py in the same process flush subnormal numbers to 0; other tests want them to exist."""
    torch.set_flush_denormal(False)


# -- quick tests start no process --------------------------------------------------------------------------------------

STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec")
running: pytest.Item | None = None
"""The quick test at work, if one is."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    global running
    running = None if item.get_closest_marker("slow") else item
    try:
        return (yield)
    finally:
        running = None


def _forbid_processes(event: str, _: tuple[Any, ...] = ()) -> None:
    if event in STARTS and running is not None:
        raise AssertionError(f"{running.nodeid} starts a process ({event}): mark it slow.")


def _start(process: BaseProcess) -> None:
    """Python tells its hooks nothing of processes that multiprocessing spawns."""
    _forbid_processes("subprocess.Popen")
    _START(process)


sys.addaudithook(_forbid_processes)
_START, BaseProcess.start = BaseProcess.start, _start  # type: ignore[method-assign]
