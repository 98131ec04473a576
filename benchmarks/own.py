"""torchpbp's contestants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from benchmarks.contestant import Answer, Array, Contestant, Tables, evidence_rows, first_step
from torchpbp import EM, PBP, DiscreteNetwork, LatentGraph
from torchpbp.model.regressed import required_own_scopes
from torchpbp.stage2.joint_tables import JointTables


def tables_of(network: DiscreteNetwork) -> Tables:
    """A network as plain arrays."""
    parents = {v: tuple(network.graph.parents(v)) for v in network.graph.names}
    return Tables(dict(network.states), parents, {v: t.numpy() for v, t in network.cpts.items()})


def network_of(tables: Tables, latent: tuple[str, ...] = ()) -> DiscreteNetwork:
    """A network from plain arrays."""
    return DiscreteNetwork(LatentGraph(tables.edges, tables.states, list(latent)), tables.cpts)


def tensors(columns: dict[str, Array]) -> dict[str, torch.Tensor]:
    return {v: torch.from_numpy(np.ascontiguousarray(x)) for v, x in columns.items()}


@dataclass
class ExactQueries(Contestant):
    """Exact posteriors: of all variables that some row does not observe, for all rows at once; or of one, row by row."""

    library: ClassVar[str] = "torchpbp"
    network: Tables
    evidence: dict[str, Array]
    query: str | None = None

    def prepare(self) -> None:
        self._network = network_of(self.network)
        self._evidence = tensors(self.evidence)
        self._rows = list(evidence_rows(self.evidence))

    def run(self) -> Any:
        if self.query:
            return {self.query: torch.cat([self._network.posterior(self.query, row) for row in self._rows])}
        return self._network.posteriors(self._evidence)

    def answer(self, result: Any) -> Answer:
        return posterior_arrays(result, self.evidence)


@dataclass
class PBPQueries(Contestant):
    """The same of a model fitted to rows drawn from a network."""

    library: ClassVar[str] = "torchpbp"
    network: Tables
    latent: tuple[str, ...]
    evidence: dict[str, Array]
    query: str | None = None
    rows: int = 20_000

    def prepare(self) -> None:
        network = network_of(self.network, self.latent)
        self._model = PBP(network.graph).fit(network.sample(self.rows, seed=1))
        self._evidence = tensors(self.evidence)
        self._rows = list(evidence_rows(self.evidence))

    def run(self) -> Any:
        with torch.no_grad():
            if self.query:
                return {self.query: torch.cat([self._model.posterior(self.query, row) for row in self._rows])}
            return self._model.posteriors(self._evidence)

    def answer(self, result: Any) -> Answer:
        return posterior_arrays(result, self.evidence)


def posterior_arrays(result: dict[str, torch.Tensor], evidence: dict[str, Array]) -> Answer:
    """Posteriors as arrays, NaN where a row observes the variable: other libraries do not answer there."""
    answer = {v: p.numpy().copy() for v, p in result.items()}
    for v in answer.keys() & evidence.keys():
        answer[v][evidence[v] >= 0] = np.nan
    return answer


@dataclass
class PBPFit(Contestant):
    """Construction and fit of a model; answers with posteriors at given evidence."""

    library: ClassVar[str] = "torchpbp"
    network: Tables
    latent: tuple[str, ...]
    data: dict[str, Array]
    questions: tuple[tuple[str, dict[str, Array]], ...] = ()

    def prepare(self) -> None:
        self._graph = LatentGraph(self.network.edges, self.network.states, list(self.latent))
        self._data = tensors(self.data)

    def run(self) -> Any:
        return PBP(self._graph).fit(self._data)

    def answer(self, result: Any) -> Answer:
        with torch.no_grad():
            return asked(result, self.questions)


@dataclass
class CountingAlone(Contestant):
    """A lower bound of learning from counts: one mixed-radix code and one ``bincount`` per table that learning needs."""

    library: ClassVar[str] = "torchpbp"
    network: Tables
    latent: tuple[str, ...]
    data: dict[str, Array]

    def prepare(self) -> None:
        graph = LatentGraph(self.network.edges, self.network.states, list(self.latent))
        model = PBP(graph)
        states = {v: graph.num_states(v) for v in graph.observed}
        self.scopes = JointTables(required_own_scopes(model.tree, model.specification), states).scopes
        self._states = states
        self._data = tensors(self.data)

    def run(self) -> Any:
        result = []
        for scope in self.scopes:
            code, cells = self._data[scope[0]], self._states[scope[0]]
            for v in scope[1:]:
                code = code * self._states[v] + self._data[v]
                cells *= self._states[v]
            result.append(torch.bincount(code, minlength=cells))
        return result

    def answer(self, result: Any) -> Answer:
        return {"tables": np.array([len(self.scopes)]), "rows": np.array([int(t.sum()) for t in result])}


@dataclass
class EMFit(Contestant):
    """EM from random starts, or from given tables; answers with its tables, and posteriors at given evidence.

    Args:
        start: tables of the first start; random ones by default.
        settings: of :class:`torchpbp.EM`.
    """

    library: ClassVar[str] = "torchpbp"
    network: Tables
    latent: tuple[str, ...]
    data: dict[str, Array]
    settings: dict[str, Any]
    start: Tables | None = None
    questions: tuple[tuple[str, dict[str, Array]], ...] = ()

    def prepare(self) -> None:
        self._graph = LatentGraph(self.network.edges, self.network.states, list(self.latent))
        self._data = tensors(self.data)
        self._start = None if self.start is None else network_of(self.start, self.latent)

    def run(self) -> Any:
        return EM(self._graph, start=self._start, progress=False, **self.settings).fit(self._data)

    def answer(self, result: Any) -> Answer:
        iterations = [len(run.objective) for run in result.runs]
        found: Answer = {v: t.numpy() for v, t in result.network.cpts.items()}
        converged = np.array([run.converged for run in result.runs])
        if self._start is not None:
            once = EM(self._graph, start=self._start, progress=False, **{**self.settings, "iterations": 1}).fit(
                self._data
            )
            found |= {first_step(v): t.numpy() for v, t in once.network.cpts.items()}
        return found | {"iterations": np.array(iterations), "converged": converged} | asked(result, self.questions)


def asked(model: Any, questions: tuple[tuple[str, dict[str, Array]], ...]) -> Answer:
    """Posteriors as "question i" -> (values, states)."""
    return {
        f"question {i}": model.posterior(query, tensors(evidence)).numpy()
        for i, (query, evidence) in enumerate(questions)
    }
