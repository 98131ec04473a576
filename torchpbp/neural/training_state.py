"""States of training, from which Lightning goes on after an interruption."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from torchpbp.errors import CheckpointError
from torchpbp.io import replacing


class WholeFiles(TorchCheckpointIO):
    """Writes a checkpoint whole or not at all.

    Lightning's own way goes over the system's folder for temporary files; on another disk, moving it is a copy that can be
    interrupted.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        with replacing(path) as temporary, open(temporary, "wb") as file:
            torch.save(checkpoint, file)


def resumable(path: Path) -> str | None:
    """The checkpoint to go on from, if there is one.

    Raises:
        CheckpointError: there is a file, but no state of training in it.
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
