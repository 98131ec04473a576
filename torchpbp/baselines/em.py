"""Expectation maximisation: the classical way to learn a network with hidden variables.

The E-step runs on the clique tree, for all rows at once, and needs no enumeration of hidden states: the derivative of a
row's log-likelihood by the logarithm of a table's entry is the expected number of times that the row uses the entry. One
upward pass and its derivative therefore give all expected counts.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from torchpbp.errors import CheckpointError, DataError, NotFittedError, StructureError
from torchpbp.exact.calibration import Scope, log_evidence, potential_tree
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.graph.clique_tree import CliqueTree, build_clique_tree
from torchpbp.graph.latent_graph import Continuous, LatentGraph
from torchpbp.inputs.columns import ColumnReader, DataLike
from torchpbp.inputs.evidence import Evidence, EvidenceLike, read_evidence
from torchpbp.model.answers import check_query
from torchpbp.model.checkpoint import read_checkpoint, write_checkpoint

ROWS_AT_ONCE = 1 << 15


@dataclass(frozen=True)
class Run:
    """One run from one start.

    Args:
        seed: of the start.
        objective: after each iteration, the log-likelihood per row plus the prior's term.
        converged: whether it met the tolerance before the last iteration allowed.
        exponent: of the step sizes of stepwise online EM.
    """

    seed: int
    objective: tuple[float, ...]
    converged: bool
    exponent: float | None = None


class EM:
    """Maximum likelihood by expectation maximisation, the best of several random starts.

    Args:
        graph: directed, discrete, with a number of states for each latent.
        restarts: random starts; the run with the highest objective is kept.
        iterations: of each run, at most.
        tolerance: a run has converged when the objective f changes by no more than this share of its size:
            |f(t) − f(t−1)| ≤ tolerance · |f(t) + f(t−1)| / 2 [JT 9].
        prior: pseudo-rows per entry of a table (a Dirichlet prior with concentration 1 + prior). 0 gives maximum
            likelihood, with tables that may hold zeros; evidence that never occurred may then be impossible.
        seed: of the starts.
        progress: show a progress bar.

    Attributes:
        network: the fitted network, with hidden variables that can be queried like others.
        runs: how each run went.

    Example:
        >>> from torchpbp import templates
        >>> truth = DiscreteNetwork.random(templates.naive_bayes(4), seed=1)
        >>> model = EM(truth.graph, restarts=2, progress=False).fit(truth.sample(500))
        >>> model.posterior("x1", {"x2": [0, -1]}).shape
        torch.Size([2, 4])
    """

    def __init__(
        self,
        graph: LatentGraph,
        *,
        restarts: int = 5,
        iterations: int = 500,
        tolerance: float = 1e-4,
        prior: float = 0.01,
        seed: int = 0,
        progress: bool = True,
    ) -> None:
        if not graph.directed:
            raise StructureError("EM: expected a directed graph, whose tables are conditional probabilities.")
        continuous = [v for v in graph.names if isinstance(graph.variables[v], Continuous)]
        unknown = [v for v in graph.names if graph.variables[v] is None]
        if continuous or unknown:
            raise StructureError(
                f"EM: expected a number of states for each variable, got continuous {continuous} and unknown {unknown}."
            )
        for name, value in (("restarts", restarts), ("iterations", iterations)):
            if value < 1:
                raise StructureError(f"{name}: expected at least 1, got {value}.")
        for name, amount in (("tolerance", tolerance), ("prior", prior)):
            if not 0 <= amount < math.inf:
                raise StructureError(f"{name}: expected a non-negative number, got {amount}.")
        self.graph = graph
        self.restarts, self.iterations, self.tolerance, self.prior = restarts, iterations, tolerance, prior
        self.seed, self.progress = seed, progress
        self.labels: dict[str, tuple[Any, ...]] = {}
        self.runs: list[Run] = []
        self._network: DiscreteNetwork | None = None

    @property
    def network(self) -> DiscreteNetwork:
        """The fitted network."""
        if self._network is None:
            raise NotFittedError("EM: the model has no parameters yet. Call fit() first.")
        return self._network

    def fit(self, data: DataLike) -> EM:
        """Learn from complete rows of the observables.

        Args:
            data: as for :meth:`torchpbp.PBP.fit`.

        Returns:
            The learner itself.
        """
        states = {v: self.graph.num_states(v) for v in self.graph.observed}
        reader = ColumnReader(states)
        codes = torch.cat(list(reader.batches(data)), dim=1)
        step = self._expectation_step(dict(zip(states, codes, strict=True)))
        candidates = self._candidates()
        best: tuple[float, DiscreteNetwork] | None = None
        runs = []
        total = len(candidates) * self.iterations
        name = type(self).__name__
        with tqdm(total=total, desc=name, unit="iteration", delay=2, leave=False, disable=not self.progress) as bar:
            for seed, exponent in candidates:
                network, run = self._run(step, DiscreteNetwork.random(self.graph, seed), seed, exponent, bar)
                runs.append(run)
                bar.update(self.iterations - len(run.objective))
                if best is None or run.objective[-1] > best[0]:
                    best = run.objective[-1], network
        assert best is not None
        self._network, self.runs, self.labels = best[1], runs, reader.labels
        return self

    def _candidates(self) -> list[tuple[int, float | None]]:
        """Seeds of the starts, with the exponents of online EM."""
        return [(self.seed * 1_000_003 + restart, None) for restart in range(self.restarts)]

    def _expectation_step(self, table: Mapping[str, Tensor]) -> ExpectationStep:
        rows, counts = torch.unique(torch.stack(list(table.values())), dim=1, return_counts=True)
        return ExpectationStep(self.graph, dict(zip(table, rows, strict=True)), counts.double())  # equal rows once

    def _run(
        self, step: ExpectationStep, start: DiscreteNetwork, seed: int, exponent: float | None, bar: tqdm[Any]
    ) -> tuple[DiscreteNetwork, Run]:
        tables = dict(start.factors)
        objective: list[float] = []
        for _ in range(self.iterations):
            log_likelihood, counts = step(tables)
            objective.append(self._objective(log_likelihood, tables, step.rows))
            bar.update()
            if self._converged(objective):
                break
            tables = {scope: maximised(count, self.prior) for scope, count in counts.items()}
        return self._found(tables), Run(seed, tuple(objective), self._converged(objective))

    def _objective(self, log_likelihood: float, tables: Mapping[Scope, Tensor], rows: float) -> float:
        """Log-likelihood and logarithm of the prior, per row."""
        if not self.prior:
            return log_likelihood / rows
        return (log_likelihood + self.prior * sum(float(t.log().sum()) for t in tables.values())) / rows

    def _converged(self, objective: Sequence[float]) -> bool:
        if len(objective) < 2:
            return False
        now, before = objective[-1], objective[-2]
        return abs(now - before) <= self.tolerance * abs(now + before) / 2

    def _found(self, tables: Mapping[Scope, Tensor]) -> DiscreteNetwork:
        return DiscreteNetwork(self.graph, {scope[-1]: table for scope, table in tables.items()})

    # -- answers -------------------------------------------------------------------------------------------------

    def posterior(self, query: str | Sequence[str], evidence: EvidenceLike = None) -> Tensor:
        """P(query | evidence), (batch, states…)."""
        read = self._read(evidence)
        check_query(self.graph, (query,) if isinstance(query, str) else tuple(query), read)
        return self.network.posterior(query, read)

    def posteriors(self, evidence: EvidenceLike = None) -> dict[str, Tensor]:
        """Posteriors of all observables that some row does not observe."""
        return self.network.posteriors(self._read(evidence))

    def log_evidence(self, evidence: EvidenceLike = None) -> Tensor:
        """(batch,) log P(evidence)."""
        return self.network.log_evidence(self._read(evidence))

    def sample(self, n: int, seed: int = 0) -> dict[str, Tensor]:
        """name -> (n,) states of the observables."""
        return self.network.sample(n, seed=seed)

    def _read(self, evidence: EvidenceLike) -> Evidence:
        states = {v: self.graph.num_states(v) for v in self.graph.observed}
        return read_evidence(evidence, states, latent=self.graph.latent, labels=self.labels)

    # -- saving --------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write graph and tables to one file."""
        content = {
            "learner": "EM",
            "graph": self.graph.to_dict(),
            "tables": dict(self.network.cpts),
            "labels": {v: list(x) for v, x in self.labels.items()},
        }
        write_checkpoint(path, content)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> EM:
        """Read a model written by :meth:`save`."""
        saved = read_checkpoint(path, "cpu")
        if saved.get("learner") != "EM":
            raise CheckpointError(f"'{path}' holds no model learned by EM.")
        model = cls(LatentGraph.from_dict(saved["graph"]))
        model._network = DiscreteNetwork(model.graph, saved["tables"])
        model.labels = {v: tuple(x) for v, x in saved["labels"].items()}
        return model


class ExpectationStep:
    """Expected counts of all table entries, over weighted rows.

    Args:
        graph: directed.
        rows: name -> (rows,) states; -1 where not observed.
        counts: (rows,) how often each row occurs.
    """

    def __init__(self, graph: LatentGraph, rows: Mapping[str, Tensor], counts: Tensor) -> None:
        if len(counts) == 0:
            raise DataError("EM: expected at least one row, got none.")
        self.states = {v: graph.num_states(v) for v in graph.names}
        self.tree: CliqueTree = build_clique_tree(graph)
        self.counts = counts
        self.rows = float(counts.sum())
        evidence = Evidence(len(counts), dict(rows))
        found = {v: evidence.weights(v, self.states[v], torch.float64, "cpu") for v in rows}
        self.weights = {v: w for v, w in found.items() if w is not None}

    def __call__(
        self, tables: Mapping[Scope, Tensor], chosen: Tensor | None = None
    ) -> tuple[float, dict[Scope, Tensor]]:
        """Log-likelihood of the rows under tables P(last of a scope | the others), and the tables' expected counts.

        Args:
            tables: scope -> table.
            chosen: numbers of the rows to look at; all by default.
        """
        leaves = {scope: t.detach().clone().requires_grad_() for scope, t in tables.items()}
        total = 0.0
        counts = {scope: torch.zeros_like(t) for scope, t in tables.items()}
        for part in torch.split(torch.arange(len(self.counts)) if chosen is None else chosen, ROWS_AT_ONCE):
            weights = {v: w[part] for v, w in self.weights.items()}
            with torch.enable_grad():
                potentials = potential_tree(self.tree, self.states, list(leaves.items()))
                logs = log_evidence(potentials, weights, len(self.counts[part]))
                value = (logs * self.counts[part]).sum()
                gradients = torch.autograd.grad(value, list(leaves.values()))
            total += float(value.detach())
            for scope, gradient in zip(counts, gradients, strict=True):
                counts[scope] += gradient * tables[scope]
        return total, counts


def maximised(counts: Tensor, prior: float) -> Tensor:
    """The M-step: counts and pseudo-rows, normalised over the last dimension; uniform where there is neither."""
    raised = counts + prior
    total = raised.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, raised / total.clamp(min=1e-300), torch.full_like(raised, 1 / raised.shape[-1]))
