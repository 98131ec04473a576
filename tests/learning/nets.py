"""Small nets of leaves for tests of stage 1."""

from __future__ import annotations

import torch
from torch import Tensor

from torchpbp import PBP, Continuous, LatentGraph, PointEncoder, templates
from torchpbp.inference.leaf_features import LeafFeatures
from torchpbp.learning.message_nets import MessageNets

GRAPHS = {
    "tree": templates.latent_tree(depth=1, branching=2, leaves=2, observed_states=3),
    "chain": templates.hmm(4, states=2, observed_states=3),
    "loop": templates.diamond(observed_states=3, leaves=1),
}


def mixed_graph() -> LatentGraph:
    """Two hidden variables with a discrete leaf, a number and vectors."""
    variables = {"h": 2, "k": 2, "e": 3, "s": Continuous(), "a": Continuous(shape=(2,)), "b": Continuous(shape=(2,))}
    edges = [("h", "k"), ("h", "e"), ("h", "a"), ("k", "b"), ("k", "s")]
    return LatentGraph(edges, variables, latent=["h", "k"])


def mixed_model() -> PBP:
    torch.manual_seed(0)
    return PBP(mixed_graph(), features=PointEncoder((2,), 3, width=4))


def attached(model: PBP) -> MessageNets:
    """Nets of a model in double precision."""
    return model.attach_nets(hidden=[5], instruments=1.5).double()


def random_leaves(model: PBP, rows: int = 30, missing: float = 0.0, seed: int = 0) -> LeafFeatures:
    """Random features of a model's leaves."""
    generator = torch.Generator().manual_seed(seed)
    reader = model.operators.reader
    features: dict[str, Tensor] = {}
    for v, dim in reader.dims().items():
        values = torch.randn(rows, dim, generator=generator, dtype=torch.float64)
        features[v] = torch.cat([torch.ones(rows, 1, dtype=torch.float64), values[:, 1:]], dim=1)
    inputs = {v: features[v][:, -width:] for v, width in reader.widths().items()}
    seen = torch.rand(rows, len(features), generator=generator) >= missing
    return LeafFeatures(features, inputs, seen)
