"""Estimates of a KernelPBP: probabilities of states, or densities, from weights of the training rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchpbp.errors import QueryError, ShapeError
from torchpbp.features.kernels import Kernel
from torchpbp.inference.density import GRID, Density, as_points, grid_density
from torchpbp.inputs.evidence import one_hot_where_observed


def state_probabilities(
    weights: Tensor, values: Tensor, states: int, soft: Tensor | None, hard: Tensor | None
) -> Tensor:
    """Posterior of a discrete variable.

    Args:
        weights: (batch, rows) of the training rows.
        values: (rows,) states of the training rows.
        states: number of states.
        soft: (batch, states) evidence on the variable itself.
        hard: (batch,) observed states; -1 where not observed.

    Returns:
        (batch, states); uniform if no training row has a positive weight.
    """
    onehot = torch.nn.functional.one_hot(values.long(), states).to(weights)
    estimate = weights @ onehot
    if soft is not None:
        estimate = estimate * soft.to(estimate)
    clipped = estimate.clamp(min=0)
    total = clipped.sum(dim=1, keepdim=True)
    result = torch.where(total > 0, clipped / total.clamp(min=1e-300), torch.full_like(clipped, 1 / states))
    if hard is not None:
        result = one_hot_where_observed(hard, result)
    return result


def value_density(weights: Tensor, values: Tensor, bounds: Tensor, kernel: Kernel, width: float) -> Density:
    """Posterior of a continuous variable.

    Args:
        weights: (batch, rows) of the training rows.
        values: (rows,) values of the training rows.
        bounds: (2,) ends of its range.
        kernel: kernel around each value.
        width: bandwidth of the kernel.
    """
    weights = weights.double()
    low, high = bounds.tolist()
    points = torch.linspace(low, high, GRID, dtype=torch.float64, device=weights.device)
    total = weights.sum(dim=1)
    safe = torch.where(total > 0, total, torch.ones_like(total))
    centre = values.mean()  # squares of values far from 0 would cancel in the variance
    first, second = weights @ (values - centre) / safe, weights @ (values - centre).square() / safe
    plain = grid_density(points, weights @ kernel.gram(values, points, width))
    usable = (total > 0) & (first + centre >= low) & (first + centre <= high)
    mean = torch.where(usable, first + centre, plain.mean)
    spread = second - first.square()
    variance = torch.where(usable & (spread > 0), spread, plain.variance)
    return Density(points, plain.values, mean, variance)


def density_at(density: Density, at: Any) -> Tensor:
    """(batch, n) density at (n,) points."""
    where = as_points(at)
    if where.ndim != 1:
        raise ShapeError(f"at: expected (n,) points, got shape {tuple(where.shape)}.")
    if not bool(where.isfinite().all()):
        raise QueryError("at: expected finite points, got NaN or infinity.")
    return density.prob(where)


def joined(parts: list[Any]) -> Any:
    """The concatenation of answers for parts of a batch."""
    if not isinstance(parts[0], Density):
        return torch.cat(parts)
    values, mean, variance = (torch.cat([getattr(p, name) for p in parts]) for name in ("values", "mean", "variance"))
    return Density(parts[0].points, values, mean, variance)
