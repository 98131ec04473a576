"""Evidence on one variable: states, weights or values of any form as a checked tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchpbp.errors import DataError, ShapeError
from torchpbp.graph.domains import Domain, shape_of
from torchpbp.inputs.arrays import as_array, dense_tensor, name_of
from torchpbp.inputs.labels import numeric_tensor
from torchpbp.inputs.leaf_columns import open_leaves
from torchpbp.inputs.states import comparable, whole_numbers
from torchpbp.inputs.values import check_values
from torchpbp.lazy import is_categorical, is_series
from torchpbp.lazy import pandas as pd


def as_tensor(name: str, value: Any, labels: Sequence[Any] | None, domain: Domain) -> Tensor:
    """States, values or weights in any form as a tensor of at least one dimension.

    Args:
        name: of the variable.
        value: tensor, array, list, Series, category column, or a single state, label or value.
        labels: of the variable's states, if it is known by labels.
        domain: of the variable.
    """
    where = f"Evidence on '{name}'"
    if isinstance(value, Tensor):
        value = dense_tensor(where, value)
        return value.reshape(1) if value.ndim == 0 else value
    if isinstance(value, list | tuple) and value and all(isinstance(row, Tensor) for row in value):
        rows = [dense_tensor(where, row) for row in value]
        if len({row.shape for row in rows}) > 1:
            raise ShapeError(f"{where}: got tensors of different shapes. Give each row the same.")
        return torch.stack(rows)  # numpy would cut gradients off
    if is_series(value):
        value = value.array
    if is_categorical(value):
        if labels is None and not pd.api.types.is_integer_dtype(value.categories.dtype):
            raise DataError(f"{where} has category labels, but the model was fitted on plain states.")
        value = np.asarray(value.astype(object), dtype=object)
    expected = "states or weights" if isinstance(domain, int) else "numbers"
    return numeric_tensor(where, np.atleast_1d(as_array(where, value, expected)), labels, domain, expected)


def checked_values(name: str, tensor: Tensor, domain: Domain) -> Tensor:
    """(rows,) float64 values of a continuous variable, finite and within the declared range; NaN where not observed."""
    if tensor.ndim != 1:
        raise ShapeError(
            f"Evidence on '{name}': expected one real value per row (NaN where not observed), got {name_of(tensor.dtype)} of shape "
            f"{tuple(tensor.shape)}."
        )
    values = tensor.to(torch.float64)
    check_values(
        f"Evidence on '{name}'", values, domain, "a finite value or NaN", "Use NaN for a value that is not observed."
    )
    return values


def checked_leaves(name: str, value: Any, domain: Domain, single: bool = False) -> Tensor:
    """(rows, *shape) vectors or images, finite and within the declared range; NaN in all entries where not observed.

    Args:
        name: of the variable.
        value: see :func:`torchpbp.inputs.leaf_columns.open_leaves`.
        domain: of the variable.
        single: whether one value without a dimension for rows is taken for one row.
    """
    where = f"Evidence on '{name}'"
    values = open_leaves(where, value, shape_of(domain), single).read(where)
    check_values(where, values, domain, "finite values", "Make the whole value NaN if it is not observed.")
    return values


def checked_states(name: str, tensor: Tensor, states: int) -> Tensor:
    """(rows,) int64 states; -1 where not observed."""
    if tensor.ndim != 1:
        raise ShapeError(
            f"Evidence on '{name}': expected one state per row, or floating-point weights of shape (batch, {states}); "
            f"got {name_of(tensor.dtype)} of shape {tuple(tensor.shape)}."
        )
    if tensor.is_floating_point():
        codes, bad = whole_numbers(tensor)
        if bool(bad.any()):
            row = int(bad.nonzero()[0])
            raise DataError(
                f"Evidence on '{name}', row {row}: expected a whole number from 0 to {states - 1}, got {float(tensor[row])}. "
                f"Weights over states have shape (batch, {states})."
            )
    else:
        codes = comparable(tensor).to(torch.int64)
    bad = (codes < -1) | (codes >= states)
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        state = int(tensor[row].item())  # a number beyond int64 has another code
        raise DataError(
            f"Evidence on '{name}', row {row}: state {state} is out of range; expected 0 to {states - 1}, or "
            "-1 for not observed."
        )
    return codes


def checked_weights(name: str, tensor: Tensor, states: int) -> Tensor:
    """(rows, states) finite non-negative weights, not all 0 in any row."""
    if tensor.ndim != 2 or tensor.shape[1] != states:
        raise ShapeError(f"Soft evidence on '{name}': expected shape (batch, {states}), got {tuple(tensor.shape)}.")
    tensor = tensor if tensor.is_floating_point() else tensor.to(torch.float64)
    detached = tensor.detach()
    bad = ~(detached >= 0) | detached.isinf()
    if bool(bad.any()):
        row = int(bad.any(dim=1).nonzero()[0])
        raise DataError(
            f"Soft evidence on '{name}', row {row}: expected finite non-negative weights, got {detached[row].tolist()}."
        )
    if not bool(detached.any(dim=1).all()):
        row = int((~detached.any(dim=1)).nonzero()[0])
        raise DataError(f"Soft evidence on '{name}', row {row}: all weights are 0, which rules out every state.")
    return tensor
