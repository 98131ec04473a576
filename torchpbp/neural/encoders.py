"""Encoders of leaves: of each leaf separately, and of all leaves of a row jointly."""

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
        scale: divisor of the centred values.

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
    """Features of each leaf from its own value and from all other seen leaves.

    A shared trunk reads the values and marks of the seen leaves; a head per leaf combines the trunk's output with the seen
    leaves relative to its own. A leaf's features always use its own value; the values of other leaves are used only if they
    are marked as seen. For leaves of one shape, such as points or patches.

    Args:
        leaves: their names.
        shape: of each leaf.
        features: of each leaf.
        width: of the trunk's two layers.
        head: hidden units per leaf.
        residual: initial scale of the residuals added to a leaf's evidence.
        centre: subtracted from values.
        scale: divisor of the centred values.
        relative: heads read the other leaves as differences from their own leaf, which suits coordinates; otherwise as values.
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
            seen: leaf -> (n,) flags: whether other leaves may use its value.

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
        """(n, leaves, entries) values and (n, leaves, 1) marks -> (n, leaves, 2 · features + 1) features, then residuals."""
        n, count = values.shape[:2]
        trunk = nn.functional.gelu(self.first(torch.cat([values * mark, mark - 0.5], dim=2).flatten(1)))
        trunk = trunk + nn.functional.gelu(self.second(trunk))
        itself = torch.eye(count, device=values.device, dtype=values.dtype).unsqueeze(2)
        others = values.unsqueeze(1) - values.unsqueeze(2) if self.relative else values.unsqueeze(1) * (1 - itself)
        shown = others * mark.unsqueeze(1) + itself * values.unsqueeze(2)  # on the diagonal the leaf's own value
        marks = torch.maximum(mark.unsqueeze(1), itself).expand(n, count, count, 1) - 0.5
        inputs = torch.cat([shown, marks], dim=3).flatten(2)  # (n, leaves, inputs)
        hidden = torch.einsum("nti,tih->nth", inputs, self.own) + self.shared(trunk).reshape(n, count, -1)
        return torch.einsum("nth,tho->nto", nn.functional.gelu(hidden), self.outer) + self.outer_bias
