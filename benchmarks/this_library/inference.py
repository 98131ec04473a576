"""Posteriors by exact inference and by fitted models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from benchmarks.implementation import Answer, Array, Implementation, Tables, evidence_rows
from benchmarks.this_library.conversion import network_of, tensors
from torchpbp import PBP


@dataclass
class ExactQueries(Implementation):
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
class PBPQueries(Implementation):
    """The same for a model fitted to rows sampled from a network."""

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
    """Posteriors as arrays, NaN where a row observes the variable: other libraries return nothing there."""
    answer = {v: p.numpy().copy() for v, p in result.items()}
    for v in answer.keys() & evidence.keys():
        answer[v][evidence[v] >= 0] = np.nan
    return answer
