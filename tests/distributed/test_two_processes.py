"""Two processes with half of the rows each learn what one process learns from all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.closeness import assert_same_up_to_rounding
from tests.distributed.launching import run_processes
from tests.distributed.two_processes import fit_all

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("two_processes.py")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[torch.Tensor]]]:
    folder = tmp_path_factory.mktemp("shared")
    run_processes(SCRIPT, folder)
    return [torch.load(folder / f"operators{rank}.pt") for rank in range(2)]


def test_two_processes_learn_the_same_operators_as_one(shared):
    alone = fit_all(1)
    first, second = shared
    assert first.keys() == second.keys() == alone.keys()
    for name, expected in alone.items():
        for a, b, c in zip(first[name], second[name], expected, strict=True):
            assert_same_up_to_rounding(a, b, name)  # both processes hold the same model
            torch.testing.assert_close(a, c, rtol=1e-6, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")
