"""A second device on any machine: tensors that are in main memory but say that they are on another device.

Operations between such a tensor and one on the CPU raise an error, as they do for a GPU (scalars excepted), and ``.numpy()``
does too. So a fit that has left a tensor on the CPU fails here, and its results can be compared with those on the CPU.
Stricter than a GPU, an index must be on the device of what it reads. Random generators of the device are not emulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _DummyPrivateUse1Hook,
    _setup_privateuseone_for_python_backend,
)

NAME = "emulated"
aten = torch.ops.aten
COPIES = {aten.copy_.default, aten._to_copy.default}
"""What may take tensors of both devices."""


class _Module(_DummyBackendModule):
    """What torch asks a kind of device. It is not said to be available: nothing is to choose it by itself."""

    def is_available(self) -> bool:
        return False

    def device_count(self) -> int:
        return 0

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


class _Hook(_DummyPrivateUse1Hook):
    def is_available(self) -> bool:
        return False


_setup_privateuseone_for_python_backend(NAME, _Module(), _Hook())  # once in a process


class _Moved(Tensor):
    """A tensor that says it is on the other device."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> _Moved:
        like = inner if inner.layout == torch.strided else torch.empty(inner.shape, device="meta")
        tensor: _Moved = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.size(),
            strides=like.stride(),
            storage_offset=like.storage_offset(),
            dtype=inner.dtype,
            device=f"{NAME}:0",
        )
        tensor.inner = inner
        return tensor

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"{self.inner!r} on {NAME}"

    def tolist(self) -> Any:
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _run(func, args, dict(kwargs or {}))


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation in main memory, and say that its result is where a GPU's would be."""
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    moved = [x for x in tensors if isinstance(x, _Moved)]
    left = [x for x in tensors if not isinstance(x, _Moved) and x.ndim]
    if moved and left and func not in COPIES:
        raise RuntimeError(
            f"{func}: expected all tensors on one device, got {[tuple(x.shape) for x in left]} on the CPU."
        )
    device = kwargs.get("device")
    there = bool(moved) if device is None else torch.device(device).type == NAME
    if func is aten.copy_.default:
        there = isinstance(args[0], _Moved)
    if not moved and not there:
        return func(*args, **kwargs)
    result = func(*tree_map(_inner, args), **tree_map(_inner, kwargs))
    if not there:
        return result
    same = {id(x.inner): x for x in moved}  # of an operation in place
    if torch.Tag.inplace_view in func.tags:  # such as squeeze_, by which the shape has changed
        with no_dispatch():
            func(*args, **kwargs)

    def outer(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return same[id(value)] if id(value) in same else _Moved(value)

    return tree_map(outer, result)


def _inner(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == NAME:
        return torch.device("cpu")
    return value.inner if isinstance(value, _Moved) else value


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _run(func, args, dict(kwargs or {}))


class _Constructors(TorchFunctionMode):
    """``torch.tensor`` and lists as indices fill memory below the level of operations: made on the CPU, then moved."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.new_tensor and isinstance(args[0], _Moved):
            func, kwargs = torch.tensor, {"dtype": args[0].dtype, "device": NAME, **kwargs}
            args = args[1:]
        if func in (torch.tensor, torch.as_tensor) and torch.device(kwargs.get("device") or "cpu").type == NAME:
            device = kwargs.pop("device")
            return func(*args, **kwargs).to(device)
        if func is torch.sparse_csr_tensor:
            matrix = func(*map(_inner, args), **tree_map(_inner, kwargs))
            return _Moved(matrix) if isinstance(args[0], _Moved) else matrix
        if func in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[0], _Moved):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            index = tuple(
                torch.tensor(i, dtype=None if i else torch.int64).to(NAME) if isinstance(i, list) else i for i in index
            )
            args = (args[0], index, *args[2:])
        return func(*args, **kwargs)


@contextmanager
def emulated_device() -> Iterator[str]:
    """The name of a device that exists inside of the ``with`` block."""
    with _Operations(), _Constructors():
        yield NAME
