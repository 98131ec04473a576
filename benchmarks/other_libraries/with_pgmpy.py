"""pgmpy: variable elimination and EM."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.work import Answer, Array, Tables, Work, evidence_rows, needs, stacked


@needs("pgmpy")
def pgmpy_queries(network: Tables, evidence: dict[str, Array], query: str | None = None) -> Work:
    """Posteriors of all variables a row does not observe, or of one, row by row, by variable elimination.

    Variables are queried one by one: a query of all with ``joint=False`` builds their joint table first, which runs out of
    memory on networks such as ALARM.
    """
    from pgmpy.inference import VariableElimination

    engine = VariableElimination(pgmpy_network(network))
    states = {v: k for v, k in network.states.items() if query in (None, v)}
    rows = [(row, [v for v in states if v not in row]) for row in evidence_rows(evidence)]

    def run() -> list[dict[str, Array]]:
        return [{v: engine.query([v], row, show_progress=False).values for v in asked} for row, asked in rows]

    return Work(run, lambda result: stacked(result, states))


@needs("pgmpy")
def pgmpy_em(start: Tables, latent: tuple[str, ...], data: dict[str, Array], iterations: int) -> Work:
    """A number of EM iterations from given tables."""
    import pandas as pd
    from pgmpy.parameter_estimator import DiscreteEM

    frame, model = pd.DataFrame(data), pgmpy_network(start, latent)
    first = {cpd.variable: cpd for cpd in model.get_cpds()}
    bare = model.copy()
    bare.remove_cpds(*bare.get_cpds())

    def run() -> Any:
        learner = DiscreteEM(
            state_names={v: list(range(start.states[v])) for v in data},
            latent_card={v: start.states[v] for v in latent},
            max_iter=iterations,
            atol=0.0,
            init_cpds={v: cpd.copy() for v, cpd in first.items()},
            show_progress=False,
        )
        return learner.fit(bare.copy(), frame)

    def answer(learner: Any) -> Answer:
        tables = {}
        for cpd in learner.parameters_:
            v, *parents = cpd.variables  # the dimensions of the table, with the parents in pgmpy's order
            order = [parents.index(p) + 1 for p in start.parents[v]]
            tables[v] = np.ascontiguousarray(np.asarray(cpd.values).transpose([*order, 0]))
        return tables

    return Work(run, answer)


def pgmpy_network(network: Tables, latent: tuple[str, ...] = ()) -> Any:
    """The network as pgmpy represents it, with states 0, 1, …"""
    from pgmpy.factors.discrete import TabularCPD
    from pgmpy.models import DiscreteBayesianNetwork

    names = {v: list(range(k)) for v, k in network.states.items()}
    model = DiscreteBayesianNetwork(network.edges, latents=set(latent))
    model.add_nodes_from([v for v in network.states if v not in model])
    for v, table in network.cpts.items():
        parents = list(network.parents[v])
        values = table.reshape(-1, table.shape[-1]).T  # a row per state, a column per joint state of the parents
        counts = [network.states[p] for p in parents]
        family = {u: names[u] for u in (v, *parents)}
        model.add_cpds(TabularCPD(v, network.states[v], values, parents, counts, state_names=family))
    return model
