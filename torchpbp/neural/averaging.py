"""Running average of weights, as a callback of Lightning."""

from __future__ import annotations

from functools import partial

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor

from torchpbp.settings import between


class WeightAverage(WeightAveraging):
    """Exponential moving average of weights with a smaller decay in the first steps.

    With a constant decay the initial weights would have a share of decayⁿ after n steps: 13 % for 0.998 and 1,000 steps. The
    average is used for validation, for checkpoints and after training.

    Args:
        decay: weight of the previous average in each step; (1 + n) / (10 + n) at step n if that is smaller.
    """

    def __init__(self, decay: float = 0.998) -> None:
        super().__init__(use_buffers=False, multi_avg_fn=partial(move_average, between(0, 1).check("decay", decay)))
        self._ended = False

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._ended = True
        super().on_train_end(trainer, pl_module)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._ended:  # the checkpoint was that of a finished training, whose last hooks Lightning leaves out
            self.on_train_end(trainer, pl_module)
        self._ended = False


def move_average(decay: float, average: list[Tensor], weights: list[Tensor], steps: Tensor | int) -> None:
    """Move an average of weights towards new ones, in place.

    Args:
        decay: as in :class:`WeightAverage`.
        average: of the weights so far.
        weights: new ones.
        steps: number of earlier steps in the average.
    """
    count = int(steps)
    with torch.no_grad():
        torch._foreach_lerp_(average, weights, 1 - min(decay, (1 + count) / (10 + count)))
