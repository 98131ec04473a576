"""Feature maps of single variables, from values to vectors.

A map has three methods. *Features* of a value enter the regressions; *evidence* is the vector of a leaf with an observed
value; *missing* is the vector of a leaf without a value, which represents the constant 1. One-hot
features are equal to their evidence and sum to 1. Kernel features have the constant as an additional first entry: the features
of a value x are (1, z(x)), evidence is (0, z(x)) and missing is (1, 0).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from torchpbp.errors import ArgumentError, NotFittedError
from torchpbp.features.kernels import RBF, Kernel, median_bandwidth
from torchpbp.settings import choice, either, instance, optional, positive, whole
from torchpbp.settings import seed as checked_seed

KERNEL = optional(instance(Kernel, expected="RBF(), Laplace() or Matern(…)"))
BANDWIDTH = either(choice("median", "validate"), positive())

FARTHEST = 1e8
"""Limit of distances from the mean, in bandwidths: phases beyond have no digits left; kernels and features are 0 there."""


class FeatureMap(nn.Module, ABC):
    """Abstract base class of feature maps.

    Attributes:
        dim: length of the vectors.
    """

    dim: int

    @abstractmethod
    def features(self, values: Tensor) -> Tensor:
        """(n,) values -> (n, dim)."""

    @abstractmethod
    def evidence(self, values: Tensor) -> Tensor:
        """(n,) observed values -> (n, dim)."""

    @abstractmethod
    def missing(self) -> Tensor:
        """(dim,) representer of the constant 1."""

    def fit(self, values: Tensor) -> None:
        """Fit the map to (n,) training values; discrete variables need no fit."""


class OneHot(FeatureMap):
    """Indicator vector of a discrete variable's state.

    Args:
        states: number of states.
    """

    def __init__(self, states: int) -> None:
        super().__init__()
        self.dim = states

    def features(self, values: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(values, self.dim).to(torch.float64)

    evidence = features

    def missing(self) -> Tensor:
        return torch.ones(self.dim, dtype=torch.float64, device="cpu")


@cache
def one_hot(states: int) -> OneHot:
    """The map of a number of states; it has no state, so variables share it."""
    return OneHot(states)


class KernelMap(FeatureMap):
    """Base class of maps that approximate a kernel: z(x)·z(x') ≈ k(x, x').

    Args:
        size: number of kernel features.
        kernel: the kernel.
        bandwidth: bandwidth in units of the data; "median" for the median distance between training values times
            ``bandwidth_scale``; "validate" for the multiple of this distance that scores best on held-out rows.
        bandwidth_scale: factor of the median rule.
    """

    mean: Tensor
    scale: Tensor
    width: Tensor

    def __init__(
        self, size: int, kernel: Kernel | None = None, bandwidth: float | str = "median", bandwidth_scale: float = 0.35
    ) -> None:
        super().__init__()
        self.dim = whole(1).check("size", size) + 1
        self.kernel: Kernel = KERNEL.check("kernel", kernel) or RBF()
        self.bandwidth: float | str = BANDWIDTH.check("bandwidth", bandwidth)
        self.bandwidth_scale: float = positive().check("bandwidth_scale", bandwidth_scale)
        for name in ("mean", "scale", "width"):
            self.register_buffer(name, torch.tensor(float("nan"), dtype=torch.float64))

    def fit(self, values: Tensor) -> None:
        values = values.double()
        by_rule = isinstance(self.bandwidth, str)
        width = median_bandwidth(values) * self.bandwidth_scale if by_rule else float(self.bandwidth)
        spread = float(values.std(unbiased=False))
        self.mean.fill_(float(values.mean()))
        self.scale.fill_(spread if spread > 0 else width)
        self.width.fill_(width)
        self._fit((values - self.mean) / self.scale, float(self.width / self.scale))

    def settings(self) -> dict[str, Any]:
        """Constructor arguments as plain values, without the kernel."""
        return {
            "size": self.dim - 1,
            "bandwidth": self.bandwidth,
            "bandwidth_scale": self.bandwidth_scale,
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for saving; fitted parts are in the state dict."""
        return {"map": type(self).__name__, "kernel": self.kernel.to_dict(), **self.settings()}

    @staticmethod
    def from_dict(saved: Mapping[str, Any]) -> KernelMap:
        """Inverse of :meth:`to_dict`."""
        arguments = dict(saved)
        kind = _kinds()[arguments.pop("map")]
        return kind(kernel=Kernel.from_dict(arguments.pop("kernel")), **arguments)

    @abstractmethod
    def _fit(self, standard: Tensor, width: float) -> None:
        """Fit to standardised values, with the bandwidth in their units."""

    @abstractmethod
    def _embed(self, standard: Tensor, width: Tensor) -> Tensor:
        """(n,) standardised values -> (n, size)."""

    def _kernel_features(self, values: Tensor) -> Tensor:
        # On a GPU reading a value would synchronise with all queued work.
        if self.scale.device.type == "cpu" and not torch.compiler.is_compiling() and bool(torch.isnan(self.scale)):
            raise NotFittedError("The feature map is not fitted yet.")
        return self._embed((values.to(self.mean.dtype) - self.mean) / self.scale, self.width / self.scale)

    def features(self, values: Tensor) -> Tensor:
        z = self._kernel_features(values)
        return torch.cat([torch.ones_like(z[..., :1]), z], dim=-1)

    def evidence(self, values: Tensor) -> Tensor:
        z = self._kernel_features(values)
        return torch.cat([torch.zeros_like(z[..., :1]), z], dim=-1)

    def missing(self) -> Tensor:
        return torch.nn.functional.one_hot(torch.tensor(0, device=self.mean.device), self.dim).to(self.mean.dtype)


class Nystroem(KernelMap):
    """Kernel values at landmarks, whitened by the landmarks' Gram matrix: z(x) = K_cc^{-1/2} k(c, x).

    Args:
        size: number of landmarks.
        kernel, bandwidth, bandwidth_scale: see :class:`KernelMap`.
        landmarks: "kmeans" (centres of the training values) or "grid" (evenly spaced over their range).
    """

    centres: Tensor
    whitener: Tensor

    def __init__(
        self,
        size: int = 20,
        kernel: Kernel | None = None,
        bandwidth: float | str = "median",
        bandwidth_scale: float = 0.35,
        landmarks: str = "kmeans",
    ) -> None:
        super().__init__(size, kernel, bandwidth, bandwidth_scale)
        self.landmarks: str = choice("kmeans", "grid").check("landmarks", landmarks)
        size = self.dim - 1
        self.register_buffer("centres", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("whitener", torch.zeros(size, size, dtype=torch.float64))

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "landmarks": self.landmarks}

    def _fit(self, standard: Tensor, width: float) -> None:
        size = self.dim - 1
        if self.landmarks == "grid":
            self.centres.copy_(torch.linspace(float(standard.min()), float(standard.max()), size, dtype=torch.float64))
        else:
            self.centres.copy_(_kmeans(standard, size))
        gram = self.kernel.gram(self.centres, self.centres, width)
        values, vectors = torch.linalg.eigh(gram)
        varying = values > 1e-10 * values[-1]
        inverse = torch.where(varying, values.clamp(min=1e-300).rsqrt(), torch.zeros_like(values))
        self.whitener.copy_((vectors * inverse) @ vectors.T)

    def _embed(self, standard: Tensor, width: Tensor) -> Tensor:
        return self.kernel.gram(standard, self.centres, width) @ self.whitener  # type: ignore[arg-type]


class RandomFourier(KernelMap):
    """Random Fourier features: z(x) = √(2/size) (cos ωx, sin ωx)…, with frequencies from the kernel's spectrum.

    Args:
        size: number of features, even.
        kernel, bandwidth, bandwidth_scale: see :class:`KernelMap`.
        seed: seed of the frequencies.
    """

    frequencies: Tensor

    def __init__(
        self,
        size: int = 40,
        kernel: Kernel | None = None,
        bandwidth: float | str = "median",
        bandwidth_scale: float = 0.35,
        seed: int = 0,
    ) -> None:
        super().__init__(size, kernel, bandwidth, bandwidth_scale)
        if size % 2:
            raise ArgumentError(f"size: expected an even number of features, got {size}.")
        self.seed: int = checked_seed().check("seed", seed)
        generator = torch.Generator().manual_seed(self.seed)
        self.register_buffer("frequencies", self.kernel.frequencies(size // 2, generator))

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "seed": self.seed}

    def _fit(self, standard: Tensor, width: float) -> None:
        pass

    def _embed(self, standard: Tensor, width: Tensor) -> Tensor:
        far = (standard / width).abs() > FARTHEST
        phase = torch.where(far, 0.0, standard).unsqueeze(-1) * self.frequencies / width
        waves = torch.cat([phase.cos(), phase.sin()], dim=-1) * (1 / len(self.frequencies)) ** 0.5
        return torch.where(far.unsqueeze(-1), 0.0, waves)


def _kinds() -> dict[str, type[KernelMap]]:
    """Classes of maps by their names in files."""
    return {kind.__name__: kind for kind in (Nystroem, RandomFourier)}


def _kmeans(values: Tensor, size: int, rounds: int = 50) -> Tensor:
    """Centres of one-dimensional k-means, initialised at evenly spaced quantiles of the distinct values."""
    distinct: Tensor = torch.unique(values)
    places = torch.linspace(0, len(distinct) - 1, size, dtype=torch.float64, device=values.device)
    centres = distinct[places.round().long()].clone()
    if len(distinct) <= size:
        return centres
    for _ in range(rounds):
        middle = (centres[1:] + centres[:-1]) / 2
        cell = torch.bucketize(values, middle)
        count = torch.bincount(cell, minlength=size).to(values.dtype)
        total = torch.zeros_like(centres).index_add_(0, cell, values)
        moved = torch.where(count > 0, total / count.clamp(min=1), centres)
        if torch.allclose(moved, centres):
            break
        centres = moved
    return centres
