"""Running average of weights, as a callback of Lightning."""

from __future__ import annotations

from functools import partial

import torch
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor

from torchpbp.settings import between


class WeightAverage(WeightAveraging):
    """Exponential moving average of weights that soon forgets where training began.

    A plain average gives the initial weights a share of decayⁿ after n steps: 13 % for 0.998 and 1,000 steps. Validation, checkpoints and
    the end of training use the average.

    Args:
        decay: weight of what was averaged before, per step; (1 + n) / (10 + n) at step n where that is less.
    """

    def __init__(self, decay: float = 0.998) -> None:
        super().__init__(use_buffers=False, multi_avg_fn=partial(move_average, between(0, 1).check("decay", decay)))


def move_average(decay: float, average: list[Tensor], weights: list[Tensor], steps: Tensor | int) -> None:
    """Move an average of weights towards new ones, in place.

    Args:
        decay: as in :class:`WeightAverage`.
        average: of the weights so far.
        weights: new ones.
        steps: how many were averaged before.
    """
    known = int(steps)
    with torch.no_grad():
        torch._foreach_lerp_(average, weights, 1 - min(decay, (1 + known) / (10 + known)))
