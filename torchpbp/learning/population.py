"""Learning from exact probabilities: the limit of infinitely many rows."""

from __future__ import annotations

import math

import torch

from torchpbp.errors import StructureError
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.features.maps import OneHot
from torchpbp.graph.junction_tree import JunctionTree
from torchpbp.learning.linear import learn, required_scopes
from torchpbp.learning.messages import Messages
from torchpbp.learning.own_messages import learn_by_messages
from torchpbp.learning.regressed import learn_regressed, required_own_scopes
from torchpbp.learning.regressor import Regressor
from torchpbp.learning.two_stage import Learned
from torchpbp.moments.joint_tables import JointTables
from torchpbp.moments.rows import Rows
from torchpbp.moments.table_moments import TableMoments
from torchpbp.planning.plan import Specification

MOST_WORLDS = 1 << 20


def learn_population(
    tree: JunctionTree, specification: Specification, network: DiscreteNetwork, regressor: Regressor, compressed: bool
) -> Learned:
    """Operators from exact moments, without ridge penalties.

    Args:
        tree: junction tree.
        specification: core groups, instruments and ranks.
        network: the truth.
        regressor: stage-1 method; one that needs rows gets each joint state of the observables, weighted.
        compressed: whether messages are compressed.
    """
    states = {v: network.states[v] for v in network.graph.observed}
    if not regressor.needs_rows:
        tables = JointTables(required_scopes(tree, specification), states)
        tables.fill(network.joint)
        return learn(tree, specification, TableMoments(tables), 0.0, 0.0, compressed)
    worlds = math.prod(states.values())
    if worlds > MOST_WORLDS:
        raise StructureError(
            f"Population of a model with {regressor!r}: {worlds:,} joint states to enumerate, at most {MOST_WORLDS:,} are "
            "possible. Use regressor=Ridge() or fit to a sample."
        )
    needed = required_scopes if regressor.starts_linear else required_own_scopes
    tables = JointTables(needed(tree, specification), states)
    tables.fill(network.joint)
    grid = torch.cartesian_prod(*[torch.arange(s) for s in states.values()]).reshape(worlds, -1)
    weights = network.joint(tuple(states)).reshape(-1)
    maps = {v: OneHot(s) for v, s in states.items()}
    rows = Rows(list(states), maps, states=grid, weights=weights)[weights > 0]
    if isinstance(regressor, Messages):
        return learn_by_messages(tree, specification, TableMoments(tables), rows, regressor, 0.0, 0.0)
    return learn_regressed(tree, specification, TableMoments(tables), rows, regressor, 0.0, 0.0)
