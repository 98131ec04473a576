"""Training checkpoints, from which Lightning resumes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from torchpbp.errors import CheckpointError
from torchpbp.io import replacing


class WholeFiles(TorchCheckpointIO):
    """Atomic writes of checkpoints.

    Lightning writes to the system's temporary folder first; moving the file to another disk is a copy, which can be
    interrupted.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        with replacing(path) as temporary, open(temporary, "wb") as file:
            torch.save(checkpoint, file)


def resumable(path: Path) -> str | None:
    """The path of the checkpoint to resume from, or None.

    Raises:
        CheckpointError: a file without a training state.
    """
    if not path.exists():
        return None
    try:
        torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    except Exception as error:
        raise CheckpointError(
            f"{path}: expected a training state, but it cannot be read ({type(error).__name__}). Delete it."
        ) from error
    return str(path)
