"""Learning by PBP and by EM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from benchmarks.implementation import Answer, Array, Implementation, Tables, first_step
from benchmarks.this_library.conversion import network_of, tensors
from torchpbp import EM, PBP, KernelRidge, LatentGraph
from torchpbp.moments.joint_tables import JointTables


@dataclass
class PBPFit(Implementation):
    """Construction and fit of a model; the result are posteriors given some evidence."""

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
class CountingAlone(Implementation):
    """A lower bound for learning from counts: one mixed-radix code and one ``bincount`` per table that learning needs."""

    library: ClassVar[str] = "torchpbp"
    network: Tables
    latent: tuple[str, ...]
    data: dict[str, Array]

    def prepare(self) -> None:
        graph = LatentGraph(self.network.edges, self.network.states, list(self.latent))
        model = PBP(graph)
        self._states = {v: graph.num_states(v) for v in graph.observed}
        self.scopes = JointTables(KernelRidge().required_tables(model.plan), self._states).scopes
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
class EMFit(Implementation):
    """EM from random starts or from given tables; the result are its tables, and posteriors given some evidence.

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
        result_tables: Answer = {v: t.numpy() for v, t in result.network.cpts.items()}
        converged = np.array([run.converged for run in result.runs])
        if self._start is not None:
            once = EM(self._graph, start=self._start, progress=False, **{**self.settings, "iterations": 1}).fit(
                self._data
            )
            result_tables |= {first_step(v): t.numpy() for v, t in once.network.cpts.items()}
        return (
            result_tables | {"iterations": np.array(iterations), "converged": converged} | asked(result, self.questions)
        )


def asked(model: Any, questions: tuple[tuple[str, dict[str, Array]], ...]) -> Answer:
    """Posteriors as "question i" -> (values, states)."""
    return {
        f"question {i}": model.posterior(query, tensors(evidence)).numpy()
        for i, (query, evidence) in enumerate(questions)
    }


@dataclass
class HmmEM(EMFit):
    """torchpbp's EM. After one iteration from tables that are equal at all sites, the table of the first state is comparable."""

    def answer(self, result: Any) -> Answer:
        answer = super().answer(result)
        return answer | {first_step("start"): answer[first_step("h1")]}


@dataclass
class HmmPBP(PBPFit):
    """PBP; the result is the log-likelihood of held-out rows."""

    held_out: dict[str, Array] | None = None

    def answer(self, result: Any) -> Answer:
        with torch.no_grad():
            return {"log_likelihood": result.log_evidence(tensors(self.held_out or {})).numpy()}
