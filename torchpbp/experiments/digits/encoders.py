"""Encoders of pen points: features of each of the eight points, for a graphical model or a perceptron behind them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from torchpbp.datasets.digits import LARGEST, POINTS
from torchpbp.errors import DataError
from torchpbp.settings import non_negative, whole

POINT_NAMES = tuple(f"p{t}" for t in range(1, POINTS + 1))
"""Names of the eight points, each a vector of its two coordinates."""

Features = dict[str, tuple[Tensor, Tensor]]
"""Name of a point -> (n, features) and the (n, features + 1) numbers added to its evidence."""


class StrokeEncoder(nn.Module):
    """Features of each point from its own position and from all other points that are seen.

    A trunk reads the seen points and which they are; each point then has weights of its own for what the trunk found and for
    the other seen points relative to it. A point's own position is always used for its own features, whether it is marked
    as seen or not; the positions of other points only where they are.

    Args:
        features: of each point.
        width: of the trunk's two layers.
        head: hidden units of each point.
        residual: scale at the start of the numbers that are added to a point's evidence.
        names: of the points.
    """

    def __init__(
        self,
        features: int = 7,
        width: int = 192,
        head: int = 64,
        residual: float = 0.1,
        names: tuple[str, ...] = POINT_NAMES,
    ) -> None:
        super().__init__()
        self.features = whole(1).check("features", features)
        self.names = names
        count, inputs, outputs = len(names), 3 * len(names), 2 * self.features + 1
        self.first = nn.Linear(inputs, whole(1).check("width", width))
        self.second = nn.Linear(width, width)
        self.own = nn.Parameter(torch.randn(count, inputs, whole(1).check("head", head)) / math.sqrt(inputs))
        self.shared = nn.Linear(width, count * head)  # the trunk's part of all points' hidden units
        self.outer = nn.Parameter(torch.randn(count, head, outputs) / math.sqrt(head))
        self.outer_bias = nn.Parameter(torch.zeros(count, outputs))
        with torch.no_grad():
            self.outer[..., self.features :] *= non_negative().check("residual", residual)

    def forward(self, values: Mapping[str, Tensor], seen: Mapping[str, Tensor]) -> Features:
        """Features and evidence residuals of all points.

        Args:
            values: name -> (n, 2) coordinates, any finite numbers where not seen.
            seen: name -> (n,) whether other points may use it.
        """
        missing = [name for name in self.names if name not in values or name not in seen]
        if missing:
            raise DataError(f"StrokeEncoder: expected values and marks of {', '.join(self.names)}; missing: {missing}.")
        points = scaled(torch.stack([values[name] for name in self.names], dim=1))  # (n, points, 2)
        mark = torch.stack([seen[name] for name in self.names], dim=1).unsqueeze(2).to(points)  # (n, points, 1)
        out = self.outputs(points, mark)
        return {
            name: (row[:, : self.features], row[:, self.features :])
            for name, row in zip(self.names, out.unbind(1), strict=True)
        }

    def outputs(self, points: Tensor, mark: Tensor) -> Tensor:
        """(n, points, 2 · features + 1) features, then residuals, of scaled points and their marks (n, points, 1)."""
        n, count = points.shape[:2]
        kept = points * mark
        trunk = nn.functional.gelu(self.first(torch.cat([kept, mark - 0.5], dim=2).flatten(1)))
        trunk = trunk + nn.functional.gelu(self.second(trunk))
        # Row t of the offsets: the other seen points relative to point t, and in its own place where it is itself.
        itself = torch.eye(count, device=points.device, dtype=points.dtype).unsqueeze(2)
        relative = (points.unsqueeze(1) - points.unsqueeze(2)) * mark.unsqueeze(1) + itself * points.unsqueeze(2)
        marks = torch.maximum(mark.unsqueeze(1), itself).expand(n, count, count, 1) - 0.5
        own = torch.cat([relative, marks], dim=3).flatten(2)  # (n, points, 3 · points)
        hidden = torch.einsum("nti,tih->nth", own, self.own) + self.shared(trunk).reshape(n, count, -1)
        return torch.einsum("nth,tho->nto", nn.functional.gelu(hidden), self.outer) + self.outer_bias


class PointEncoder(nn.Module):
    """Features of a point from its own two coordinates.

    Args:
        features: of the point.
        width: of its two hidden layers.
    """

    def __init__(self, features: int = 7, width: int = 64) -> None:
        super().__init__()
        whole(1).check("features", features)
        whole(1).check("width", width)
        self.layers = nn.Sequential(
            nn.Linear(2, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, features)
        )

    def forward(self, values: Tensor) -> Tensor:
        """(n, 2) coordinates -> (n, features)."""
        found: Tensor = self.layers(scaled(values))
        return found


def scaled(points: Tensor) -> Tensor:
    """Coordinates from 0 to 100 as numbers of about unit size around 0."""
    return 1.5 * (points / (LARGEST / 2) - 1)
