"""Model files: written whole or not at all, read without executing anything."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from torchpbp.errors import CheckpointError

FORMAT = "torchpbp.PBP"
VERSION = 1


def write_checkpoint(path: str | os.PathLike[str], content: dict[str, Any], kind: str = FORMAT) -> None:
    """Write to a neighbouring temporary file first, then put it in place in one step."""
    target = Path(path)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=target.name, suffix=".tmp")
    os.close(handle)
    try:
        torch.save({"format": kind, "version": VERSION, **content}, temporary)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_checkpoint(
    path: str | os.PathLike[str], map_location: torch.device | str, kind: str = FORMAT
) -> dict[str, Any]:
    """Read and check a file written by :func:`write_checkpoint`."""
    if not Path(path).is_file():
        raise CheckpointError(f"No model file at '{path}'.")
    try:
        content = torch.load(path, map_location=map_location, weights_only=True)
    except Exception as error:
        raise CheckpointError(f"'{path}' is not a readable torchpbp model: {type(error).__name__}: {error}") from error
    if not isinstance(content, dict) or content.get("format") != kind:
        raise CheckpointError(f"'{path}' was not written by {kind.removeprefix('torchpbp.')}.save().")
    if content["version"] > VERSION:
        raise CheckpointError(
            f"'{path}' has format version {content['version']}, this torchpbp reads up to {VERSION}. Upgrade torchpbp."
        )
    return content
