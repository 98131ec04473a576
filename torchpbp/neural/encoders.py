"""Encoders of leaves, ready to use: of a leaf by itself, and of all leaves of a row together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchpbp.errors import ArgumentError, DataError
from torchpbp.settings import finite, flag, non_negative, positive, several, text, whole


class PointEncoder(nn.Module):
    """Features of a leaf from its own value: a perceptron with two hidden layers.

    Args:
        shape: of the leaf; () for a number.
        features: number of features.
        width: of the hidden layers.
        centre: subtracted from values.
        scale: by which they are divided then.

    Example:
        >>> PointEncoder((2,), features=7)(torch.zeros(5, 2)).shape
        torch.Size([5, 7])
    """

    def __init__(
        self, shape: Sequence[int], features: int = 7, width: int = 64, centre: float = 0.0, scale: float = 1.0
    ) -> None:
        super().__init__()
        self.shape = tuple(several(whole(1), expected="the shape of the leaf").check("shape", shape))
        self.features: int = whole(1).check("features", features)
        self.width: int = whole(1).check("width", width)
        self.centre: float = finite().check("centre", centre)
        self.scale: float = positive().check("scale", scale)
        self.layers = nn.Sequential(
            nn.Linear(math.prod(self.shape), width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, features),
        )

    @property
    def settings(self) -> dict[str, Any]:
        """Constructor arguments as plain values, for files."""
        names = ("features", "width", "centre", "scale")
        return {"shape": list(self.shape), **{name: getattr(self, name) for name in names}}

    def forward(self, values: Tensor) -> Tensor:
        """(n, *shape) values -> (n, features)."""
        flat = values.reshape(values.shape[0], math.prod(self.shape))
        out: Tensor = self.layers((flat - self.centre) / self.scale)
        return out


class ContextEncoder(nn.Module):
    """Features of each leaf from its own value and from all other leaves that are seen.

    A trunk reads the seen leaves and which they are; each leaf then has weights of its own for what the trunk found and for
    the other seen leaves relative to it. A leaf's own value is always used for its own features, whether it is marked as seen or
    not; the values of other leaves only where they are. For leaves of one shape, such as points or patches.

    Args:
        leaves: their names.
        shape: of each leaf.
        features: of each leaf.
        width: of the trunk's two layers.
        head: hidden units of each leaf.
        residual: scale at the start of the numbers that are added to a leaf's evidence.
        centre: subtracted from values.
        scale: by which they are divided then.
        relative: show each leaf the others as differences from itself, which suits coordinates; otherwise as they are.
    """

    def __init__(
        self,
        leaves: Sequence[str],
        shape: Sequence[int],
        features: int = 7,
        width: int = 192,
        head: int = 64,
        residual: float = 0.1,
        centre: float = 0.0,
        scale: float = 1.0,
        relative: bool = True,
    ) -> None:
        super().__init__()
        self.leaves = tuple(several(text(), expected="a list of names of leaves").check("leaves", leaves))
        if not self.leaves or len(set(self.leaves)) < len(self.leaves):
            raise ArgumentError(f"leaves: expected one or more names, each once; got {list(self.leaves)}.")
        self.shape = tuple(several(whole(1), expected="the shape of a leaf").check("shape", shape))
        self.features: int = whole(1).check("features", features)
        self.width: int = whole(1).check("width", width)
        self.head: int = whole(1).check("head", head)
        self.residual: float = non_negative().check("residual", residual)
        self.centre: float = finite().check("centre", centre)
        self.scale: float = positive().check("scale", scale)
        self.relative: bool = flag().check("relative", relative)
        count = len(self.leaves)
        inputs, outputs = count * (math.prod(self.shape) + 1), 2 * features + 1
        self.first = nn.Linear(inputs, width)
        self.second = nn.Linear(width, width)
        self.own = nn.Parameter(torch.randn(count, inputs, head) / math.sqrt(inputs))
        self.shared = nn.Linear(width, count * head)  # the trunk's part of all leaves' hidden units
        self.outer = nn.Parameter(torch.randn(count, head, outputs) / math.sqrt(head))
        self.outer_bias = nn.Parameter(torch.zeros(count, outputs))
        with torch.no_grad():
            self.outer[..., features:] *= residual

    @property
    def settings(self) -> dict[str, Any]:
        """Constructor arguments as plain values, for files."""
        names = ("features", "width", "head", "residual", "centre", "scale", "relative")
        lists = {"leaves": list(self.leaves), "shape": list(self.shape)}
        return {**lists, **{name: getattr(self, name) for name in names}}

    def forward(self, values: Mapping[str, Tensor], seen: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
        """Features and evidence residuals of all leaves.

        Args:
            values: leaf -> (n, *shape), any finite numbers where not seen.
            seen: leaf -> (n,) whether other leaves may use it.

        Returns:
            leaf -> (n, features) and (n, features + 1).
        """
        absent = [v for v in self.leaves if v not in values or v not in seen]
        if absent:
            raise DataError(
                f"ContextEncoder: expected values and marks of {', '.join(self.leaves)}; missing: {absent}."
            )
        flat = torch.stack(
            [values[v].reshape(values[v].shape[0], math.prod(self.shape)) for v in self.leaves], dim=1
        )  # (n, leaves, entries)
        mark = torch.stack([seen[v] for v in self.leaves], dim=1).unsqueeze(2).to(flat)  # (n, leaves, 1)
        out = self.outputs((flat - self.centre) / self.scale, mark)
        k = self.features
        return {v: (row[:, :k], row[:, k:]) for v, row in zip(self.leaves, out.unbind(1), strict=True)}

    def outputs(self, values: Tensor, mark: Tensor) -> Tensor:
        """(n, leaves, 2 · features + 1) features, then residuals, of (n, leaves, entries) values and their marks (n, leaves, 1)."""
        n, count = values.shape[:2]
        trunk = nn.functional.gelu(self.first(torch.cat([values * mark, mark - 0.5], dim=2).flatten(1)))
        trunk = trunk + nn.functional.gelu(self.second(trunk))
        itself = torch.eye(count, device=values.device, dtype=values.dtype).unsqueeze(2)
        others = values.unsqueeze(1) - values.unsqueeze(2) if self.relative else values.unsqueeze(1) * (1 - itself)
        shown = others * mark.unsqueeze(1) + itself * values.unsqueeze(2)  # its own value in its own place
        marks = torch.maximum(mark.unsqueeze(1), itself).expand(n, count, count, 1) - 0.5
        own = torch.cat([shown, marks], dim=3).flatten(2)  # (n, leaves, inputs)
        hidden = torch.einsum("nti,tih->nth", own, self.own) + self.shared(trunk).reshape(n, count, -1)
        return torch.einsum("nth,tho->nto", nn.functional.gelu(hidden), self.outer) + self.outer_bias
