"""Conversion of tensors, arrays and lists of any form to tensors of real numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchpbp.errors import DataError, DeviceError
from torchpbp.lazy import is_categorical, is_series
from torchpbp.lazy import pandas as pd
from torchpbp.settings import shortened


def as_tensor(where: str, value: Any, expected: str = "numbers") -> Tensor:
    """Real numbers in their dtype, from a tensor or anything that :func:`as_array` takes; objects become float64.

    Args:
        where: begins errors.
        value: tensor, list, array, Series or single number; None, NaN and masked entries become NaN.
        expected: describes valid values, for errors.
    """
    if isinstance(value, Tensor):
        return dense_tensor(where, value)
    return number_tensor(where, as_array(where, value, expected), expected)


def dense_tensor(where: str, tensor: Tensor) -> Tensor:
    """The same real numbers in a strided tensor; complex numbers raise a DataError that begins with ``where``."""
    if tensor.is_complex():
        raise DataError(
            f"{where}: expected a tensor of real numbers, got {name_of(tensor.dtype)} values. Pass the real part, or real and "
            "imaginary part as two variables."
        )
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


def require_device(where: str, tensor: Tensor, device: torch.device | str, of: str) -> None:
    """Raise a DeviceError for a tensor on another device; a device without a number stands for any of its kind.

    Args:
        where: begins the error.
        tensor: tensor to check.
        device: expected device.
        of: name of the object on that device, for the error.
    """
    wanted = torch.device(device)
    if tensor.device.type != wanted.type or wanted.index not in (None, tensor.device.index):
        raise DeviceError(
            f"{where}: expected a tensor on the device '{wanted}' of {of}, got one on '{tensor.device}'. Move it: "
            f"tensor.to('{wanted}')."
        )


def name_of(dtype: Any) -> str:
    """A dtype of torch or numpy as it appears in errors."""
    return str(dtype).removeprefix("torch.")


def as_array(where: str, value: Any, expected: str) -> np.ndarray:
    """An array of numbers, or of objects if the value holds strings: numpy would turn a NaN among strings into 'nan'.

    Args:
        where: begins the error.
        value: a list, a masked or pandas array, a single value or any other array-like object.
        expected: describes valid values, for the error.

    Raises:
        DataError: entries of different lengths, values that numpy cannot convert, structured arrays.
    """
    try:
        array = unmasked(value) if isinstance(value, np.ndarray) else np.asarray(value)
        if array.dtype.kind in "US":
            array = np.asarray(value, dtype=object)
    except ValueError:
        raise DataError(f"{where}: expected {expected}, got entries of different lengths.") from None
    except (TypeError, RuntimeError):  # from entries with an __array__ method, such as tensors with a gradient
        raise DataError(f"{where}: expected {expected}, got {shortened(value, 60)}.") from None
    if array.dtype.kind == "V":
        raise DataError(f"{where}: expected {expected}, got {array.dtype} values.")
    return array


def array_or_categories(where: str, value: Any, expected: str) -> np.ndarray | pd.Categorical:
    """:func:`as_array`, with categories left as they are."""
    value = value.array if is_series(value) else value
    return value if is_categorical(value) else as_array(where, value, expected)


def unmasked(array: np.ndarray) -> np.ndarray:
    """The array itself, or a masked array with None (NaN for floating-point numbers) in place of masked values."""
    if not isinstance(array, np.ma.MaskedArray):
        return array
    if not np.ma.is_masked(array):
        return np.asarray(array.data)
    if array.dtype.kind == "f":
        return np.asarray(array.filled(np.nan))
    result = array.data.astype(object)
    result[np.ma.getmaskarray(array)] = None
    return np.asarray(result)


def number_tensor(where: str, array: np.ndarray, expected: str, shared: bool = False, remedy: str = "") -> Tensor:
    """The numbers of an array in their dtype; objects become float64, with NaN for None, NaN, NaT and pandas NA.

    Args:
        where: begins errors.
        array: (rows, …) numbers.
        expected: describes valid values, for errors.
        shared: allow the tensor to share memory with an array of integers; by default the numbers are copied.
        remedy: ends the error about objects that are not numbers.

    Raises:
        DataError: values that are not real numbers.
    """
    if array.dtype == object:
        missing = np.asarray(pd.isna(array))
        numbers = np.full(array.shape, np.nan)
        try:
            numbers[~missing] = array[~missing].astype(float)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            wrong = next((x for x in array[~missing] if not _is_number(x)), None)
            raise DataError(f"{where}: expected {expected}, got {shortened(wrong, 60)}.{remedy}") from None
        return torch.from_numpy(numbers)
    kind = array.dtype.kind
    if kind not in "biuf":
        dates = " Convert dates to numbers, such as days." if kind in "mM" else ""
        raise DataError(f"{where}: expected {expected}, got {array.dtype} values.{dates}")
    native = array.dtype.isnative and array.dtype in (np.uint8, np.int8, np.int16, np.int32, np.int64)
    if shared and native and array.flags.writeable and array.flags.c_contiguous:
        return torch.from_numpy(array)
    # Platform-dependent types such as longlong, which torch lacks, become types of the same size.
    plain = f"{kind}{min(array.dtype.itemsize, 8)}" if kind in "iuf" else array.dtype.newbyteorder("=")
    return torch.from_numpy(array.astype(plain))


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return False
    return True
