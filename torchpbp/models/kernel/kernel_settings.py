"""Settings of KernelPBP."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torchpbp.models.kernel.gram_learning import Bandwidth, bandwidth_constraint
from torchpbp.settings import Settings, choice, flag, floating_dtype, optional, setting, several, text, whole
from torchpbp.settings import positive as positive_number
from torchpbp.settings import seed as seed_constraint


@dataclass(frozen=True, kw_only=True)
class KernelPBPSettings(Settings):
    """Settings of :class:`~torchpbp.KernelPBP`."""

    bandwidth: Bandwidth = setting("median", bandwidth_constraint())
    evidence_bandwidth: Bandwidth | None = setting(None, optional(bandwidth_constraint()))
    ridge: tuple[float, float] = setting(
        (0.1, 0.1), several(positive_number(), 2, "two positive numbers (stage 1, stage 2)")
    )
    core_leaves: int = setting(1, whole(1))
    instrument_leaves: int = setting(2, whole(1))
    landmarks: int | None = setting(None, optional(whole(1)))
    sequences: tuple[tuple[str, ...], ...] = setting((), several(several(text())))
    positive: bool = setting(True, flag())
    root: tuple[str, ...] | None = None
    fill: str = setting("draw", choice("draw", "mean"))
    dtype: torch.dtype = setting(torch.float32, floating_dtype())
    max_bytes: int = setting(4 << 30, whole(1))
    seed: int = setting(0, seed_constraint())
