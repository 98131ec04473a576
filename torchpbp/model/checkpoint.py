"""Model files: written whole or not at all, read without executing anything."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import torch

from torchpbp.errors import CheckpointError
from torchpbp.files import replacing

FORMAT = "torchpbp.PBP"
VERSION = 1
REMEDY = "Save the model again, or take the file from a backup."

Load = TypeVar("Load", bound=Callable[..., Any])


def write_checkpoint(path: str | os.PathLike[str], content: dict[str, Any], kind: str = FORMAT) -> None:
    """Write to a neighbouring temporary file first, then put it in place in one step.

    Raises:
        CheckpointError: a full disk, a folder that cannot be written to. A file that was there before is kept.
    """
    try:
        with replacing(path) as temporary, open(temporary, "wb") as file:
            torch.save({"format": kind, "version": VERSION, **content}, file)
    except (OSError, RuntimeError) as error:
        cause = error if isinstance(error, OSError) else error.__context__ or error  # torch hides what went wrong
        if not isinstance(cause, Exception):
            raise cause from None  # Ctrl-C
        raise CheckpointError(
            f"'{path}' could not be written: {_short(cause)}. Whatever was there before is kept. Make room, or choose another "
            "folder."
        ) from error


def read_checkpoint(
    path: str | os.PathLike[str], map_location: torch.device | str, kind: str = FORMAT
) -> dict[str, Any]:
    """Read and check a file written by :func:`write_checkpoint`."""
    if not Path(path).is_file():
        raise CheckpointError(f"No model file at '{path}'. Check the path.")
    try:
        _check_sums(path)
        content = torch.load(path, map_location=map_location, weights_only=True)
    except Exception as error:
        # torch's own text would advise to execute what the file holds.
        raise CheckpointError(
            f"'{path}' is not a readable torchpbp model ({type(error).__name__}): it is damaged, cut short, or another kind of "
            f"file. {REMEDY}"
        ) from error
    if not isinstance(content, dict) or content.get("format") != kind:
        raise CheckpointError(
            f"'{path}' was not written by {kind.removeprefix('torchpbp.')}.save(). Load it with what wrote it."
        )
    version = content.get("version")
    if not isinstance(version, int):
        raise CheckpointError(f"'{path}': expected a format version, got {version!r}. {REMEDY}")
    if version > VERSION:
        raise CheckpointError(
            f"'{path}' has format version {version}, this torchpbp reads up to {VERSION}. Upgrade torchpbp."
        )
    return content


def _check_sums(path: str | os.PathLike[str]) -> None:
    """Look for bytes that have changed since they were written; torch does not."""
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise zipfile.BadZipFile(f"damaged: {damaged}")


def whole_model(load: Load) -> Load:
    """Decorator of a ``load(cls, path, …)``: content that makes no model is an error that names the file."""

    @wraps(load)
    def checked(cls: type, path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Any:
        try:
            return load(cls, path, *args, **kwargs)
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"'{path}': its parts do not make a model ({_short(error)}). It was changed, or written by an older torchpbp. {REMEDY}"
            ) from error

    return checked  # type: ignore[return-value]


def _short(error: BaseException) -> str:
    """The kind of an error with the first line of what it says."""
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}".removesuffix(".").removesuffix(": ")
