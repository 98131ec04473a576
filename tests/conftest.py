"""Settings shared by all tests."""

from __future__ import annotations

import os

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
