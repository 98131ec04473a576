"""Checks of the tables that people give a network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchpbp.errors import QueryError, ShapeError, StructureError
from torchpbp.graph.latent_graph import LatentGraph


def check_variables(what: str, names: Iterable[str], known: Mapping[str, Any]) -> None:
    """Raise a QueryError for names that the network does not have; ``what`` begins the message."""
    for name in names:
        if name not in known:
            raise QueryError(f"{what} unknown variable '{name}'. The network has: {', '.join(known)}.")


def check_tables(tables: object, expected: str) -> None:
    """Raise a StructureError for tables that are not in a mapping."""
    if not isinstance(tables, Mapping):
        raise StructureError(f"{expected}, got {type(tables).__name__}.")


def checked_table(what: str, table: Any, scope: Sequence[str], graph: LatentGraph) -> Tensor:
    """A table as a float64 copy in main memory, with one dimension for each variable of the scope."""
    expected = tuple(graph.num_states(v) for v in scope)
    try:
        numbers = table if isinstance(table, Tensor) else torch.from_numpy(np.array(table, dtype=np.float64))
        if numbers.is_complex():  # torch would drop the imaginary part, with no more than a warning
            raise TypeError("got complex numbers")
        tensor = numbers.to(device="cpu", dtype=torch.float64, copy=True)
    except (TypeError, ValueError) as error:
        raise ShapeError(f"{what}: expected numbers of shape {expected} for {tuple(scope)}; {error}.") from None
    if tuple(tensor.shape) != expected:
        raise ShapeError(f"{what}: expected shape {expected} for {tuple(scope)}, got {tuple(tensor.shape)}.")
    if not bool((tensor >= 0).all()) or not bool(torch.isfinite(tensor).all()):
        raise StructureError(f"{what}: expected finite non-negative entries.")
    return tensor
