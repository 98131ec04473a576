"""The joint states of a network as rows: the limit of infinitely many rows."""

from __future__ import annotations

import math

import torch

from torchpbp.errors import StructureError
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.features.maps import OneHot
from torchpbp.moments.rows import TrainingRows

MOST_WORLDS = 1 << 20


def population_rows(network: DiscreteNetwork, states: dict[str, int], method: str) -> TrainingRows:
    """Joint states of the observables with positive probability, weighted by it.

    Args:
        network: true distribution.
        states: number of states of each observable.
        method: description of the learner, for the error.
    """
    worlds = math.prod(states.values())
    if worlds > MOST_WORLDS:
        raise StructureError(
            f"Population of {method}: {worlds:,} joint states to enumerate, at most {MOST_WORLDS:,} are "
            "possible. Use regressor=Ridge() or fit to a sample."
        )
    axes = [torch.arange(s, device=network.device) for s in states.values()]
    grid = torch.cartesian_prod(*axes).reshape(worlds, -1)
    weights = network.joint(tuple(states)).reshape(-1)
    maps = {v: OneHot(s) for v, s in states.items()}
    return TrainingRows(list(states), maps, states=grid, weights=weights)[weights > 0]
