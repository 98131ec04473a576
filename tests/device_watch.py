"""Watches for calls that would leave the device of the data, on a machine that has only one device."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

import torchpbp

PACKAGE = str(Path(torchpbp.__file__).parent)
LEAVING = {Tensor.cpu: ".cpu()", Tensor.numpy: ".numpy()", Tensor.__array__: "numpy", torch.from_numpy: "from_numpy"}


class DeviceWatch(TorchFunctionMode):
    """Collects calls in torchpbp that move a tensor to the CPU, or make one on the default device, as "file:line call".

    A tensor made without ``device=`` would be on the CPU while the data are on a GPU. ``device="cpu"`` says that this is meant.

    Args:
        allowed: "file:function" that may do so.
    """

    def __init__(self, allowed: Collection[str] = ()) -> None:
        super().__init__()
        self.allowed, self.seen = set(allowed), dict[str, None]()
        self.factories = _device_constructors()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        call = LEAVING.get(func)
        if func in self.factories and kwargs.get("device") is None:
            like = func is torch.as_tensor and isinstance(args[0], Tensor)  # which stays where it is
            call = None if like else f"torch.{func.__name__}() without device"
        if func is Tensor.to and any(isinstance(x, str) and x == "cpu" for x in (*args[1:2], kwargs.get("device"))):
            call = '.to("cpu")'
        if call is not None:
            self._note(call)
        return func(*args, **kwargs)

    def _note(self, call: str) -> None:
        frame = sys._getframe(2)
        while frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
            frame = frame.f_back  # type: ignore[assignment]
        if frame is None:
            return  # of the test itself
        file = frame.f_code.co_filename.removeprefix(PACKAGE).lstrip("/")
        if f"{file}:{frame.f_code.co_name}" not in self.allowed:
            self.seen[f"{file}:{frame.f_lineno} {frame.f_code.co_name}: {call}"] = None
