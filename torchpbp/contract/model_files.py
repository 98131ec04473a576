"""Saving and loading of all models, including models with other models as members; checks of the content of files."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from torchpbp.errors import CheckpointError
from torchpbp.grouping import grouped
from torchpbp.io import REMEDY, check_device, class_in_file, name_in_files, read_file, short, write_file

SMALL = 1 << 16
"""Largest size in bytes of tensors that are concatenated for one check, which is ten times faster than a check of each."""


@dataclass(frozen=True)
class SaveOptions:
    """Optional parts of a file. A model passes the options on to its members; each model uses those that concern it.

    Args:
        counts: write the counts behind the fit of :class:`~torchpbp.PBP`.
        operators: write the operators of :class:`~torchpbp.KernelPBP`; None: if solving for them is slow.
    """

    counts: bool = False
    operators: bool | None = None


class Saved(ABC):
    """A model that can be written to a file and read again.

    A class defines :meth:`pack` and :meth:`unpack`, and has an entry in :data:`torchpbp.io.MODULES`. Members that are models are
    packed by :func:`packed` and unpacked by :func:`torchpbp.io.from_content`.
    """

    @abstractmethod
    def pack(self, name: object, options: SaveOptions) -> dict[str, Any]:
        """The content of the model's file: tensors and plain values.

        Args:
            name: of the file, or of the member in another model's file, for errors.
            options: optional parts.

        Raises:
            NotFittedError: the model is not fitted.
            CheckpointError: NaN or infinity in parameters, or values that a file cannot hold.
        """

    @classmethod
    @abstractmethod
    def unpack(cls, content: Mapping[str, Any], name: object) -> Self:
        """The model, on the CPU, from the result of :meth:`pack`. Errors of any class become CheckpointErrors."""

    @classmethod
    def unfitted(cls, content: Mapping[str, Any]) -> Self | None:
        """An unfitted model with the settings of a file; None if files do not hold all settings."""
        return None

    @abstractmethod
    def to(self, device: torch.device | str) -> Self:
        """Move the model's tensors to a device and return the model. For an ``nn.Module`` this is ``nn.Module.to``."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one file; an existing file is replaced only once the new one is complete.

        Raises:
            NotFittedError: the model is not fitted.
            CheckpointError: NaN or infinity in parameters, or a file that cannot be written.
        """
        self._write(path, SaveOptions())

    def _write(self, path: str | os.PathLike[str], options: SaveOptions) -> None:
        write_file(path, packed(self, path, options))

    @classmethod
    def load(cls, path: str | os.PathLike[str], map_location: torch.device | str = "cpu") -> Self:
        """Read a model written by :meth:`save`. Only tensors and plain values are read; no code is executed.

        Args:
            path: of a file of this class, a subclass or a base class.
            map_location: device of the model.

        Raises:
            CheckpointError: no such file, or the file of another class.
        """
        check_device(map_location)
        content = read_file(path)
        written_by = class_in_file(content, path)
        if not issubclass(cls, written_by) and not issubclass(written_by, cls):
            raise CheckpointError(
                f"'{path}' holds no {cls.__name__} model but one of {written_by.__name__}. Use torchpbp.load()."
            )
        return cls.from_content(content, path, map_location)

    @classmethod
    def from_content(cls, content: Mapping[str, Any], name: object, map_location: torch.device | str = "cpu") -> Self:
        """The model from the content of a file; invalid content raises a CheckpointError."""
        with one_model(name):
            return cls.unpack(content, name).to(map_location)


def packed(model: Any, name: object, options: SaveOptions) -> dict[str, Any]:
    """A model's content with the name of its class, for its own file or for a member of another model's file.

    Raises:
        CheckpointError: a model without a file format.
    """
    kind = name_in_files(type(model))
    if kind is None or not isinstance(model, Saved):
        raise CheckpointError(f"{name}: {type(model).__name__} has no file format, so no model file can hold it.")
    return {"class": kind, **model.pack(name, options)}


# -- checks of content -------------------------------------------------------------------------------------------------


def require_finite(named: Mapping[str, Tensor], path: object, saving: bool = False) -> None:
    """Check that the parameters of a model hold no NaN or infinity.

    Args:
        named: name -> tensor; integers are skipped.
        path: of the file.
        saving: whether the file is about to be written.

    Raises:
        CheckpointError: NaN or infinity; names the first such tensor.
    """
    fault = _number_fault({name: t.detach() for name, t in named.items()})
    if fault and saving:
        raise CheckpointError(
            f"'{path}' was not written: {fault}. A file that was there before is kept. Fit the model again, or go back to parameters "
            "that were finite."
        )
    require_none(fault, path)


def _number_fault(named: Mapping[str, Tensor]) -> str | None:
    real = {name: t for name, t in named.items() if t.is_floating_point() or t.is_complex()}
    groups = grouped(real.values(), lambda t: (t.dtype, t.device) if t.nbytes <= SMALL else id(t))
    merged = (g[0] if len(g) == 1 else torch.cat([t.reshape(-1) for t in g]) for g in groups.values())
    if all(bool(t.isfinite().all()) for t in merged):
        return None
    for name, tensor in real.items():
        bad = tensor.numel() - int(tensor.isfinite().sum())
        if bad:
            return f"{name}: expected finite numbers, got NaN or infinity in {bad} of {tensor.numel()} entries"
    return None


def require_none(fault: str | None, path: object) -> None:
    """Raise a CheckpointError for a fault in the content of a file.

    Args:
        fault: description; None without a fault.
        path: of the file.
    """
    if fault:
        raise CheckpointError(f"'{path}': its parts do not make a model: {fault}. {REMEDY}")


def checked_labels(labels: Any, variables: Mapping[str, Any], path: object) -> dict[str, tuple[Any, ...]]:
    """Labels of states, checked to be distinct and no more than the states.

    Args:
        labels: name -> labels, for some variables.
        variables: name -> number of states, for all.
        path: of the file, for the error.

    Raises:
        CheckpointError: invalid labels, or labels of unknown variables.
    """
    checked: dict[str, tuple[Any, ...]] = {}
    for name, names in dict(labels).items():
        states = variables.get(name)
        if not isinstance(states, int) or not isinstance(names, list | tuple):
            raise CheckpointError(
                f"'{path}': labels of {name!r}: expected a list for a discrete variable of the model, got {names!r:.100}. {REMEDY}"
            )
        if len(names) > states or len(set(names)) < len(names):
            raise CheckpointError(
                f"'{path}': labels of '{name}': expected at most {states} different ones, for its states, got {len(names)}: "
                f"{names!r:.100}. {REMEDY}"
            )
        checked[name] = tuple(names)
    return checked


@contextmanager
def one_model(name: object) -> Iterator[None]:
    """Context that turns errors of any class into CheckpointErrors.

    Args:
        name: of the file.
    """
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(f"'{name}': its parts do not make a model ({short(error)}). {REMEDY}") from error
