"""Where mixed precision stops: moments, solves and contractions."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def full_precision(device: torch.device | str) -> AbstractContextManager[Any]:
    """A block without autocast: differences of probabilities need the digits that half precision lacks.

    Args:
        device: of the tensors in it.
    """
    kind = torch.device(device).type
    return nullcontext() if kind == "meta" else torch.autocast(device_type=kind, enabled=False)
