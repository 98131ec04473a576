"""Networks small enough to train in a test."""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor

from torchpbp import PBP, KernelPBP, templates
from torchpbp.experiments.embedding.network import StrokeNetwork
from torchpbp.experiments.embedding.start import build_network
from torchpbp.experiments.embedding.training import TrainingSettings

SMALL: dict[str, Any] = {"states": 6, "hidden_states": 6, "width": 8, "window": 1, "softness": 0.1}
QUIET = {"accelerator": "cpu", "devices": 1, "enable_progress_bar": False}
KERNEL_DENSITY = KernelPBP(templates.pen_clique(), bandwidth=20.0, evidence_bandwidth=10.0)
learner = functools.partial(PBP, root=None)


def settings(**changes: Any) -> TrainingSettings:
    values = {
        "epochs": 3,
        "batch_size": 64,
        "learning_rate": 3e-3,
        "weight_decay": 0.01,
        "smoothing": 0.05,
        "averaging": 0.9,
        "hide": 0.5,
        "rotation": 5.0,
        "shear": 0.1,
        "warp": 0.1,
        "jitter": 1.0,
        "seed": 1,
    }
    return TrainingSettings(**{**values, **changes})


def network(rows: tuple[Tensor, Tensor], two_stage: bool = False, seed: int = 0) -> StrokeNetwork:
    return build_network(learner, *rows, **SMALL, two_stage=two_stage, seed=seed)
