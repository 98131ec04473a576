"""Checks of the tables that people give a network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchpbp.errors import QueryError, ShapeError, StructureError
from torchpbp.graph.latent_graph import LatentGraph


def refuse_unknown(what: str, names: Iterable[str], known: Mapping[str, Any]) -> None:
    """Refuse names that the network does not have; ``what`` says what was asked for."""
    for name in names:
        if name not in known:
            raise QueryError(f"{what} unknown variable '{name}'. The network has: {', '.join(known)}.")


def checked_table(what: str, table: Any, scope: Sequence[str], graph: LatentGraph) -> Tensor:
    """A table as float64 with memory of its own, one dimension for each variable of the scope."""
    expected = tuple(graph.num_states(v) for v in scope)
    try:
        numbers = table if isinstance(table, Tensor) else np.asarray(table, dtype=np.float64)
        tensor = torch.as_tensor(numbers, dtype=torch.float64).clone()
    except (TypeError, ValueError) as error:
        raise ShapeError(f"{what}: expected numbers of shape {expected} for {tuple(scope)}; {error}.") from None
    if tuple(tensor.shape) != expected:
        raise ShapeError(f"{what}: expected shape {expected} for {tuple(scope)}, got {tuple(tensor.shape)}.")
    if not bool((tensor >= 0).all()) or not bool(torch.isfinite(tensor).all()):
        raise StructureError(f"{what}: expected finite non-negative entries.")
    return tensor
