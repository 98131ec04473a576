"""Kernels on the real line: similarities of two values of one variable, their bandwidths and numerical limits."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torchpbp.errors import CheckpointError, DataError
from torchpbp.settings import choice

SMALLEST = 1e-150
"""Smallest range of a column: squares of smaller differences, and the variance, underflow in float64."""


class Kernel(ABC):
    """A positive-definite kernel ``k(|x − x'| / bandwidth)`` with ``k(0) = 1``.

    The kernel of a group of variables is the product of their kernels.
    """

    @abstractmethod
    def profile(self, distance: Tensor) -> Tensor:
        """Kernel value at a distance measured in bandwidths."""

    @abstractmethod
    def frequencies(self, count: int, generator: torch.Generator) -> Tensor:
        """(count,) draws from the kernel's spectral density at bandwidth 1, for random Fourier features."""

    @property
    @abstractmethod
    def integral(self) -> float:
        """∫ k over the real line at bandwidth 1, which normalises the kernel to a density."""

    def gram(self, a: Tensor, b: Tensor, bandwidth: float) -> Tensor:
        """Kernel between all values of two vectors.

        Args:
            a: (n,) values.
            b: (m,) values.
            bandwidth: bandwidth in units of the values.

        Returns:
            (n, m).
        """
        return self.profile((a.unsqueeze(-1) - b).abs() / bandwidth)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for saving.

        Raises:
            CheckpointError: a user-defined kernel, since model files hold no code.
        """
        if type(self) not in (RBF, Laplace, Matern):
            raise CheckpointError(
                f"Kernel {type(self).__name__} cannot be saved: a model file holds no code. Use RBF, Laplace or Matern, or keep "
                "the training data and fit again."
            )
        return {"kernel": type(self).__name__, **vars(self)}

    @staticmethod
    def from_dict(saved: Mapping[str, Any]) -> Kernel:
        """Inverse of :meth:`to_dict`."""
        settings = dict(saved)
        kinds: dict[str, type[Kernel]] = {"RBF": RBF, "Laplace": Laplace, "Matern": Matern}
        return kinds[settings.pop("kernel")](**settings)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class RBF(Kernel):
    """exp(−d²/2), the Gaussian kernel."""

    integral = math.sqrt(2 * math.pi)

    def profile(self, distance: Tensor) -> Tensor:
        return torch.exp(-0.5 * distance.square())

    def frequencies(self, count: int, generator: torch.Generator) -> Tensor:
        return torch.randn(count, generator=generator, dtype=torch.float64)


class Laplace(Kernel):
    """exp(−d)."""

    integral = 2.0

    def profile(self, distance: Tensor) -> Tensor:
        return torch.exp(-distance)

    def frequencies(self, count: int, generator: torch.Generator) -> Tensor:
        return torch.tan(math.pi * (torch.rand(count, generator=generator, dtype=torch.float64) - 0.5))  # Cauchy


class Matern(Kernel):
    """Matérn kernel of smoothness ν = 1/2, 3/2 or 5/2.

    Args:
        nu: 0.5, 1.5 or 2.5.
    """

    def __init__(self, nu: float = 1.5) -> None:
        self.nu: float = choice(0.5, 1.5, 2.5).check("nu", nu)

    @property
    def integral(self) -> float:
        return {0.5: 2.0, 1.5: 4 / math.sqrt(3), 2.5: 16 / (3 * math.sqrt(5))}[self.nu]

    def profile(self, distance: Tensor) -> Tensor:
        # The kernel is 0 beyond; infinity times 0 would be NaN.
        scaled = (math.sqrt(2 * self.nu) * distance).clamp(max=1e4)
        if self.nu == 0.5:
            return torch.exp(-scaled)
        if self.nu == 1.5:
            return (1 + scaled) * torch.exp(-scaled)
        return (1 + scaled + scaled.square() / 3) * torch.exp(-scaled)

    def frequencies(self, count: int, generator: torch.Generator) -> Tensor:
        # A Student t with 2ν degrees of freedom: a Gaussian over the root of an independent chi-square.
        freedom = int(2 * self.nu)
        normal = torch.randn(freedom + 1, count, generator=generator, dtype=torch.float64)
        return normal[0] / (normal[1:].square().mean(dim=0)).sqrt()

    def __repr__(self) -> str:
        return f"Matern(nu={self.nu})"


def median_bandwidth(values: Tensor, rows: int = 1000) -> float:
    """The median distance between pairs of different values, over at most ``rows`` evenly spaced rows."""
    end, count = len(values) - 1, min(rows, len(values))
    positions = torch.linspace(0, end, count, dtype=torch.float64, device=values.device).long()
    chosen = values[positions].double()
    distances = (chosen.unsqueeze(0) - chosen.unsqueeze(1)).abs()
    positive = distances[distances > 0]
    if positive.numel() == 0:
        raise DataError("The median rule needs at least two different values, got a constant column.")
    return float(positive.median())


def most_bandwidths(dtype: torch.dtype) -> float:
    """Largest range in bandwidths for which differences of values are exact to a hundredth of a bandwidth.

    The limit is at least 1e3, since half precision is coarser by choice.
    """
    return max(0.02 / torch.finfo(dtype).eps, 1e3)


def check_span(
    name: str,
    low: float,
    high: float,
    middle: float,
    width: float,
    dtype: torch.dtype,
    row: int | None = None,
) -> None:
    """Check that kernels can distinguish the values of a column.

    Args:
        name: name of the column.
        low, high: smallest and largest value.
        middle: median.
        width: bandwidth.
        dtype: dtype of differences.
        row: row of the value farthest from the median, if known.

    Raises:
        DataError: values so close that squares of their differences are 0, or a value so many bandwidths from the others that
            differences between these lose all digits.
    """
    if 0 < high - low < SMALLEST:
        raise DataError(
            f"Column '{name}': all values lie within {high - low} of each other, and the squares of such differences underflow in "
            "float64. Scale the column."
        )
    far = low if middle - low > high - middle else high
    apart, most = abs(far - middle) / width, most_bandwidths(dtype)
    if apart > most:
        place = "" if row is None else f", row {row}"
        remedy = ", or dtype=torch.float64" if most < apart <= most_bandwidths(torch.float64) else ""
        raise DataError(
            f"Column '{name}'{place}: value {far} lies {apart:.3g} bandwidths of {width:.3g} from the median {middle:.6g}. Kernels "
            f"compare values by their differences in bandwidths, and beyond {most:.2g} of them "
            f"{str(dtype).removeprefix('torch.')} has no digits left for the other rows. Drop or clip such outliers, transform the "
            f"column (by a logarithm, say), or give a larger bandwidth{remedy}."
        )
