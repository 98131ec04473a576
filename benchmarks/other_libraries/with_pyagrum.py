"""pyAgrum: exact inference by Shafer-Shenoy and by lazy propagation, and EM."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from benchmarks.work import Answer, Array, Tables, Work, evidence_rows, first_step, needs, stacked

THREADS = int(os.environ.get("OMP_NUM_THREADS", "1"))
"""pyAgrum has threads of its own."""


@needs("pyagrum")
def pyagrum_queries(
    network: Tables, evidence: dict[str, Array], query: str | None = None, engine: str = "ShaferShenoyInference"
) -> Work:
    """Posteriors of all variables a row does not observe, or of one, row by row, by the class ``engine`` of pyAgrum."""
    import pyagrum

    inference = getattr(pyagrum, engine)(pyagrum_network(network))
    inference.setNumberOfThreads(THREADS)
    if query:
        inference.setTargets({query})
    states = {v: k for v, k in network.states.items() if query in (None, v)}
    rows = [(row, [v for v in states if v not in row]) for row in evidence_rows(evidence)]

    def run() -> list[dict[str, Array]]:
        result = []
        for row, asked in rows:
            inference.setEvidence(row)
            inference.makeInference()
            result.append({v: inference.posterior(v).toarray() for v in asked})
        return result

    return Work(run, lambda result: stacked(result, states))


@needs("pyagrum")
def pyagrum_em(start: Tables, latent: tuple[str, ...], data: dict[str, Array], iterations: int) -> Work:
    """A number of EM iterations from given tables, without prior and noise.

    pyAgrum returns the tables of the best iteration by its own criterion, which is not always the last; results are therefore
    compared after a single iteration.
    """
    import pandas as pd
    import pyagrum

    first = pyagrum_network(start)
    columns = {v: x.astype(str) for v, x in data.items()}
    rows = len(next(iter(data.values())))
    frame = pd.DataFrame(columns | {v: np.full(rows, "?") for v in latent})

    def run(steps: int = iterations) -> Any:
        learner = pyagrum.BNLearner(frame, first, ["?"])
        learner.setNumberOfThreads(THREADS)
        learner.useNoPrior()
        learner.useEM(1e-300, 0.0)
        learner.EMsetMaxIter(steps)
        return learner.learnParameters(first, False)

    def answer(_: Any) -> Answer:
        tables, once = {}, run(1)
        for v in start.states:
            cpt = once.cpt(v)
            axes = list(reversed(cpt.names))  # the dimensions of toarray()
            tables[v] = np.transpose(cpt.toarray(), [axes.index(u) for u in (*start.parents[v], v)])
        return first_step(tables)

    return Work(run, answer)


def pyagrum_network(network: Tables) -> Any:
    """The network as pyAgrum represents it, with states 0, 1, …"""
    import pyagrum

    model = pyagrum.BayesNet()
    for v, k in network.states.items():
        model.add(pyagrum.RangeVariable(v, v, 0, k - 1))
    for parent, child in network.edges:
        model.addArc(parent, child)
    for v, table in network.cpts.items():
        cpt = model.cpt(v)
        scope = (*network.parents[v], v)
        # the first of cpt.names varies fastest
        cpt.fillWith(np.transpose(table, [scope.index(u) for u in cpt.names]).ravel(order="F").tolist())
    return model
