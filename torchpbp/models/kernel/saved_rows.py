"""Checks of the training rows and operators of a KernelPBP in a model file."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from torchpbp.graph.latent_graph import Domain


def example_fault(rows: Tensor, domains: Mapping[str, Domain]) -> str | None:
    """An error for the first discrete variable with training values that are not states; None without any."""
    for (v, states), column in zip(domains.items(), rows.T, strict=True):
        if isinstance(states, int) and bool(((column != column.round()) | (column < 0) | (column >= states)).any()):
            return f"examples of '{v}': expected states from 0 to {states - 1}"
    return None


def operator_fault(saved: Mapping[str, tuple[Tensor, Tensor | None]], rows: int) -> str | None:
    """An error for the first operator that is not a map on functions of the training rows; None without any."""
    for node, (left, right) in saved.items():
        inner = rows if right is None else right.shape[0]
        if left.shape != (rows, inner) or (right is not None and right.shape != (inner, rows)):
            shapes = tuple(left.shape), None if right is None else tuple(right.shape)
            return f"operators.{node}: expected values at {rows} training rows, got shapes {shapes}"
    return None
