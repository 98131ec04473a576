"""Fits on an emulated device run in a process of their own.

Once it is registered, torch's autograd keeps threads for it, and a process with such threads cannot be forked by other tests.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).with_name("emulated_device_checks.py")


@pytest.mark.slow
def test_fits_on_an_emulated_device():
    command = [sys.executable, "-m", "pytest", "-n", "0", "-m", "", "-p", "no:cacheprovider", str(CHECKS)]
    run = subprocess.run(command, cwd=CHECKS.parents[1], capture_output=True, text=True, timeout=600, check=False)
    if run.returncode == pytest.ExitCode.NO_TESTS_COLLECTED and "skipped" in run.stdout:
        pytest.skip("this version of torch has no Python backends")
    assert run.returncode == 0, run.stdout[-10_000:] + run.stderr[-2_000:]
    assert " passed" in run.stdout
