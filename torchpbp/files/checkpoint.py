"""Model files: written atomically, read without executing anything."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchpbp.errors import ArgumentError, CheckpointError
from torchpbp.files.archive import check_archive
from torchpbp.files.paths import checked_path, open_for_reading, shown
from torchpbp.files.replacing import replacing
from torchpbp.files.tensors import number_fault, size_fault, with_shared_storages

FORMAT = "torchpbp.PBP"
VERSION = 1
REMEDY = "Save the model again, or take the file from a backup."


def write_checkpoint(path: str | os.PathLike[str], content: dict[str, Any], kind: str = FORMAT) -> None:
    """Write a file atomically.

    Args:
        path: of the file.
        content: nested dicts, lists and tuples of tensors and plain values.
        kind: of the format.

    Raises:
        ArgumentError: not a path.
        CheckpointError: a full disk, a folder that cannot be written to, or content that could not be read back. A file
            that was there before is kept.
    """
    if kind == FORMAT:
        done: dict[int, Any] = {}
        content = {key: plain(value, key, done) for key, value in content.items()}
    target = checked_path(path, "a model file")
    whole = with_shared_storages({"format": kind, "version": VERSION, **content})
    try:
        with replacing(target) as temporary, open(temporary, "wb") as file:
            torch.save(whole, file)
    except (OSError, RuntimeError) as error:
        cause = error if isinstance(error, OSError) else error.__context__ or error  # torch hides what went wrong
        if not isinstance(cause, Exception):
            raise cause from None  # Ctrl-C
        reason = getattr(cause, "strerror", None) or _short(cause)
        raise CheckpointError(
            f"'{shown(path)}' could not be written: {reason}. A file that was there before is kept. Free some space, or choose "
            "another path."
        ) from error


def read_checkpoint(
    path: str | os.PathLike[str], map_location: torch.device | str, kind: str = FORMAT
) -> dict[str, Any]:
    """Read and check a file written by :func:`write_checkpoint`."""
    content = _read(path, map_location)
    check_format(content, path, kind)
    return content


def check_format(content: Any, name: object, kind: str = FORMAT) -> None:
    """Raise a CheckpointError for content that is not of a format and version that can be read.

    Args:
        content: of a file, or of a member inside one.
        name: of the file, for the error.
        kind: of the format.
    """
    written_by = content.get("format") if isinstance(content, dict) else None
    if not isinstance(written_by, str) or written_by != kind:
        raise CheckpointError(
            f"'{name}' was not written by {kind.removeprefix('torchpbp.')}.save(). Load it with what wrote it."
        )
    version = content.get("version")
    if type(version) is not int or version < 1:  # True is an int too, and 1.0 equals 1
        raise CheckpointError(f"'{name}': expected a format version from 1 on, got {version!r}. {REMEDY}")
    if version > VERSION:
        raise CheckpointError(
            f"'{name}' has format version {version}, this torchpbp reads up to {VERSION}. Upgrade torchpbp."
        )


def check_device(map_location: torch.device | str) -> None:
    """Raise an ArgumentError for a device that this machine does not have."""
    try:
        torch.empty(0, device=map_location)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ArgumentError(
            f"map_location: expected a device that this machine has, such as 'cpu', got {str(map_location)!r} ({_short(error)})."
        ) from None


def require_finite(named: Mapping[str, Tensor], path: object, saving: bool = False) -> None:
    """Check that the parameters of a model hold no NaN or infinity.

    Args:
        named: name -> tensor.
        path: of the file.
        saving: whether the file is about to be written.

    Raises:
        CheckpointError: naming the first such tensor.
    """
    fault = number_fault(named)
    if fault and saving:
        raise CheckpointError(
            f"'{path}' was not written: {fault}. A file that was there before is kept. Fit the model again, or go back to parameters "
            "that were finite."
        )
    require_none(fault, path)


def require_none(fault: str | None, path: object) -> None:
    """Raise a CheckpointError for content of a file that does not make a model.

    Args:
        fault: what is wrong; None if nothing is.
        path: of the file.
    """
    if fault:
        raise CheckpointError(f"'{path}': its parts do not make a model: {fault}. {REMEDY}")


def checked_labels(labels: Any, variables: Mapping[str, Any], path: object) -> dict[str, tuple[Any, ...]]:
    """Labels of states, no more than there are states, all different.

    Args:
        labels: name -> labels, of some variables.
        variables: name -> number of states, for all.
        path: of the file, for the error.

    Raises:
        CheckpointError: labels that a model cannot have, or of variables that it does not have.
    """
    checked: dict[str, tuple[Any, ...]] = {}
    for name, given in dict(labels).items():
        states = variables.get(name)
        if not isinstance(states, int) or not isinstance(given, list | tuple):
            raise CheckpointError(
                f"'{path}': labels of {name!r}: expected a list for a discrete variable of the model, got {given!r:.100}. {REMEDY}"
            )
        if len(given) > states or len(set(given)) < len(given):
            raise CheckpointError(
                f"'{path}': labels of '{name}': expected at most {states} different ones, for its states, got {len(given)}: "
                f"{given!r:.100}. {REMEDY}"
            )
        checked[name] = tuple(given)
    return checked


def plain(value: Any, where: str, done: dict[int, Any] | None = None) -> Any:
    """The value with numpy's numbers and strings as Python's own: a file is read as tensors and plain values only.

    Args:
        value: to be written.
        where: its place, for the error.
        done: lists and dicts converted before, by identity: an object that occurs several times is written once.

    Raises:
        CheckpointError: something that could be written but not read back, such as a date.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, torch.Tensor) or value is None or type(value) in (bool, int, float, str):
        return value
    done = {} if done is None else done
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, dict):
        done[id(value)] = {plain(k, where, done): plain(v, f"{where}, {k}", done) for k, v in value.items()}
        return done[id(value)]
    if type(value) in (list, tuple):
        done[id(value)] = type(value)(plain(v, where, done) for v in value)
        return done[id(value)]
    raise CheckpointError(
        f"A model file holds numbers, strings and tensors; {where}: got {value!r} ({type(value).__name__}). Give it as a "
        "number or string, labels of states too."
    )


def _read(path: str | os.PathLike[str], map_location: torch.device | str) -> Any:
    target = checked_path(path, "a model file")
    try:
        with open_for_reading(
            target, "a model file", CheckpointError
        ) as file:  # once: what was checked is what is read
            size = check_archive(file, str(path), REMEDY)
            file.seek(0)
            content = torch.load(file, map_location=map_location, weights_only=True)
        require_none(size_fault(content, size), path)
        return content
    except CheckpointError:
        raise
    except Exception as error:
        # torch's own text would advise to execute what the file holds.
        raise CheckpointError(
            f"'{path}' is not a readable torchpbp model ({type(error).__name__}): it is damaged, cut short, or another kind of "
            f"file. {REMEDY}"
        ) from error


@contextmanager
def one_model(name: object) -> Iterator[None]:
    """Content that does not make a model raises a CheckpointError, whatever is wrong with it.

    Args:
        name: of the file.
    """
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"'{name}': its parts do not make a model ({_short(error)}). It was changed, or written by an older torchpbp. {REMEDY}"
        ) from error


def _short(error: BaseException) -> str:
    """The kind of an error with the first line of what it says."""
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}".removesuffix(".").removesuffix(": ")
