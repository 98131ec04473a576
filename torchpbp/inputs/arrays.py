"""Tensors and arrays as callers pass them, brought into a form that can be computed with: dense, real, in memory.

This is the one place that rejects unusual tensors (meta, quantised, nested, complex, packed bits) and values of which no array
can be made.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchpbp.errors import DataError, DeviceError
from torchpbp.settings import shortened

NUMBERS = {
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.bool,
    torch.uint8,
    torch.uint16,
    torch.uint32,
}
NUMBERS |= {torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64}
"""Dtypes that torch can at least copy and convert."""


def dense_tensor(where: str, tensor: Tensor, device: torch.device | str = "cpu") -> Tensor:
    """The same numbers in a strided tensor; sparse tensors and float8, for which torch has few operations, are converted.

    Args:
        where: begins the error.
        tensor: of any layout and dtype.
        device: of the model. A model on the meta device takes meta tensors.

    Raises:
        DataError: a tensor without numbers to compute with.
    """
    if tensor.is_nested:
        kind, remedy = "a nested tensor", "Pad its parts to one length: tensor.to_padded_tensor(…)"
    elif tensor.is_quantized:
        kind, remedy = "a quantised tensor", "Pass tensor.dequantize()"
    elif tensor.device.type == "meta" and torch.device(device).type != "meta":
        kind, remedy = "a meta tensor, which has no values", "Materialise it first"
    elif tensor.is_complex():
        kind, remedy = (
            f"{name_of(tensor.dtype)} values",
            "Pass the real part, or real and imaginary part as two variables",
        )
    elif tensor.dtype in NUMBERS:
        return tensor if tensor.layout == torch.strided else tensor.to_dense()
    elif name_of(tensor.dtype).startswith("float8"):
        return tensor.to(torch.float32)  # holds all their values exactly
    else:
        kind, remedy = f"{name_of(tensor.dtype)} values", "Convert them to int64 or float64"
    raise DataError(f"{where}: expected a tensor of real numbers, got {kind}. {remedy}.")


def require_device(where: str, tensor: Tensor, device: torch.device | str, of: str) -> None:
    """Raise a DeviceError for a tensor on another device; a device without a number stands for any of its kind.

    Args:
        where: begins the error.
        tensor: as given.
        device: where it should be.
        of: what is there.
    """
    wanted = torch.device(device)
    if tensor.device.type != wanted.type or wanted.index not in (None, tensor.device.index):
        raise DeviceError(
            f"{where}: expected a tensor on the device '{wanted}' of {of}, got one on '{tensor.device}'. Move it: "
            f"tensor.to('{wanted}')."
        )


def name_of(dtype: torch.dtype) -> str:
    """A dtype as it appears in errors."""
    return str(dtype).removeprefix("torch.")


def as_array(where: str, value: Any, expected: str) -> np.ndarray:
    """An array of numbers, or of objects if the value holds strings: numpy would turn a NaN among strings into 'nan'.

    Args:
        where: begins the error.
        value: a list, a pandas array, a single value or anything else that numpy takes for an array.
        expected: what should have come, for the error.

    Raises:
        DataError: entries of different lengths, tensors that numpy cannot read, structured arrays.
    """
    try:
        array = unmasked(value) if isinstance(value, np.ndarray) else np.asarray(value)
        if array.dtype.kind in "US":
            array = np.asarray(value, dtype=object)
    except ValueError:
        raise DataError(f"{where}: expected {expected}, got entries of different lengths.") from None
    except (TypeError, RuntimeError):  # from entries with an __array__ of their own, such as meta tensors
        raise DataError(f"{where}: expected {expected}, got {shortened(value, 60)}.") from None
    if array.dtype.kind == "V":
        raise DataError(f"{where}: expected {expected}, got {array.dtype} values.")
    return array


def unmasked(array: np.ndarray) -> np.ndarray:
    """The same array; if it is a masked one, with None (NaN among floating-point numbers) where the mask hides a value."""
    if not isinstance(array, np.ma.MaskedArray):
        return array
    if not np.ma.is_masked(array):
        return np.asarray(array.data)
    if array.dtype.kind == "f":
        return np.asarray(array.filled(np.nan))
    result = array.data.astype(object)
    result[np.ma.getmaskarray(array)] = None
    return np.asarray(result)


def own_tensor(array: np.ndarray) -> Tensor:
    """A tensor with memory of its own; an array out of pandas may be read-only, one out of a file in foreign byte order."""
    kind = array.dtype.kind
    # Platform-dependent types such as longlong, which torch does not know, become those of the same size.
    plain = f"{kind}{min(array.dtype.itemsize, 8)}" if kind in "iuf" else array.dtype.newbyteorder("=")
    return torch.from_numpy(array.astype(plain))


def shared_tensor(array: np.ndarray) -> Tensor:
    """A tensor over the memory of an array of integers, only to be read; of its own memory where torch cannot take the array's."""
    native = array.dtype.isnative and array.dtype in (np.uint8, np.int8, np.int16, np.int32, np.int64)
    if native and array.flags.writeable and array.flags.c_contiguous:
        return torch.from_numpy(array)
    return own_tensor(array)
