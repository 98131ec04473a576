"""What random inputs need of the process they are drawn in."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _subnormal_numbers() -> None:
    """Runs of train.py in the same process flush subnormal numbers to 0; hypothesis draws them and wants them to exist."""
    torch.set_flush_denormal(False)
