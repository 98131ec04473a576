"""Every learner, fitted in a moment, for tests of what all of them share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchpbp import (
    EM,
    PBP,
    KernelPBP,
    LatentGraph,
    NormalGraphLearner,
    OnlineEM,
    ScoreAverage,
    SpectralJunctionTree,
)

LEARNERS: dict[str, Callable[[LatentGraph], Any]] = {
    "PBP": PBP,
    "KernelPBP": KernelPBP,
    "ScoreAverage": lambda graph: ScoreAverage([PBP(graph), KernelPBP(graph)]),
    "EM": lambda graph: EM(graph, restarts=1, max_steps=3, progress=False),
    "OnlineEM": lambda graph: OnlineEM(graph, exponents=(0.7,), max_steps=2, progress=False),
    "SpectralJunctionTree": SpectralJunctionTree,
    "NormalGraphLearner": lambda graph: NormalGraphLearner(graph, epochs=3, progress=False),
}
"""Name -> what makes an unfitted learner of a discrete graph."""

CONTINUOUS = ("PBP", "KernelPBP", "ScoreAverage")
"""Those that take continuous variables."""
SAMPLE_GIVEN = ("PBP", "KernelPBP", "ScoreAverage")
"""Those that draw given evidence."""
