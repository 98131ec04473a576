"""Rows of pen digits."""

from __future__ import annotations

import pytest
from torch import Tensor

from torchpbp.datasets import load_digits


@pytest.fixture(scope="session")
def rows() -> tuple[Tensor, Tensor]:
    digits = load_digits()
    return digits.train_x[:400], digits.train_y[:400]
