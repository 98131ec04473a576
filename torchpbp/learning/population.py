"""Learning from exact probabilities: the limit of infinitely many rows."""

from __future__ import annotations

import math

import torch

from torchpbp.errors import StructureError
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.features.maps import OneHot
from torchpbp.learning.stage1 import Penalties, Regressor, RowRegressor
from torchpbp.learning.two_stage import Solution, learn, stacked
from torchpbp.moments.class_rows import ClassRows, class_tables
from torchpbp.moments.joint_tables import JointTables
from torchpbp.moments.rows import TrainingRows
from torchpbp.moments.table_moments import TableMoments
from torchpbp.planning.plan import Plan

MOST_WORLDS = 1 << 20


def learn_population(plan: Plan, network: DiscreteNetwork, regressor: Regressor) -> Solution:
    """Operators from exact moments, without ridge penalties.

    Args:
        plan: core groups, instruments and ranks.
        network: true distribution.
        regressor: stage-1 method; the rows of a :class:`RowRegressor` are all joint states of the observables, weighted.
    """
    states = {v: network.states[v] for v in network.graph.observed}
    rows = (
        population_rows(network, states, f"a model with {regressor!r}") if isinstance(regressor, RowRegressor) else None
    )
    tables = JointTables(regressor.required_tables(plan), states, device=network.device)
    tables.fill(network.joint)
    return learn(plan, TableMoments(tables), regressor, Penalties(0.0, 0.0), rows)


def learn_class_population(
    plan: Plan, network: DiscreteNetwork, regressor: Regressor, name: str
) -> tuple[Solution, ClassRows]:
    """Operators of each class of an observed variable from exact moments, and the shares of the classes.

    Args:
        plan: plan of the other variables.
        network: true distribution.
        regressor: stage-1 method.
        name: the class variable.
    """
    states = {v: network.states[v] for v in network.graph.observed}
    tables = JointTables([(*group, name) for group in regressor.required_tables(plan)], states, device=network.device)
    tables.fill(network.joint)
    shares, by_class = class_tables(tables, name, 0.0)
    rows: list[TrainingRows | None] = [None] * len(shares)
    if isinstance(regressor, RowRegressor):
        worlds = population_rows(network, states, f"a model with {regressor!r}")
        rows = [worlds.given(name, label if share else None) for label, share in enumerate(shares.counts.tolist())]
    solutions = [
        learn(plan, TableMoments(class_table), regressor, Penalties(0.0, 0.0), part)
        for class_table, part in zip(by_class, rows, strict=True)
    ]
    return stacked(solutions), shares


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
