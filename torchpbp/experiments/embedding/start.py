"""Where the training of an embedded model starts: from a two-stage fit, or from messages that remember."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor, nn

from torchpbp.datasets.digits import LARGEST, POINTS
from torchpbp.distributed import own_share
from torchpbp.errors import StructureError
from torchpbp.experiments.embedding.network import (
    DIGIT,
    MIDDLE,
    ChainHead,
    PerceptronHead,
    StrokeEncoder,
    StrokeNetwork,
    stroke_graph,
)
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.models.pbp import PBP

SHARPNESS = 3.0
"""How fast a state's weight falls with the squared distance from its centre, in the encoder's units."""

LINEAR_UNITS = 4

REST = 0.5
"""What is left of the encoder's random weights where it starts as a quantiser."""


@torch.no_grad()
def start_remembering(model: PBP, seed: int, noise: float = 0.5) -> None:
    """Operators that hand on each message nearly unchanged where a point is hidden, and mix it with what is seen.

    The first component of a leaf's message is constant, and the others add up to 0 over the states, so that "not
    observed" gives (1, 0, …, 0). That component multiplies the identity; the others multiply noise.

    Args:
        model: over :func:`~torchpbp.experiments.embedding.network.stroke_graph`.
        seed: of the noise.
        noise: how much of a message what is seen replaces.
    """
    generator = torch.Generator().manual_seed(seed)
    tree = model.tree
    for node, operator in zip(range(1, len(tree)), model.separator_operators, strict=True):
        weight = operator.weight
        drawn = torch.randn(weight.shape, generator=generator, dtype=torch.float64).to(weight)
        if tree.leaf_observables[node] == (DIGIT,):
            weight.copy_(torch.eye(*weight.shape).to(weight) if weight.shape[0] == weight.shape[1] else drawn)
        elif tree.leaf_observables[node]:
            states = weight.shape[1]
            weight.copy_((drawn - drawn.mean(dim=1, keepdim=True)) / states)
            weight[0] = 1 / states
        else:
            weight.copy_(noise * drawn / math.sqrt(weight[0].numel()))
            if weight.ndim == 3:
                # The child that is a leaf; at the chain's end both are, and either will do.
                side, leaf = next(
                    (k, tree.leaf_observables[c]) for k, c in enumerate(tree.children[node]) if tree.leaf_observables[c]
                )
                passing = weight.movedim(1 + side, 0)  # (leaf's rank, rank, other child's rank)
                if leaf == (DIGIT,):
                    # Never observed: whatever the digit, the other child's message goes on.
                    passing += torch.eye(*passing.shape[1:]).to(weight) / len(passing)
                else:
                    passing[0] += torch.eye(*passing.shape[1:]).to(weight)
            else:
                weight.add_(torch.eye(*weight.shape).to(weight))
    root = model.root.weight
    root.copy_(torch.randn(root.shape, generator=generator, dtype=torch.float64).to(root) / math.sqrt(root.shape[0]))
    model.fitted = True


@torch.no_grad()
def start_two_stage(model: PBP, encoder: StrokeEncoder, strokes: Tensor, digits: Tensor, seed: int) -> None:
    """Fit the model to quantised points and digits, and let the encoder begin as the quantiser, made soft.

    Args:
        model: over :func:`~torchpbp.experiments.embedding.network.stroke_graph`; fitted in place.
        encoder: its weights are overwritten in part.
        strokes: (n, 16) complete strokes to learn from.
        digits: (n,) their classes.
        seed: of k-means.
    """
    width = encoder.inner.shape[2]
    if width < LINEAR_UNITS:
        raise StructureError(f"width: expected at least {LINEAR_UNITS} to hold the quantiser, got {width}.")
    points = (strokes.reshape(-1, POINTS, 2).double() - LARGEST / 2) / (0.3 * LARGEST)  # the encoder's units
    columns: dict[str, Tensor] = {DIGIT: digits}
    # gelu(a) - gelu(-a) = a, so that two units carry a coordinate through the hidden layer unchanged.
    carry = torch.zeros(encoder.inner.shape[1], LINEAR_UNITS)
    carry[0, :2] = carry[1, 2:] = torch.tensor([1.0, -1.0])
    encoder.inner[:, :, :LINEAR_UNITS] = carry.to(encoder.inner)
    encoder.outer.mul_(REST)
    for t in range(POINTS):
        clusters = KMeans(encoder.states, n_init=1, random_state=seed).fit(points[:, t].numpy())
        centres = torch.from_numpy(clusters.cluster_centers_)  # (states, 2)
        columns[f"x{t + 1}"] = torch.from_numpy(clusters.labels_.astype(np.int64))
        slopes = 2 * SHARPNESS * centres.T  # -s |p - c|² = 2 s c·p - s |c|² + a part that all states share
        encoder.outer[t, :LINEAR_UNITS] = torch.stack([slopes[0], -slopes[0], slopes[1], -slopes[1]]).to(encoder.outer)
        encoder.outer_bias[t, 0] = (-SHARPNESS * centres.square().sum(dim=1)).to(encoder.outer)
    share = own_share(len(strokes))  # several processes fit together, each with its own rows
    model.fit({name: column[share] for name, column in columns.items()})


def build_network(
    learner: Callable[..., PBP],
    strokes: Tensor,
    digits: Tensor,
    states: int,
    hidden_states: int,
    width: int,
    window: int,
    softness: float,
    two_stage: bool,
    seed: int,
) -> StrokeNetwork:
    """Encoder and PBP head where training starts; the arguments are those of :func:`run_digits_embedding`."""
    torch.manual_seed(seed)
    encoder = StrokeEncoder(states, width, window)
    graph = stroke_graph(states, hidden_states)
    model = _built(learner, graph)
    if two_stage:
        start_two_stage(model, encoder, strokes, digits, seed)
    else:
        start_remembering(model, seed)
    # Learning by regression needs float64; descent does not, and is faster in float32.
    return StrokeNetwork(encoder, ChainHead(model.float(), softness))


def perceptron_twin(network: StrokeNetwork, seed: int) -> StrokeNetwork:
    """The same encoder with a perceptron of as many parameters in the PBP head's place."""
    torch.manual_seed(seed)
    head = PerceptronHead(network.encoder.states, count_parameters(network.head))
    return StrokeNetwork(network.encoder, head)


def _built(learner: Callable[..., PBP], graph: LatentGraph) -> PBP:
    if isinstance(learner, nn.Module) or not callable(learner):
        raise StructureError(
            "Embedded pen digits: expected a learner that takes its graph from the model (learner=pbp), got one with a "
            f"graph of its own, {type(learner).__name__}."
        )
    model = learner(graph, root=[MIDDLE])
    if not isinstance(model, PBP):
        raise StructureError(f"Embedded pen digits: expected a learner of PBP models, got {type(model).__name__}.")
    return model


def count_parameters(module: nn.Module) -> int:
    """Numbers that training changes."""
    return sum(p.numel() for p in module.parameters())
