"""Files: atomic replacement, and model files in the format of safetensors, which contain no executable code.

A model file holds tensors under the paths of their keys, such as ``state.operators.root.weight`` or, in a classifier, ``models.3.state.operators.root.weight``,
and one JSON text with all other values, in the entry ``torchpbp`` of the metadata of safetensors. Values without a JSON type are
written as an object with a single key: ``{"$tuple": […]}``, ``{"$tensor": "state.operators.root.weight"}``. The text begins with a checksum of
the whole file, computed with zeros in place of its own digits.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import json
import math
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor, nn

from torchpbp.errors import ArgumentError, CheckpointError, TorchPBPError
from torchpbp.grouping import grouped
from torchpbp.settings import shortened

FORMAT, VERSION = "torchpbp", 1
ZEROS = b"0" * 64
MARK = b'"torchpbp":"{\\"checksum\\":\\"'
"""Bytes before the checksum in a file."""
CHUNK = 1 << 20
SCALARS = frozenset({bool, int, str, type(None)})
"""Scalar types with a JSON equivalent."""
REMEDY = "Save the model again, or take the file from a backup."

LEARNERS = {
    "PBP": "torchpbp.models.pbp",
    "KernelPBP": "torchpbp.models.kernel.kernel_pbp",
    "MaximumLikelihood": "torchpbp.models.likelihood.learner",
    "EM": "torchpbp.baselines.em",
    "OnlineEM": "torchpbp.baselines.online_em",
    "SpectralJunctionTree": "torchpbp.baselines.spectral",
    "NormalGraphLearner": "torchpbp.baselines.normal_graph.learner",
}
"""Names of learners of a graph -> module, imported on demand."""

MODULES = {
    **LEARNERS,
    "DiscreteNetwork": "torchpbp.exact.network",
    "GenerativeClassifier": "torchpbp.classifier",
}
"""All classes that :func:`load` returns -> module."""


# -- paths -------------------------------------------------------------------------------------------------------------


def checked_path(path: Any, what: str) -> Path:
    """A validated path.

    Args:
        path: a string or ``os.PathLike`` of one.
        what: kind of file, such as "a model file", for the error.

    Raises:
        ArgumentError: None, numbers, bytes, an empty string, a null character.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise ArgumentError(f"Expected the path of {what}, got {shortened(path)}.")
    return Path(text)


def open_for_reading(path: Path, what: str, error: type[TorchPBPError]) -> BinaryIO:
    """Open a file.

    Args:
        path: path of the file.
        what: expected kind of file, such as "a model file".
        error: class of errors to raise.

    Raises:
        error: no such file, a folder, or no permission to read it.
    """
    try:
        return open(path, "rb")
    except (FileNotFoundError, NotADirectoryError) as reason:
        raise error(f"No {what.removeprefix('a ')} at '{path}'. Check the path.") from reason
    except OSError as reason:
        if os.path.isdir(path):
            text = f"is a folder: expected {what}. Check the path."
        elif isinstance(reason, PermissionError):
            text = "may not be read: permission denied. Change the permissions of the file or of its folders."
        else:
            text = f"cannot be read: {reason.strerror or reason}."
        raise error(f"'{path}' {text}") from reason


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the name of a temporary file in the same folder; the file replaces ``path`` once the block ends without an error.

    After an error, a full disk or Ctrl-C the old file is unchanged, and the temporary one is deleted. Where ``path`` is a
    symbolic link, its target is replaced.

    Args:
        path: path of the file. Missing folders are created.

    Raises:
        OSError: the file cannot be written, or ``path`` is a folder or a device; then nothing is written.
    """
    target = Path(os.path.realpath(path))
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(target).st_mode):
            kind = "a folder" if target.is_dir() else "something else"
            raise OSError(errno.EINVAL, f"expected a file or a new name, got {kind}", str(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        with open(temporary, "r+b") as file:
            os.fsync(file.fileno())  # else a crash of the machine could leave the new name with old or no bytes
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def short(error: BaseException) -> str:
    """The class of an error and the first line of its message."""
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}".removesuffix(".").removesuffix(": ")


# -- contents of model files -------------------------------------------------------------------------------------------


def write_file(path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
    """Write a model file.

    Args:
        path: path of the file; an existing file is replaced only after the new one is complete.
        content: nested dicts, lists and tuples of tensors and plain values.

    Raises:
        ArgumentError: not a path.
        CheckpointError: a full disk, a folder that cannot be written to, or values that a file cannot hold.
    """
    from safetensors.torch import save_file

    target, packing = checked_path(path, "a model file"), _Packing()
    try:
        plain = packing.plain(dict(content), "")
        tensors = packing.tensors()
        header = {"checksum": ZEROS.decode(), "format": FORMAT, "version": VERSION, "content": plain}
        text = json.dumps(header, allow_nan=False, separators=(",", ":"))
        with replacing(target) as temporary:
            save_file(tensors, temporary, {FORMAT: text})
            with open(temporary, "r+b") as file:
                place, _, digits = _checksum(file)
                file.seek(place)
                file.write(digits)
    except CheckpointError:
        raise
    except Exception as error:
        reason = getattr(error, "strerror", None) or short(error)
        raise CheckpointError(
            f"'{path}' could not be written: {reason}. A file that was there before is kept. Check the path, the free space and the "
            "model's tensors."
        ) from error


def read_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a file written by :func:`write_file`, on the CPU.

    Raises:
        ArgumentError: not a path.
        CheckpointError: no such file, another kind of file, changed or missing bytes, a newer format.
    """
    from safetensors import safe_open

    target = checked_path(path, "a model file")
    with open_for_reading(target, "a model file", CheckpointError) as file:
        try:
            _, written, computed = _checksum(file)
            with safe_open(target, framework="pt") as archive:
                header = json.loads(archive.metadata()[FORMAT])
                if not written == computed == header["checksum"].encode():
                    raise ValueError("the checksum is another one")
                if header["version"] > VERSION:
                    raise CheckpointError(
                        f"'{path}' has format version {header['version']}, this torchpbp reads up to {VERSION}. Upgrade torchpbp."
                    )
                # Copies in memory aligned by torch, since alignment affects the rounding of products; the file is then closed.
                tensors = {name: archive.get_tensor(name).clone() for name in archive.keys()}  # noqa: SIM118
            content: dict[str, Any] = _restored(header["content"], tensors)
            return content
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"'{path}' is not a readable torchpbp model ({type(error).__name__}): it is damaged, cut short, or another kind of "
                f"file. {REMEDY}"
            ) from error


def is_plain(value: Any) -> bool:
    """Whether a model file can hold a value."""
    try:
        _Packing().plain(value, "")
    except CheckpointError:
        return False
    return True


def _checksum(file: BinaryIO) -> tuple[int, bytes, bytes]:
    """SHA-256 of all bytes of an open file, including names, dtypes and shapes of tensors.

    Returns:
        Offset of the digits in the file, the stored digits, and the computed digits.

    Raises:
        ValueError: not a model file.
    """
    length = file.read(8)
    header = bytearray(file.read(min(int.from_bytes(length, "little"), os.fstat(file.fileno()).st_size)))
    start = header.find(MARK) + len(MARK)
    if start < len(MARK):
        raise ValueError("no checksum")
    digits = slice(start, start + len(ZEROS))
    written, header[digits] = bytes(header[digits]), ZEROS
    digest = hashlib.sha256(length + header)
    while chunk := file.read(CHUNK):
        digest.update(chunk)
    return len(length) + start, written, digest.hexdigest().encode()


@dataclass(frozen=True)
class _Packed:
    """A tensor to be written to a file.

    Args:
        name: name in the file.
        tensor: tensor of the model, of any strides.
        reference: JSON object that stands for the tensor.
    """

    name: str
    tensor: Tensor
    reference: dict[str, Any]

    @property
    def storage(self) -> tuple[torch.device, torch.dtype, int]:
        """The memory that holds the tensor."""
        return self.tensor.device, self.tensor.dtype, self.tensor.untyped_storage().data_ptr()

    @property
    def span(self) -> tuple[int, int]:
        """Start and end of the tensor in its storage, counted in entries."""
        start, t = int(self.tensor.storage_offset()), self.tensor
        reach = sum((n - 1) * stride for n, stride in zip(t.shape, t.stride(), strict=True)) + 1
        return start, start + (int(reach) if t.numel() else 0)

    def refer(self, name: str, strides: tuple[int, ...], offset: int = 0) -> None:
        """Refer to entries of a flat tensor in the file."""
        self.reference["$tensor"] = [name, list(self.tensor.shape), list(strides), offset]


class _Packing:
    """Converts the content of a file to JSON and named tensors. A tensor that occurs several times is written once."""

    def __init__(self) -> None:
        self._packed: dict[Any, _Packed] = {}
        self._names: set[str] = set()

    def plain(self, value: Any, path: str) -> Any:
        """The JSON form of a value.

        Args:
            value: part of the content.
            path: keys of the value, joined by dots.

        Raises:
            CheckpointError: a value that could not be read back, such as a date.
        """
        if isinstance(value, Tensor):
            return self._reference(value, path)
        if type(value) in SCALARS:
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        if type(value) in (list, tuple):
            items = [v if type(v) in SCALARS else self.plain(v, f"{path}.{i}") for i, v in enumerate(value)]
            return items if type(value) is list else {"$tuple": items}
        if isinstance(value, dict):
            start = f"{path}." if path else ""
            if all(type(k) is str and not k.startswith("$") for k in value):
                return {k: self.plain(v, start + k) for k, v in value.items()}
            return {"$dict": [[self.plain(k, path), self.plain(v, f"{start}{k}")] for k, v in value.items()]}
        if isinstance(value, torch.dtype):
            return {"$dtype": str(value).removeprefix("torch.")}
        if isinstance(value, np.generic) and value.dtype.kind in "biufU" and not isinstance(value.item(), np.generic):
            return {"$numpy": [value.dtype.str, self.plain(value.item(), path)]}
        raise CheckpointError(
            f"A model file holds numbers, strings and tensors; {path}: got {shortened(value)} ({type(value).__name__}). Give it as a "
            "number or string, labels of states too."
        )

    def _reference(self, value: Tensor, path: str) -> dict[str, Any]:
        tensor = value.detach().resolve_conj().resolve_neg()
        key = (tensor.data_ptr(), tensor.dtype, tensor.device, tensor.shape, tensor.stride())
        if key not in self._packed:
            while path in self._names:  # keys may contain dots
                path += "'"
            self._names.add(path)
            self._packed[key] = _Packed(path, tensor, {"$tensor": path})
        return self._packed[key].reference

    def tensors(self) -> dict[str, Tensor]:
        """Name -> contiguous tensor that shares no memory with others.

        Parts of one storage are written separately, or as one common tensor if that takes less space.
        """
        result: dict[str, Tensor] = {}
        for parts in grouped(self._packed.values(), lambda p: p.storage).values():
            name, first = parts[0].name, parts[0].tensor
            if len(parts) == 1 and first.is_contiguous():
                result[name] = first.cpu()
                continue
            low, high = min(p.span[0] for p in parts), max(p.span[1] for p in parts)
            if sum(p.tensor.numel() for p in parts) > high - low:
                result[name] = first.as_strided((high - low,), (1,), low).cpu().clone()
                for part in parts:
                    part.refer(name, part.tensor.stride(), part.span[0] - low)
                continue
            for part in parts:  # the memory layout is preserved, because it affects the rounding of products
                dense = part.tensor.cpu().clone()
                if not dense.is_contiguous():
                    part.refer(part.name, dense.stride())
                    dense = dense.as_strided((dense.numel(),), (1,))
                result[part.name] = dense
        return result


def _restored(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The inverse of :meth:`_Packing.plain`. Lists and dicts are modified in place, which is faster than copying."""
    if isinstance(value, list):
        for i, v in enumerate(value):
            if type(v) not in SCALARS:
                value[i] = _restored(v, tensors)
        return value
    if not isinstance(value, dict):
        return value
    if len(value) != 1 or not next(iter(value)).startswith("$"):
        for k, v in value.items():
            if type(v) not in SCALARS:
                value[k] = _restored(v, tensors)
        return value
    ((tag, inner),) = value.items()
    match tag:
        case "$tensor" if isinstance(inner, str):
            return tensors[inner]
        case "$tensor":
            name, shape, strides, offset = inner
            return tensors[name].as_strided(shape, strides, offset)
        case "$tuple":
            return tuple(_restored(v, tensors) for v in inner)
        case "$dict":
            return {_restored(k, tensors): _restored(v, tensors) for k, v in inner}
        case "$float":
            return float(inner)
        case "$numpy":
            return np.dtype(inner[0]).type(_restored(inner[1], tensors))
        case "$dtype" if isinstance(dtype := getattr(torch, inner), torch.dtype):
            return dtype
    raise ValueError(f"no value {tag}")


# -- models ------------------------------------------------------------------------------------------------------------


def load(path: str | os.PathLike[str], map_location: torch.device | str = "cpu", features: Any = None) -> Any:
    """Read a model of any class written by ``save()``. No code in the file is executed.

    Args:
        path: path of the model file.
        map_location: device of the model.
        features: user-defined encoders of the model, as modules of the same shapes: files hold their parameters, but no code. One
            module, or a dict by leaf.

    Returns:
        A fitted model of the class that wrote the file.

    Raises:
        CheckpointError: no such file, not a model file of this version, or a user-defined encoder without ``features``.
        ArgumentError: encoders for a model that has none, or not for all of its leaves.

    Example:
        >>> import tempfile
        >>> from torchpbp import PBP, DiscreteNetwork, templates
        >>> truth = DiscreteNetwork.random(templates.naive_bayes(3), seed=1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     PBP(truth.graph).fit(truth.sample(500, seed=0)).save(f"{folder}/model.pt")
        ...     print(load(f"{folder}/model.pt"))
        PBP(LatentGraph(directed, 3 observed, 1 latent, 3 edges), fitted on 500 rows)
    """
    check_device(map_location)
    content = read_file(path)
    if features is not None:
        _check_encoders(features, content.get("encoders"), path)
        content["user_encoders"] = features
    return from_content(content, path, map_location)


def from_content(content: Mapping[str, Any], name: object, map_location: torch.device | str = "cpu") -> Any:
    """The model with this content, which is that of a file or of a member of another model."""
    return class_in_file(content, name).from_content(content, name, map_location)


def check_device(map_location: torch.device | str) -> None:
    """Raise an ArgumentError for a device that this machine does not have."""
    try:
        torch.empty(0, device=map_location)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ArgumentError(
            f"map_location: expected a device that this machine has, such as 'cpu', got {str(map_location)!r} ({short(error)})."
        ) from None


def class_in_file(content: Mapping[str, Any], name: object) -> Any:
    """The class that wrote a file.

    Args:
        content: content of the file, or of a member in it.
        name: name of the file, for the error.
    """
    kind = str(content.get("class"))
    if kind not in MODULES:
        raise CheckpointError(
            f"'{name}' holds {kind}, none of the models that torchpbp.load() reads: {', '.join(MODULES)}. Use {kind}.load(), or "
            "upgrade torchpbp."
        )
    return model_class(kind)


def model_class(name: str) -> Any:
    """One of the classes of ``MODULES``."""
    return getattr(importlib.import_module(MODULES[name]), name)


def name_in_files(kind: type) -> str | None:
    """The name of a class, or of its nearest base class, in files; None if neither can be loaded."""
    return next((c.__name__ for c in kind.__mro__ if MODULES.get(c.__name__) == c.__module__), None)


def _check_encoders(features: Any, saved: Any, path: object) -> None:
    """Raise an ArgumentError for encoders of a model without encoders, or for other leaves than the model's."""
    leaves = saved["module_of"] if saved else {}
    if not leaves:
        raise ArgumentError(f"features: the model in '{path}' has no encoders. Leave them out.")
    modules = features if isinstance(features, Mapping) else dict.fromkeys(leaves, features)
    wrong = [str(v) for v in leaves if not isinstance(modules.get(v), nn.Module)]
    unknown = [str(v) for v in modules if v not in leaves]
    if wrong or unknown:
        raise ArgumentError(
            f"features: expected an encoder (nn.Module), or a dict of these for {', '.join(map(str, leaves))}; "
            + (f"got none for {', '.join(wrong)}." if wrong else f"got one for {', '.join(unknown)}.")
        )
