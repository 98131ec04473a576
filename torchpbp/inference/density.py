"""Densities of continuous variables, represented by their values on a grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchpbp.errors import DataWarning, QueryError, ShapeError, warn_caller
from torchpbp.inputs.arrays import dense_tensor
from torchpbp.settings import shortened, whole

GRID = 513
"""Number of grid points of a density."""
COARSEST = 2.0
"""Largest spacing of grid points, in bandwidths: the error of sums over the grid as integrals is 1 % here, 20 % at 3."""


@dataclass(frozen=True)
class LeafPosterior:
    """Posterior of a leaf with an encoder: mean and variance of each entry.

    The features of such a leaf estimate the ratio p(x | evidence) / p(x), not a density: quantiles and samples are unavailable.

    Args:
        mean: (batch, *shape of the leaf).
        variance: (batch, *shape of the leaf).
    """

    mean: Tensor
    variance: Tensor

    @property
    def batch_shape(self) -> torch.Size:
        return self.mean.shape[:1]

    @property
    def std(self) -> Tensor:
        """(batch, *shape) standard deviations."""
        return self.variance.sqrt()


@dataclass(frozen=True)
class Density:
    """A batch of one-dimensional densities, piecewise linear between grid points.

    Args:
        points: (grid,) evenly spaced points over the variable's range, float64 for values of any dtype.
        values: (batch, grid) non-negative values that integrate to 1 by the trapezoid rule.
        mean: (batch,) means.
        variance: (batch,) variances.
    """

    points: Tensor
    values: Tensor
    mean: Tensor
    variance: Tensor

    @property
    def batch_shape(self) -> torch.Size:
        return self.values.shape[:1]

    def prob(self, at: Any) -> Tensor:
        """(batch, n) density at (n,) points, (batch,) at a single one; 0 outside the range."""
        at = as_points(at).to(self.points)
        if bool(at.isnan().any()):
            raise QueryError("Density: expected points to evaluate at, got NaN.")
        step = self.points[1] - self.points[0]
        position = ((at - self.points[0]) / step).clamp(0, len(self.points) - 1)
        left = position.floor().long().clamp(max=len(self.points) - 2)
        share = position - left
        inside = (at >= self.points[0]) & (at <= self.points[-1])
        share, inside = share.to(self.values), inside.to(self.values)
        return (self.values[:, left] * (1 - share) + self.values[:, left + 1] * share) * inside

    def log_prob(self, at: Any) -> Tensor:
        """Log of :meth:`prob`."""
        return self.prob(at).log()

    def cdf(self) -> Tensor:
        """(batch, grid) distribution function at the grid points."""
        step = float(self.points[1] - self.points[0])
        pieces = (self.values[:, 1:] + self.values[:, :-1]) * (step / 2)
        return torch.cat([torch.zeros_like(pieces[:, :1]), pieces.cumsum(dim=1)], dim=1)

    def quantile(self, q: float | Tensor) -> Tensor:
        """Quantiles.

        Args:
            q: a level, or (n,) levels.

        Returns:
            (batch,) for a number, (batch, n) for a tensor.
        """
        levels = torch.as_tensor(q, dtype=self.values.dtype, device=self.values.device)
        if not bool(((levels >= 0) & (levels <= 1)).all()):
            raise QueryError(f"quantile: expected levels from 0 to 1, got {q}.")
        quantiles = self._invert(levels.reshape(1, -1).expand(len(self.values), -1).contiguous())
        return quantiles.squeeze(1) if levels.ndim == 0 else quantiles

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """(n, batch) draws."""
        whole(0).check("n", n)
        uniform = torch.rand(
            len(self.values), n, generator=generator, dtype=self.values.dtype, device=self.values.device
        )
        return self._invert(uniform).T

    def _invert(self, levels: Tensor) -> Tensor:
        """(batch, n) points at which the distribution function reaches (batch, n) levels."""
        cdf = self.cdf()
        right = torch.searchsorted(cdf, levels * cdf[:, -1:]).clamp(1, len(self.points) - 1)
        low, high = cdf.gather(1, right - 1), cdf.gather(1, right)
        tiny = torch.finfo(cdf.dtype).tiny
        share = ((levels * cdf[:, -1:] - low) / (high - low).clamp(min=tiny)).clamp(0, 1)
        return self.points[right - 1] + share * (self.points[1] - self.points[0])


def warn_of_coarse_grids(spans: Mapping[str, tuple[float, float]]) -> None:
    """Warn, once for all variables, of ranges too wide for the grid of a density to resolve its kernels.

    Args:
        spans: continuous variable -> (width of its range, bandwidth).
    """
    coarse = {v: span / width for v, (span, width) in spans.items() if span > COARSEST * (GRID - 1) * width}
    if coarse:
        listed = ", ".join(f"'{v}' ({count:.3g} bandwidths)" for v, count in list(coarse.items())[:20])
        warn_caller(
            f"Ranges too wide for the {GRID} points that a density is kept at: {listed}. Densities and quantiles of these variables "
            "will be coarse; their means and variances, and answers about other variables, are not concerned. Drop or clip "
            "outliers, declare a narrower Continuous(low, high), or give a larger bandwidth.",
            DataWarning,
        )


def as_points(at: Any) -> Tensor:
    """Evaluation points of a density, as float64."""
    try:
        points = dense_tensor("at", at) if isinstance(at, Tensor) else at
        return torch.as_tensor(points, dtype=torch.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise QueryError(f"Density: expected numbers as points to evaluate at, got {shortened(at)}.") from None


def read_points(at: Any) -> Tensor:
    """(n,) finite points at which a density is queried, as float64."""
    points = as_points(at)
    if points.ndim != 1:
        raise ShapeError(f"at: expected (n,) points, got shape {tuple(points.shape)}.")
    if not bool(points.isfinite().all()):
        raise QueryError("at: expected finite points, got NaN or infinity.")
    return points


def grid_density(
    points: Tensor, estimate: Tensor, mean: Tensor | None = None, variance: Tensor | None = None
) -> Density:
    """Clip an estimate of a density at 0 and normalise it; a row without positive values becomes uniform.

    Args:
        points: (grid,) evenly spaced.
        estimate: (batch, grid) values up to a positive factor per row.
        mean: (batch,) means that replace those of the grid.
        variance: (batch,) variances that replace those of the grid.
    """
    step = points[1] - points[0]
    top = estimate.detach().abs().amax(dim=1, keepdim=True)
    clipped = (estimate / torch.where(top > 0, top, torch.ones_like(top))).clamp(min=0)
    empty = (clipped.detach().sum(dim=1, keepdim=True) <= 0).to(clipped.dtype)
    clipped = clipped + empty
    values = clipped / torch.trapezoid(clipped, dx=float(step), dim=1).unsqueeze(1)
    grid_mean = torch.trapezoid(values * points, dx=float(step), dim=1)
    mean = grid_mean if mean is None else mean
    grid_variance = torch.trapezoid(values * (points - grid_mean.unsqueeze(1)) ** 2, dx=float(step), dim=1)
    return Density(points, values, mean, grid_variance if variance is None else variance)
