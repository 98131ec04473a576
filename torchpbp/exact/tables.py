"""Checks of a network's tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchpbp.errors import QueryError, ShapeError, StructureError
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.inputs.arrays import require_device


def check_variables(what: str, names: Iterable[str], known: Mapping[str, Any]) -> None:
    """Raise a QueryError for unknown names; ``what`` begins the message."""
    for name in names:
        if name not in known:
            raise QueryError(f"{what} unknown variable '{name}'. The network has: {', '.join(known)}.")


def check_tables(tables: object, expected: str) -> None:
    """Raise a StructureError for tables that are not in a mapping."""
    if not isinstance(tables, Mapping):
        raise StructureError(f"{expected}, got {type(tables).__name__}.")


def device_of(tables: Iterable[Any]) -> torch.device:
    """Device of the first tensor among some tables; the CPU if there is none."""
    return next((t.device for t in tables if isinstance(t, Tensor)), torch.device("cpu"))


def checked_table(
    what: str, table: Any, scope: Sequence[str], graph: LatentGraph, device: torch.device | str = "cpu"
) -> Tensor:
    """A float64 copy of a table, with one dimension per variable of the scope; arrays and lists are moved to the device.

    Raises:
        DeviceError: a tensor on another device.
        ShapeError, StructureError: an invalid table of the variables.
    """
    if isinstance(table, Tensor):
        require_device(what, table, device, "the other tables")
    expected = tuple(graph.num_states(v) for v in scope)
    try:
        numbers = table if isinstance(table, Tensor) else torch.from_numpy(np.array(table, dtype=np.float64)).to(device)
        if numbers.is_complex():  # torch drops the imaginary part with only a warning
            raise TypeError("got complex numbers")
        tensor = numbers.to(dtype=torch.float64, copy=True)
    except (TypeError, ValueError) as error:
        raise ShapeError(f"{what}: expected numbers of shape {expected} for {tuple(scope)}; {error}.") from None
    if tuple(tensor.shape) != expected:
        raise ShapeError(f"{what}: expected shape {expected} for {tuple(scope)}, got {tuple(tensor.shape)}.")
    if not bool((tensor >= 0).all()) or not bool(torch.isfinite(tensor).all()):
        raise StructureError(f"{what}: expected finite non-negative entries.")
    return tensor
