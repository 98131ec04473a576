"""Expectation maximisation: the classical way to learn a network with hidden variables.

All runs, each from a start of its own, go on side by side: :mod:`torchpbp.baselines.expectation` takes their tables as the
rows of one matrix. In several processes, each with a share of the rows, expected counts are summed over all of them, and
all end with the same tables.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from torchpbp.arguments import check_amounts, check_counts, check_seed
from torchpbp.baselines.expectation import ExpectationStep, numbered
from torchpbp.contract.frames import Frames
from torchpbp.distributed import gather_objects
from torchpbp.errors import CheckpointError, DataError, NotFittedError, StructureError
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.files.checkpoint import checked_labels, read_checkpoint, require_finite, whole_model, write_checkpoint
from torchpbp.graph.latent_graph import LatentGraph, require_graph, require_states
from torchpbp.inputs.columns import ColumnReader, DataLike
from torchpbp.inputs.evidence import Evidence, EvidenceLike, query_names, read_evidence
from torchpbp.inputs.gaps import informative
from torchpbp.learning.fitting import check_labels
from torchpbp.models.answers import check_query


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


STREAM = 0x454D
"""Sets the seeds of starts apart from all others."""


class EM(Frames):
    """Maximum likelihood by expectation maximisation, the best of several random starts.

    Args:
        graph: directed, discrete, with a number of states for each latent.
        restarts: random starts; the run with the highest objective is kept.
        iterations: of each run, at most.
        tolerance: a run has converged when the objective f changes by no more than this share of its size:
            |f(t) − f(t−1)| ≤ tolerance · |f(t) + f(t−1)| / 2 [JT 9]. The paper's 1e-4 stops early: with many rows 1e-6
            comes several times closer, in several times as many iterations.
        prior: pseudo-rows per entry of a table (a Dirichlet prior with concentration 1 + prior). 0 gives maximum
            likelihood, with tables that may hold zeros; evidence that never occurred may then be impossible.
        seed: of the starts.
        start: where the first run begins, in place of a random start; the others are random.
        progress: show a progress bar.

    Attributes:
        network: the fitted network, with hidden variables that can be queried like others.
        runs: how each run went.

    Example:
        >>> from torchpbp import templates
        >>> truth = DiscreteNetwork.random(templates.naive_bayes(4), seed=1)
        >>> model = EM(truth.graph, restarts=2, progress=False).fit(truth.sample(500, seed=0))
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
        start: DiscreteNetwork | None = None,
        progress: bool = True,
    ) -> None:
        require_graph(graph, "EM")
        if not graph.directed:
            raise StructureError("EM: expected a directed graph, whose tables are conditional probabilities.")
        require_states(graph, "EM", " torchpbp.PBP takes such graphs.")
        check_counts(restarts=restarts, iterations=iterations)
        check_amounts(tolerance=tolerance, prior=prior)
        seed = check_seed(seed)
        if start is not None and not _same_tables(start, graph):
            raise StructureError(
                "start: expected a network on the learner's own graph, with the same parents and states."
            )
        self.graph = graph
        self.restarts, self.iterations, self.tolerance, self.prior = restarts, iterations, tolerance, prior
        self.seed, self.start, self.progress = seed, start, progress
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
        """Learn from rows of the observables, in which values may be missing at random.

        Args:
            data: as for :meth:`torchpbp.PBP.fit`. Missing values: -1, NaN, None or pandas NA. A missing value says nothing;
                the row's other values count in full. In several processes, this one's share of the rows.

        Returns:
            The learner itself.

        Raises:
            DataError: a column without any value, or rows that ``start`` holds for impossible.
        """
        states = {v: self.graph.num_states(v) for v in self.graph.observed}
        reader = ColumnReader(states, missing=True)
        codes = informative(states, torch.cat(list(reader.batches(data)), dim=1))
        check_labels(reader.labels)
        empty = [rank for rank, rows in enumerate(gather_objects(codes.shape[1])) if not rows]
        if empty:  # said in all processes: one that waits for the others would wait for ever
            raise DataError(f"EM: processes {empty} hold no row with a value. Give each process some rows.")
        step = self._expectation_step(dict(zip(states, codes, strict=True)))
        candidates = self._candidates()
        starts = self._starts(candidates)
        name = type(self).__name__
        with tqdm(
            total=self.iterations, desc=name, unit="iteration", delay=2, leave=False, disable=not self.progress
        ) as bar:
            found, self.runs = self._run(step, starts, candidates, bar)
        best = max(range(len(candidates)), key=lambda run: self.runs[run].objective[-1])
        tables = step.layout.tables(found[best : best + 1])
        self._network = DiscreteNetwork(self.graph, {scope[-1]: table[0] for scope, table in tables.items()})
        self.labels = self._network.labels = reader.labels
        return self

    def _candidates(self) -> list[tuple[int, float | None]]:
        """Seeds of the starts, with the exponents of online EM.

        They come from a stream of their own: small numbers would draw the very networks that people sample data from.
        """
        state = np.random.SeedSequence([self.seed, STREAM]).generate_state(self.restarts, np.uint64)
        return [(int(seed), None) for seed in state]

    def _starts(self, candidates: Sequence[tuple[int, float | None]]) -> list[DiscreteNetwork]:
        drawn = {} if self.start is None else {candidates[0][0]: self.start}
        for seed in {seed for seed, _ in candidates} - set(drawn):
            drawn[seed] = DiscreteNetwork.random(self.graph, seed)
        return [drawn[seed] for seed, _ in candidates]

    def _expectation_step(self, table: Mapping[str, Tensor]) -> ExpectationStep:
        numbers, firsts = numbered([x + 1 for x in table.values()])  # equal rows once
        return ExpectationStep(self.graph, {v: x[firsts] for v, x in table.items()}, torch.bincount(numbers))

    def _run(
        self,
        step: ExpectationStep,
        starts: Sequence[DiscreteNetwork],
        candidates: Sequence[tuple[int, float | None]],
        bar: tqdm[Any],
    ) -> tuple[Tensor, list[Run]]:
        """Run from all starts; a run that has converged leaves the others to themselves.

        Returns:
            (runs, entries) tables at the end, and how each run went.
        """
        vectors = torch.stack([step.layout.vector(dict(s.factors)) for s in starts])
        found = vectors.clone()
        objectives: list[list[float]] = [[] for _ in candidates]
        going = list(range(len(candidates)))
        for _ in range(self.iterations):
            log_likelihood, counts = step(vectors)
            stay = self._noted(objectives, going, log_likelihood, vectors, step.rows)
            found[going] = vectors
            bar.update()
            going = [going[i] for i in stay]
            if not going:
                break
            vectors = step.layout.maximised(counts[stay], self.prior)
        if going:
            found[going] = vectors
        return found, self._runs(objectives, candidates)

    def _noted(
        self, objectives: list[list[float]], going: Sequence[int], log_likelihood: Tensor, vectors: Tensor, rows: float
    ) -> list[int]:
        """Write down the objective of each run; return the places of those that have not converged.

        The prior's term may be -inf: a start may hold zeros, which the first step takes away.
        """
        if not bool(torch.isfinite(log_likelihood).all()):
            raise DataError(
                "EM: a row of the data has probability 0. Give a start without zeros, or a prior above 0 to keep zeros away."
            )
        values = self._objective(log_likelihood, vectors, rows)
        for run, value in zip(going, values.tolist(), strict=True):
            objectives[run].append(value)
        return [i for i, run in enumerate(going) if not self._converged(objectives[run])]

    def _runs(self, objectives: Sequence[list[float]], candidates: Sequence[tuple[int, float | None]]) -> list[Run]:
        return [
            Run(seed, tuple(objective), self._converged(objective), exponent)
            for (seed, exponent), objective in zip(candidates, objectives, strict=True)
        ]

    def _objective(self, log_likelihood: Tensor, vectors: Tensor, rows: float) -> Tensor:
        """(runs,) log-likelihood and logarithm of the prior, per row."""
        if not self.prior:
            return log_likelihood / rows
        return (log_likelihood + self.prior * vectors.log().sum(dim=1)) / rows

    def _converged(self, objective: Sequence[float]) -> bool:
        if len(objective) < 2:
            return False
        now, before = objective[-1], objective[-2]
        return math.isfinite(before) and abs(now - before) <= self.tolerance * abs(now + before) / 2

    # -- answers -------------------------------------------------------------------------------------------------

    def posterior(self, query: str | Sequence[str], evidence: EvidenceLike = None) -> Tensor:
        """P(query | evidence), (batch, states…)."""
        read = self._read(evidence)
        check_query(self.graph, query_names(query), read)
        return self.network.posterior(query, read)

    def posteriors(self, evidence: EvidenceLike = None) -> dict[str, Tensor]:
        """Posteriors of all observables that some row does not observe."""
        return self.network.posteriors(self._read(evidence))

    def log_evidence(self, evidence: EvidenceLike = None) -> Tensor:
        """(batch,) log P(evidence)."""
        return self.network.log_evidence(self._read(evidence))

    def sample(self, n: int, seed: int | None = None) -> dict[str, Tensor]:
        """name -> (n,) states of the observables."""
        return self.network.sample(n, seed=seed)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.graph!r}, {'not fitted' if self._network is None else 'fitted'})"

    def _read(self, evidence: EvidenceLike) -> Evidence:
        states = {v: self.graph.num_states(v) for v in self.graph.observed}
        return read_evidence(evidence, states, latent=self.graph.latent, labels=self.labels)

    # -- saving --------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write graph and tables to one file.

        Raises:
            CheckpointError: tables with NaN or infinity, or a file that cannot be written.
        """
        tables = dict(self.network.cpts)
        require_finite({f"tables.{v}": table for v, table in tables.items()}, path, saving=True)
        content = {
            "learner": "EM",
            "graph": self.graph.to_dict(),
            "tables": tables,
            "labels": {v: list(x) for v, x in checked_labels(self.labels, self.graph.variables, path).items()},
        }
        write_checkpoint(path, content)

    @classmethod
    @whole_model
    def load(cls, path: str | os.PathLike[str]) -> EM:
        """Read a model written by :meth:`save`."""
        saved = read_checkpoint(path, "cpu")
        if saved.get("learner") != "EM":
            raise CheckpointError(f"'{path}' holds no model learned by EM.")
        model = cls(LatentGraph.from_dict(saved["graph"]))
        model._network = DiscreteNetwork(model.graph, saved["tables"])  # refuses what are no conditional probabilities
        model.labels = checked_labels(saved["labels"], model.graph.variables, path)
        model._network.labels = model.labels
        return model


def _same_tables(start: object, graph: LatentGraph) -> bool:
    """Whether a start is a network whose tables have the scopes and sizes of the graph's."""
    return isinstance(start, DiscreteNetwork) and start.graph.directed and _shapes(start.graph) == _shapes(graph)


def _shapes(graph: LatentGraph) -> dict[str, tuple[tuple[str, int], ...]]:
    """What a network's tables are tables of."""
    return {v: tuple((p, graph.num_states(p)) for p in (*graph.parents(v), v)) for v in graph.names}
