"""Model files: one mechanism for all models, and for models that are made of others."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from typing_extensions import Self

from torchpbp.errors import CheckpointError
from torchpbp.files.checkpoint import FORMAT, VERSION, check_device, one_model, read_checkpoint, write_checkpoint
from torchpbp.files.loading import class_in_file, class_name


@dataclass(frozen=True)
class SaveOptions:
    """What a file may leave out. A model made of others hands them on; each model looks at those that concern it.

    Args:
        counts: write the counts behind the fit of :class:`~torchpbp.PBP`.
        operators: write the operators of :class:`~torchpbp.KernelPBP`; None: where solving for them takes long.
    """

    counts: bool = False
    operators: bool | None = None


class Saved(ABC):
    """A model that can be written to a file and read again.

    A class defines :meth:`pack` and :meth:`unpack`, and has an entry in :data:`torchpbp.files.loading.MODULES`. A model made
    of others packs its members by :func:`packed` and unpacks them by :func:`torchpbp.files.loading.from_content`.
    """

    @abstractmethod
    def pack(self, name: object, options: SaveOptions) -> dict[str, Any]:
        """What the model's file holds: tensors and plain values.

        Args:
            name: of the file, or of the place inside another model's file, for errors.
            options: what to write.

        Raises:
            NotFittedError: nothing to write yet.
            CheckpointError: NaN or infinity in what answers are made of, or values that a file cannot hold.
        """

    @classmethod
    @abstractmethod
    def unpack(cls, content: Mapping[str, Any], name: object) -> Self:
        """The model, on the CPU, from what :meth:`pack` returned. Errors of any class become CheckpointErrors."""

    @classmethod
    def unfitted(cls, content: Mapping[str, Any]) -> Self | None:
        """A model with the same settings and nothing learned; None where files do not hold all settings."""
        return None

    @abstractmethod
    def to(self, device: torch.device | str) -> Self:
        """Move the model's tensors to a device and return the model. In an ``nn.Module`` torch's own ``to`` does it."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one file; an existing file is replaced only once the new one is complete.

        Raises:
            NotFittedError: the model is not fitted.
            CheckpointError: NaN or infinity in what answers are made of, or a file that cannot be written.
        """
        self._write(path, SaveOptions())

    def _write(self, path: str | os.PathLike[str], options: SaveOptions) -> None:
        write_checkpoint(path, packed(self, path, options))

    @classmethod
    def load(cls, path: str | os.PathLike[str], map_location: torch.device | str = "cpu") -> Self:
        """Read a model written by :meth:`save`. Only tensors and plain values are read; no code is executed.

        Args:
            path: of the file, written by this class, a class derived from it, or one that it is derived from.
            map_location: device on which the model is put.

        Raises:
            CheckpointError: no such file, or the file of another class.
        """
        check_device(map_location)
        content = read_checkpoint(path, "cpu")
        written_by = class_in_file(content, path)
        if not issubclass(cls, written_by) and not issubclass(written_by, cls):
            raise CheckpointError(
                f"'{path}' holds no {cls.__name__} model but one of {written_by.__name__}. Use torchpbp.load()."
            )
        return cls.from_content(content, path, map_location)

    @classmethod
    def from_content(cls, content: Mapping[str, Any], name: object, map_location: torch.device | str = "cpu") -> Self:
        """The model whose file holds this content; content that does not make a model raises a CheckpointError."""
        with one_model(name):
            return cls.unpack(content, name).to(map_location)


def packed(model: Any, name: object, options: SaveOptions) -> dict[str, Any]:
    """A model's content with the name of its class: what its own file holds, or another model's file about this member.

    Raises:
        CheckpointError: a model without a file format.
    """
    kind = class_name(type(model))
    if kind is None or not isinstance(model, Saved):
        raise CheckpointError(f"{name}: {type(model).__name__} has no file format, so no model file can hold it.")
    return {"format": FORMAT, "version": VERSION, "learner": kind, **model.pack(name, options)}
