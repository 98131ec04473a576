"""Where mixed precision stops: moments, solves and contractions."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

UNCHANGED = nullcontext()


def full_precision(device: torch.device | str) -> AbstractContextManager[Any]:
    """A block without autocast: differences of probabilities need the digits that half precision lacks.

    Args:
        device: of the tensors in it.
    """
    kind = torch.device(device).type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return UNCHANGED
    return torch.autocast(device_type=kind, enabled=False)
