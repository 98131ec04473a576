"""pgmpy: variable elimination and EM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from benchmarks.implementation import Answer, Array, Implementation, Tables, evidence_rows, stacked


@dataclass
class PgmpyQueries(Implementation):
    """Posteriors of all variables a row does not observe, or of one, row by row, by variable elimination.

    Variables are queried one by one: a query of all with ``joint=False`` builds their joint table first, which runs out of
    memory on networks such as ALARM.
    """

    library: ClassVar[str] = "pgmpy"
    network: Tables
    evidence: dict[str, Array]
    query: str | None = None

    def prepare(self) -> None:
        from pgmpy.inference import VariableElimination

        self._engine = VariableElimination(pgmpy_network(self.network))
        self._rows = list(evidence_rows(self.evidence))
        names = [self.query] if self.query else list(self.network.states)
        self._queries = [[v for v in names if v not in row] for row in self._rows]

    def run(self) -> Any:
        return [
            {v: self._engine.query([v], row, show_progress=False) for v in queries}
            for row, queries in zip(self._rows, self._queries, strict=True)
        ]

    def answer(self, result: Any) -> Answer:
        states = {v: k for v, k in self.network.states.items() if self.query in (None, v)}
        return stacked([{v: factor.values for v, factor in row.items()} for row in result], states)


@dataclass
class PgmpyEM(Implementation):
    """A number of EM iterations from given tables."""

    library: ClassVar[str] = "pgmpy"
    start: Tables
    latent: tuple[str, ...]
    data: dict[str, Array]
    iterations: int

    def prepare(self) -> None:
        import pandas as pd
        from pgmpy.models import DiscreteBayesianNetwork

        self._frame = pd.DataFrame(self.data)
        self._model = DiscreteBayesianNetwork(self.start.edges, latents=set(self.latent))
        self._model.add_nodes_from([v for v in self.start.states if v not in self._model])
        self._cpds = {cpd.variable: cpd for cpd in pgmpy_network(self.start, self.latent).get_cpds()}

    def run(self) -> Any:
        from pgmpy.parameter_estimator import DiscreteEM

        states = self.start.states
        learner = DiscreteEM(
            state_names={v: list(range(states[v])) for v in self.data},
            latent_card={v: states[v] for v in self.latent},
            max_iter=self.iterations,
            atol=0.0,
            init_cpds={v: cpd.copy() for v, cpd in self._cpds.items()},
            show_progress=False,
        )
        return learner.fit(self._model.copy(), self._frame)

    def answer(self, result: Any) -> Answer:
        tables = {}
        for cpd in result.parameters_:
            v, *parents = cpd.variables  # the table's dimensions; the parents' order is pgmpy's own
            order = [parents.index(p) + 1 for p in self.start.parents[v]]
            tables[v] = np.ascontiguousarray(np.asarray(cpd.values).transpose([*order, 0]))
        return tables


def pgmpy_network(network: Tables, latent: tuple[str, ...] = ()) -> Any:
    """The network as pgmpy holds it, with states 0, 1, …"""
    from pgmpy.factors.discrete import TabularCPD
    from pgmpy.models import DiscreteBayesianNetwork

    names = {v: list(range(k)) for v, k in network.states.items()}
    model = DiscreteBayesianNetwork(network.edges, latents=set(latent))
    model.add_nodes_from([v for v in network.states if v not in model])
    for v, table in network.cpts.items():
        parents = list(network.parents[v])
        values = table.reshape(-1, table.shape[-1]).T  # a row per state, a column per joint state of the parents
        counts = [network.states[p] for p in parents]
        kept = {u: names[u] for u in (v, *parents)}
        model.add_cpds(TabularCPD(v, network.states[v], values, parents, counts, state_names=kept))
    return model
