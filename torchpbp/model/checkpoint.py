"""Model files: written whole or not at all, read without executing anything."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from torchpbp.errors import CheckpointError
from torchpbp.files import replacing

FORMAT = "torchpbp.PBP"
VERSION = 1
REMEDY = "Save the model again, or take the file from a backup."

Load = TypeVar("Load", bound=Callable[..., Any])


class Parcel:
    """A model file in memory, in place of a path: how a model made of models keeps each of them inside its own file.

    Args:
        name: what it is called in errors.
        content: of the file; filled by :func:`write_checkpoint`.
    """

    def __init__(self, name: str, content: Any = None) -> None:
        self.name, self.content = name, content

    def __str__(self) -> str:
        return self.name


def write_checkpoint(path: str | os.PathLike[str] | Parcel, content: dict[str, Any], kind: str = FORMAT) -> None:
    """Write to a neighbouring temporary file first, then put it in place in one step.

    Raises:
        CheckpointError: a full disk, a folder that cannot be written to, or content that could not be read back. A file
            that was there before is kept.
    """
    if kind == FORMAT:
        content = {key: plain(value, key) for key, value in content.items()}
    if not isinstance(path, str | os.PathLike | Parcel):
        raise CheckpointError(f"Expected a path to write a model file to, got {path!r}.")
    if isinstance(path, Parcel):
        path.content = {"format": kind, "version": VERSION, **content}
        return
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
    path: str | os.PathLike[str] | Parcel, map_location: torch.device | str, kind: str = FORMAT
) -> dict[str, Any]:
    """Read and check a file written by :func:`write_checkpoint`."""
    content = path.content if isinstance(path, Parcel) else _read(path, map_location)
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


def read_model(path: str | os.PathLike[str] | Parcel, learner: str, what: str | None = None) -> dict[str, Any]:
    """Read a file that one learner wrote, into main memory.

    Args:
        path: of the file.
        learner: its name.
        what: such a file holds, for the error; the learner's name by default.
    """
    saved = read_checkpoint(path, "cpu")
    if saved.get("learner") != learner:
        raise CheckpointError(f"'{path}' holds no {what or learner}. Use torchpbp.load().")
    return saved


def plain(value: Any, where: str) -> Any:
    """The value, numpy's numbers and strings as Python's own: a file is read as tensors and plain values only.

    Args:
        value: to be written.
        where: its place, for the error.

    Raises:
        CheckpointError: something that could be written but not read back, such as a date.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, torch.Tensor) or value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is dict:
        return {plain(k, where): plain(v, f"{where}, {k}") for k, v in value.items()}
    if isinstance(value, dict):  # torch's own, with notes of its own
        for k, v in value.items():
            plain(v, f"{where}, {k}")
        return value
    if type(value) in (list, tuple):
        return type(value)(plain(v, where) for v in value)
    raise CheckpointError(
        f"A model file holds numbers, strings and tensors; {where}: got {value!r} ({type(value).__name__}). Give it as a "
        "number or string, labels of states too."
    )


def _read(path: str | os.PathLike[str], map_location: torch.device | str) -> Any:
    if not isinstance(path, str | os.PathLike):
        raise CheckpointError(f"Expected the path of a model file, got {path!r}.")
    if not Path(path).is_file():
        raise CheckpointError(f"No model file at '{path}'. Check the path.")
    try:
        torch.empty(0, device=map_location)
    except (RuntimeError, AssertionError) as error:
        raise CheckpointError(
            f"map_location: expected a device that this machine has, such as 'cpu', got {str(map_location)!r} ({_short(error)})."
        ) from None
    try:
        _check_sums(path)
        return torch.load(path, map_location=map_location, weights_only=True)
    except Exception as error:
        # torch's own text would advise to execute what the file holds.
        raise CheckpointError(
            f"'{path}' is not a readable torchpbp model ({type(error).__name__}): it is damaged, cut short, or another kind of "
            f"file. {REMEDY}"
        ) from error


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
