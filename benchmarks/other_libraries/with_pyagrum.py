"""pyAgrum: exact inference by Shafer-Shenoy and by lazy propagation, and EM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from benchmarks.implementation import (
    Answer,
    Array,
    Implementation,
    Tables,
    allowed_threads,
    evidence_rows,
    first_step,
    stacked,
)


@dataclass
class PyagrumQueries(Implementation):
    """Posteriors of all variables a row does not observe, or of one, row by row.

    Args:
        engine: name of pyAgrum's class.
    """

    library: ClassVar[str] = "pyagrum"
    network: Tables
    evidence: dict[str, Array]
    engine: str = "ShaferShenoyInference"
    query: str | None = None

    def prepare(self) -> None:
        import pyagrum

        self._engine = getattr(pyagrum, self.engine)(pyagrum_network(self.network))
        self._engine.setNumberOfThreads(allowed_threads())
        if self.query:
            self._engine.setTargets({self.query})
        self._rows = list(evidence_rows(self.evidence))
        names = [self.query] if self.query else list(self.network.states)
        self._queries = [[v for v in names if v not in row] for row in self._rows]

    def run(self) -> Any:
        result = []
        for row, queries in zip(self._rows, self._queries, strict=True):
            self._engine.setEvidence(row)
            self._engine.makeInference()
            result.append({v: self._engine.posterior(v).toarray() for v in queries})
        return result

    def answer(self, result: Any) -> Answer:
        return stacked(result, {v: k for v, k in self.network.states.items() if self.query in (None, v)})


@dataclass
class PyagrumEM(Implementation):
    """A number of EM iterations from given tables, without prior and noise.

    pyAgrum returns the tables of the best iteration by its own criterion, which is not always the last; results are therefore
    compared after a single iteration.
    """

    library: ClassVar[str] = "pyagrum"
    start: Tables
    latent: tuple[str, ...]
    data: dict[str, Array]
    iterations: int

    def prepare(self) -> None:
        import pandas as pd

        self._start = pyagrum_network(self.start)
        columns = {v: x.astype(str) for v, x in self.data.items()}
        rows = len(next(iter(self.data.values())))
        columns |= {v: np.full(rows, "?") for v in self.latent}
        self._frame = pd.DataFrame(columns)

    def run(self) -> Any:
        return self._fit(self.iterations)

    def _fit(self, iterations: int) -> Any:
        import pyagrum

        learner = pyagrum.BNLearner(self._frame, self._start, ["?"])
        learner.setNumberOfThreads(allowed_threads())
        learner.useNoPrior()
        learner.useEM(1e-300, 0.0)
        learner.EMsetMaxIter(iterations)
        return learner.learnParameters(self._start, False)

    def answer(self, result: Any) -> Answer:
        tables = {}
        once = self._fit(1)
        for v in self.start.states:
            cpt = once.cpt(v)
            # toarray() has the dimensions of cpt.names in reverse
            axes = list(reversed(cpt.names))
            tables[first_step(v)] = np.transpose(cpt.toarray(), [axes.index(u) for u in (*self.start.parents[v], v)])
        return tables


def pyagrum_network(network: Tables) -> Any:
    """The network as pyAgrum holds it, with states 0, 1, …"""
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
