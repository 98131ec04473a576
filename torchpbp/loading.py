"""Model files of any learner."""

from __future__ import annotations

import os
from typing import Any

from torchpbp.baselines import EM, NormalGraphLearner, SpectralJunctionTree
from torchpbp.errors import CheckpointError
from torchpbp.model.checkpoint import read_checkpoint
from torchpbp.model.pbp import PBP

LOADERS: dict[str, Any] = {
    "PBP": PBP.load,
    "EM": EM.load,
    "SpectralJunctionTree": SpectralJunctionTree.load,
    "NormalGraphLearner": NormalGraphLearner.load,
}


def load(path: str | os.PathLike[str]) -> Any:
    """Read a model written by ``save()``, whichever learner made it. No code in the file is executed.

    Args:
        path: of the model file.

    Returns:
        A fitted PBP, EM, SpectralJunctionTree or NormalGraphLearner.

    Raises:
        CheckpointError: no such file, or not a model file of this version.
    """
    learner = str(read_checkpoint(path, "cpu").get("learner", "PBP"))
    if learner not in LOADERS:
        raise CheckpointError(
            f"'{path}' was made by the learner {learner}; this torchpbp reads those of {', '.join(LOADERS)}. Upgrade "
            "torchpbp."
        )
    return LOADERS[learner](path)
