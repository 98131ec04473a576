"""Running average of weights, as a callback of Lightning."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor

from torchpbp.settings import between


class WeightAverage(WeightAveraging):
    """Exponential moving average of weights that forgets where training began.

    The plain average gives the initial weights a share of decayⁿ after n steps, 13 % for 0.998 and 1,000 steps. Here the decay grows with
    the number of steps, (1 + n) / (10 + n), up to ``decay``. Validation, checkpoints and the end of training use the average.

    Args:
        decay: at most; 0 for the weights as they are.
    """

    def __init__(self, decay: float = 0.998) -> None:
        largest = between(0.0, 1.0).check("decay", decay)

        def average(old: Tensor, new: Tensor, count: Any) -> Tensor:
            share = min(largest, (1 + float(count)) / (10 + float(count)))
            return torch.lerp(new, old, share) if old.is_floating_point() else new

        super().__init__(avg_fn=average, use_buffers=False)

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        return step_idx is not None
