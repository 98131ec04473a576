"""The oracle: every world of a small model, written out in one numpy table, with no code of the library's engines."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from torchpbp import DiscreteNetwork, LatentGraph

Weights = Mapping[str, np.ndarray]
"""Name -> (batch, states) evidence weights."""


class Oracle:
    """The joint distribution of all variables as one table.

    Args:
        states: number of states of each variable; its order is the order of the table's dimensions.
        factors: (names, table) pairs whose product is proportional to the joint distribution.
    """

    def __init__(self, states: Mapping[str, int], factors: Iterable[tuple[Sequence[str], np.ndarray]]) -> None:
        self.states = dict(states)
        self.names = tuple(self.states)
        table = np.ones(tuple(self.states.values()))
        for scope, values in factors:
            table = table * self._spread(scope, np.asarray(values, dtype=float))
        self.total = table.sum()
        self.table = table / self.total

    @classmethod
    def of(cls, network: DiscreteNetwork) -> Oracle:
        """The oracle of a network, from its CPTs and the graph's parents, or from its factors."""
        graph = network.graph
        states = {v: graph.num_states(v) for v in graph.names}
        if graph.directed:
            return cls(states, [((*graph.parents(v), v), t.numpy()) for v, t in network.cpts.items()])
        return cls(states, [(scope, t.numpy()) for scope, t in network.factors])

    def _spread(self, scope: Sequence[str], values: np.ndarray) -> np.ndarray:
        order = sorted(range(len(scope)), key=lambda i: self.names.index(scope[i]))
        shape = [self.states[v] if v in scope else 1 for v in self.names]
        return values.transpose(order).reshape(shape)

    def joint(self, variables: Sequence[str]) -> np.ndarray:
        """P(variables), dimensions in the order asked for."""
        return self._marginal(self.table, variables)

    def _marginal(self, table: np.ndarray, variables: Sequence[str]) -> np.ndarray:
        summed = tuple(i for i, v in enumerate(self.names) if v not in variables)
        kept = [v for v in self.names if v in variables]
        return table.sum(axis=summed).transpose([kept.index(v) for v in variables])

    def _row(self, weights: Weights, row: int) -> np.ndarray:
        table = self.table
        for v, w in weights.items():
            table = table * self._spread((v,), np.asarray(w[row], dtype=float))
        return table

    def log_evidence(self, weights: Weights, batch: int = 1) -> np.ndarray:
        """(batch,) log P(evidence)."""
        with np.errstate(divide="ignore"):
            return np.log([self._row(weights, r).sum() for r in range(batch)])

    def posterior(self, query: str | Sequence[str], weights: Weights, batch: int = 1) -> np.ndarray:
        """(batch, states…) P(query | evidence); NaN where the evidence is impossible."""
        names = (query,) if isinstance(query, str) else tuple(query)
        rows = []
        with np.errstate(invalid="ignore"):
            for r in range(batch):
                table = self._marginal(self._row(weights, r), names)
                rows.append(table / table.sum())
        return np.stack(rows)


def world_probability(graph: LatentGraph, cpts: Mapping[str, np.ndarray], world: Mapping[str, int]) -> float:
    """The probability of one complete assignment, as a plain product of CPT entries."""
    product = 1.0
    for v in graph.names:
        product *= float(cpts[v][tuple(world[u] for u in (*graph.parents(v), v))])
    return product


def worlds(states: Mapping[str, int]) -> Iterable[dict[str, int]]:
    """All complete assignments."""
    for values in itertools.product(*[range(s) for s in states.values()]):
        yield dict(zip(states, values, strict=True))


def random_cpts(graph: LatentGraph, rng: np.random.Generator, zeros: float = 0.0) -> dict[str, np.ndarray]:
    """Random CPTs, with about the given part of the entries set to zero (never a whole row)."""
    cpts = {}
    for v in graph.names:
        shape = [graph.num_states(u) for u in (*graph.parents(v), v)]
        table = rng.gamma(1.0, size=shape) + 1e-3
        if zeros:
            drop = rng.random(shape) < zeros
            drop[..., 0] &= ~drop.all(axis=-1)
            table = np.where(drop, 0.0, table)
        cpts[v] = table / table.sum(axis=-1, keepdims=True)
    return cpts


def random_evidence(
    states: Mapping[str, int], names: Sequence[str], rng: np.random.Generator, batch: int, soft: float = 0.25
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Evidence in the library's form, and the same as weights: each variable hard (in some rows), soft or absent."""
    given: dict[str, np.ndarray] = {}
    weights: dict[str, np.ndarray] = {}
    for v in names:
        kind = rng.random()
        if kind < soft:
            given[v] = weights[v] = rng.random((batch, states[v])) + 0.01
        elif kind < 0.75:
            values = rng.integers(0, states[v], batch)
            values[rng.random(batch) < 0.4] = -1
            given[v] = values
            weights[v] = one_hot(values, states[v])
    return given, weights


def one_hot(values: np.ndarray, states: int) -> np.ndarray:
    """(batch, states) rows with a single 1; rows of ones for -1."""
    return np.stack([np.ones(states) if x < 0 else np.eye(states)[x] for x in values])
