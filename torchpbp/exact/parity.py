"""Networks with uninformative single observables, on which linear regression fails."""

from __future__ import annotations

import torch

from torchpbp.errors import DataError
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.graph.latent_graph import LatentGraph


def noisy_parity(graph: LatentGraph, seed: int, concentration: float = 1.0, noise: float = 0.1) -> DiscreteNetwork:
    """A network on :func:`torchpbp.templates.parity` with fair G1, G2 and H = G1 xor G2, flipped at random.

    Args:
        graph: graph of the template.
        seed: seed of the observables' tables.
        concentration: concentration of the Dirichlet distribution of these tables.
        noise: probability of a flip.
    """
    if not 0 <= noise <= 1:
        raise DataError(f"noise: expected a probability, got {noise}.")
    cpts = dict(DiscreteNetwork.random(graph, seed, concentration).cpts)
    fair = torch.tensor([0.5, 0.5], dtype=torch.float64)
    same = torch.tensor([1 - noise, noise], dtype=torch.float64)
    unlike = same.flip(0)
    xor = torch.stack([torch.stack([same, unlike]), torch.stack([unlike, same])])
    return DiscreteNetwork(graph, cpts | {"G1": fair, "G2": fair, "H": xor})
