"""A graphical model inside a network: an encoder weighs the states of each pen point, a head answers with the digit.

Two heads take the same weights: :class:`ChainHead`, a ``PBPLayer`` over a hidden chain, and :class:`PerceptronHead`, its
twin with as many parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchpbp.datasets.digits import CLASSES, LARGEST, POINTS
from torchpbp.errors import ShapeError, StructureError
from torchpbp.graph.latent_graph import Domain, LatentGraph
from torchpbp.models.pbp import PBP
from torchpbp.neural.layer import PBPLayer

DIGIT = "digit"
MIDDLE = f"h{POINTS // 2}"
"""The latent on which the digit hangs: no point is further than half a chain away."""


def stroke_graph(states: int, hidden_states: int) -> LatentGraph:
    """A hidden chain h1, …, h8 over the pen points; each has an observable x1, …, x8, and the middle one the digit.

    Args:
        states: of each observable, between which the encoder weighs.
        hidden_states: of each latent: the size of the messages along the chain.
    """
    steps = range(1, POINTS + 1)
    latent = [f"h{t}" for t in steps]
    variables: dict[str, Domain] = dict.fromkeys(latent, hidden_states)
    variables |= {f"x{t}": states for t in steps}
    variables[DIGIT] = CLASSES
    edges = [(f"h{t}", f"h{t + 1}") for t in steps[:-1]] + [(f"h{t}", f"x{t}") for t in steps] + [(MIDDLE, DIGIT)]
    return LatentGraph(edges, variables, latent)


class StrokeEncoder(nn.Module):
    """Weighs the states of each pen point from its position and its neighbours' positions relative to it.

    Each point has weights of its own. A hidden point has nothing to say: all its states weigh 1, which is what "not
    observed" means to a graphical model. A hidden neighbour is marked as such.

    Args:
        states: per point.
        width: of the hidden layer.
        window: neighbours on each side that a point sees.
    """

    def __init__(self, states: int, width: int, window: int) -> None:
        super().__init__()
        if states < 2 or width < 1 or not 0 <= window < POINTS:
            raise StructureError(
                f"Encoder: expected at least 2 states, width 1 and a window from 0 to {POINTS - 1}, got states={states}, "
                f"width={width}, window={window}."
            )
        self.states = states
        self.window = window
        inputs = 2 + 6 * window
        self.inner = nn.Parameter(torch.randn(POINTS, inputs, width) / math.sqrt(inputs))
        self.inner_bias = nn.Parameter(torch.zeros(POINTS, 1, width))
        self.outer = nn.Parameter(torch.randn(POINTS, width, states) * math.sqrt(2 / width))
        self.outer_bias = nn.Parameter(torch.zeros(POINTS, 1, states))

    def forward(self, strokes: Tensor) -> Tensor:
        """(batch, 2 · points) coordinates, NaN where hidden -> (batch, points, states) weights."""
        if strokes.ndim != 2 or strokes.shape[1] != 2 * POINTS:
            raise ShapeError(f"Strokes: expected shape (batch, {2 * POINTS}), got {tuple(strokes.shape)}.")
        points = strokes.reshape(-1, POINTS, 2)
        seen = ~points.isnan().any(dim=-1, keepdim=True)  # (batch, points, 1)
        inputs = self.describe(points, seen).transpose(0, 1)  # (points, batch, inputs)
        hidden = nn.functional.gelu(inputs @ self.inner + self.inner_bias)
        weights = torch.softmax(hidden @ self.outer + self.outer_bias, dim=-1).transpose(0, 1)
        return torch.where(seen, weights, 1.0)

    def describe(self, points: Tensor, seen: Tensor) -> Tensor:
        """(batch, points, 2 + 6 · window) inputs of about unit size: the point, then each neighbour's offset and mark."""
        middle, spread = LARGEST / 2, 0.3 * LARGEST
        points = torch.where(seen, (points - middle) / spread, 0.0)
        mark = seen.to(points.dtype)
        parts = [points]
        pad = (0, 0, self.window, self.window)
        wide, wide_mark = nn.functional.pad(points, pad), nn.functional.pad(mark, pad)
        for start in range(2 * self.window + 1):
            if start == self.window:
                continue
            both = wide_mark[:, start : start + POINTS] * mark
            parts += [1.5 * (wide[:, start : start + POINTS] - points) * both, both - 0.5]
        return torch.cat(parts, dim=-1)


class ChainHead(nn.Module):
    """The digit's posterior from a :class:`~torchpbp.PBPLayer`, as logits.

    Estimates of a PBP model are signed. The logarithm of a clipped estimate has no gradient where it is negative, so the
    logits are asinh(estimate / softness) of estimates brought to length 1: close to the logarithm for large estimates,
    linear around 0. The length must take part in the gradient. Messages are rescaled on their way without it, which is
    right only if the answer does not depend on their scale.

    Args:
        model: over :func:`stroke_graph`, with operators; its parameters become the head's.
        softness: below this share of the vector's length estimates count as near 0.
    """

    def __init__(self, model: PBP, softness: float) -> None:
        super().__init__()
        if not softness > 0:
            raise StructureError(f"softness: expected a positive number, got {softness}.")
        self.layer = PBPLayer(model)
        self.softness = softness
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, weights: Tensor) -> Tensor:
        """(batch, points, states) weights -> (batch, classes) logits."""
        estimate = self.estimates(weights)
        length = estimate.square().sum(dim=1, keepdim=True).clamp(min=1e-30).sqrt()
        return self.scale * torch.asinh(estimate / (self.softness * length))

    def estimates(self, weights: Tensor) -> Tensor:
        """(batch, classes) estimates of P(digit, evidence), unclipped and up to a positive factor per row."""
        evidence = {f"x{t + 1}": weights[:, t] for t in range(POINTS)}
        return self.layer.estimates(evidence, [DIGIT])[DIGIT]


class PerceptronHead(nn.Module):
    """The twin: two hidden layers on the same weights, as wide as ``parameters`` allow.

    Args:
        states: per point.
        parameters: not to be exceeded.
    """

    def __init__(self, states: int, parameters: int) -> None:
        super().__init__()
        inputs = POINTS * states
        # width² + (inputs + 2 + classes) · width + classes = parameters
        linear = inputs + 2 + CLASSES
        width = int((math.sqrt(linear**2 + 4 * max(0, parameters - CLASSES)) - linear) / 2)
        if width < 1:
            raise StructureError(f"Twin: {parameters} parameters are too few for {inputs} inputs and one hidden unit.")
        self.states = states
        self.layers = nn.Sequential(
            nn.Linear(inputs, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, CLASSES)
        )

    def forward(self, weights: Tensor) -> Tensor:
        """(batch, points, states) weights -> (batch, classes) logits."""
        # Seen points' weights sum to 1, hidden ones' to the number of states: bring both to a mean of 1.
        level = weights.sum(dim=-1, keepdim=True)
        logits: Tensor = self.layers((weights * (self.states / level)).flatten(1))
        return logits


class StrokeNetwork(nn.Module):
    """Encoder and head.

    Args:
        encoder: of strokes.
        head: takes its weights.
    """

    def __init__(self, encoder: StrokeEncoder, head: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head

    def forward(self, strokes: Tensor) -> Tensor:
        """(batch, 16) coordinates, NaN where hidden -> (batch, classes) logits."""
        logits: Tensor = self.head(self.encoder(strokes))
        return logits


class NetworkAverage(nn.Module):
    """The mean of several networks' probabilities. Each is trained by a loss of its own.

    Args:
        members: one or more networks.
    """

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        if not members:
            raise StructureError("Average of networks: expected one or more members, got none.")
        self.members = nn.ModuleList(members)

    def forward(self, strokes: Tensor) -> Tensor:
        """(batch, 16) coordinates, NaN where hidden -> (batch, classes) log-probabilities."""
        logs = torch.stack([torch.log_softmax(member(strokes), dim=1) for member in self.members])
        return torch.logsumexp(logs, dim=0) - math.log(len(logs))
