"""Numbers that were computed in two ways: equal up to rounding.

How sums are rounded depends on the processor, which adds up as many numbers at once as its registers hold, and on the number
of threads. Bit equality is for a computation that is repeated as it was, and for numbers that are only moved; everything else
is compared with a tolerance.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

RTOL, ATOL = 1e-10, 1e-12
"""Tolerances for answers in double precision: far above rounding, far below any mistake."""


def assert_same_up_to_rounding(
    found: Any, expected: Any, what: str = "", rtol: float = RTOL, atol: float = ATOL
) -> None:
    """Two ways to the same numbers.

    Args:
        found: a number, an array or a tensor, or lists or dicts of them.
        expected: the same from another computation.
        what: named where they differ.
        rtol: relative tolerance; larger than the default only for a reason.
        atol: absolute tolerance.
    """
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol, msg=lambda text: f"{what}: {text}")


def weights(model: torch.nn.Module) -> list[Tensor]:
    """All parameters of a model, without their gradients."""
    return [p.detach() for p in model.parameters()]
