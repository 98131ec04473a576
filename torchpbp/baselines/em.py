"""Expectation maximisation, the classical algorithm for networks with hidden variables.

All runs, from different starts, are computed in parallel: their tables are the rows of one matrix in
:mod:`torchpbp.models.likelihood.expectation`. In several processes, each with a share of the rows, expected counts are summed
over all processes, and all have the same final tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from torchpbp.errors import ConvergenceWarning, DataError, StructureError, warn_caller
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.inputs.columns import DataLike
from torchpbp.lazy import pandas as pd
from torchpbp.models.likelihood.expectation import ExpectationStep
from torchpbp.models.likelihood.rows import WeightedRows, read_rows
from torchpbp.models.network_learner import NetworkLearner
from torchpbp.settings import Settings, flag, non_negative, setting, whole
from torchpbp.settings import seed as seed_constraint


@dataclass(frozen=True, kw_only=True)
class EMSettings(Settings):
    """Settings of :class:`EM`, described there."""

    restarts: int = setting(5, whole(1))
    max_steps: int = setting(500, whole(1))
    relative_tolerance: float = setting(1e-6, non_negative())
    prior: float = setting(0.01, non_negative())
    seed: int = setting(0, seed_constraint())
    progress: bool = setting(True, flag())


@dataclass(frozen=True)
class Run:
    """One run from one start.

    Args:
        seed: seed of the start.
        objective: log-likelihood per row plus the prior's term, at the start (except for online EM) and after each step; the
            last value belongs to the final tables.
        converged: whether the run met the tolerance within the allowed steps.
        exponent: exponent of the step sizes of stepwise online EM.
    """

    seed: int
    objective: tuple[float, ...]
    converged: bool
    exponent: float | None = None


STREAM = 0x454D
"""Stream of the starts' seeds, distinct from all others."""


class EM(NetworkLearner):
    """Maximum likelihood by expectation maximisation, the best of several random starts.

    Args:
        graph: directed, discrete graph with a number of states for each latent.
        restarts: number of random starts; the run with the highest objective is selected.
        max_steps: largest number of steps of a run. A warning is issued if the selected run reaches it.
        relative_tolerance: a run has converged when the objective f changes by no more than this share of its size:
            ``|f(t) − f(t−1)| ≤ relative_tolerance · |f(t) + f(t−1)| / 2`` [JT 9]. The paper's 1e-4 stops early: with many rows
            1e-6 is several times more accurate, in several times as many steps.
        prior: pseudo-rows per entry of a table (a Dirichlet prior with concentration 1 + prior). 0 gives maximum
            likelihood, whose tables may contain zeros; evidence absent from the data may then be impossible.
        seed: seed of the starts.
        start: start of the first run; the others are random.
        progress: show a progress bar.

    Attributes:
        settings: the arguments as :class:`EMSettings`.
        runs: course of each run; not part of a model file.

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
        max_steps: int = 500,
        relative_tolerance: float = 1e-6,
        prior: float = 0.01,
        seed: int = 0,
        start: DiscreteNetwork | None = None,
        progress: bool = True,
    ) -> None:
        super().__init__(graph)
        if start is not None and not _same_tables(start, graph):
            raise StructureError(
                "start: expected a network on the learner's own graph, with the same parents and states."
            )
        self.settings = EMSettings(
            restarts=restarts,
            max_steps=max_steps,
            relative_tolerance=relative_tolerance,
            prior=prior,
            seed=seed,
            progress=progress,
        )
        self.start = start
        self.runs: list[Run] = []

    def fit(self, data: DataLike, weights: Any = None) -> EM:
        """Learn from rows of the observables, in which values may be missing at random.

        Args:
            data: as for :meth:`torchpbp.PBP.fit`; distinct rows of a table on a cluster are computed there. -1, NaN, None and
                pandas NA are missing values, which are marginalised. In several processes, the share of this process.
            weights: (rows,) weights of the rows; 1 by default.

        Returns:
            The learner itself.

        Raises:
            DataError: a column without any value, negative weights, or rows that are impossible under ``start``.
        """
        rows, step = self._prepared(data, weights)
        candidates = self._candidates()
        starts = self._starts(candidates)
        name, shown = type(self).__name__, self.settings.progress
        with tqdm(
            total=self.settings.max_steps, desc=name, unit="step", delay=2, leave=False, disable=not shown
        ) as bar:
            vectors, self.runs = self._run(step, starts, candidates, bar)
        best = _best(self.runs)
        if not self.runs[best].converged:
            warn_caller(
                f"{name}: the best run stopped at the limit of {self.settings.max_steps} steps, before it had "
                "converged. Raise max_steps or relative_tolerance.",
                ConvergenceWarning,
            )
        self._adopt(step.layout.named(vectors[best]), rows.labels, rows.missing)
        return self

    def _prepared(self, data: DataLike, weights: Any) -> tuple[WeightedRows, ExpectationStep]:
        rows = read_rows(self.graph, data, weights, type(self).__name__, device=self._device)
        return rows, ExpectationStep(self.graph, rows.table, rows.weights)

    def _candidates(self) -> list[tuple[int, float | None]]:
        """Seeds of the starts, with the exponents of online EM.

        They come from a separate stream: small seeds would draw the networks that test data are often sampled from.
        """
        state = np.random.SeedSequence([self.settings.seed, STREAM]).generate_state(self.settings.restarts, np.uint64)
        return [(int(seed), None) for seed in state]

    def _starts(self, candidates: Sequence[tuple[int, float | None]]) -> list[DiscreteNetwork]:
        drawn = {} if self.start is None else {candidates[0][0]: self.start}
        for seed in {seed for seed, _ in candidates} - set(drawn):
            drawn[seed] = DiscreteNetwork.random(self.graph, seed)
        return [drawn[seed] for seed, _ in candidates]

    def _run(
        self,
        step: ExpectationStep,
        starts: Sequence[DiscreteNetwork],
        candidates: Sequence[tuple[int, float | None]],
        bar: tqdm[Any],
    ) -> tuple[Tensor, list[Run]]:
        """Run from all starts; converged runs take no further steps.

        Returns:
            (runs, entries) final tables, and the course of each run.
        """
        vectors = torch.stack([step.layout.vector(dict(s.factors)) for s in starts])
        final = vectors.clone()
        objectives: list[list[float]] = [[] for _ in candidates]
        going = list(range(len(candidates)))
        for taken in range(self.settings.max_steps + 1):
            log_likelihood, counts = step(vectors)
            stay = self._record(objectives, going, log_likelihood, vectors, step.rows)
            final[going] = vectors
            going = [going[i] for i in stay]
            if not going or taken == self.settings.max_steps:
                break
            vectors = step.layout.maximised(counts[stay], self.settings.prior)
            bar.update()
        return final, self._runs(objectives, candidates)

    def _record(
        self, objectives: list[list[float]], going: Sequence[int], log_likelihood: Tensor, vectors: Tensor, rows: float
    ) -> list[int]:
        """Record the objective of each run; return the positions of runs that have not converged.

        The prior's term may be -inf for a start with zeros, which the first step removes.
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
        if not self.settings.prior:
            return log_likelihood / rows
        return (log_likelihood + self.settings.prior * vectors.log().sum(dim=1)) / rows

    def _converged(self, objective: Sequence[float]) -> bool:
        if len(objective) < 2:
            return False
        now, before = objective[-1], objective[-2]
        return math.isfinite(before) and abs(now - before) <= self.settings.relative_tolerance * abs(now + before) / 2

    def diagnostics(self) -> pd.DataFrame:
        """One row per run: seed, steps, final objective, whether it converged, and whether it was selected (``kept``)."""
        self.require_fitted()
        best = _best(self.runs)
        rows = [
            (r.seed, r.exponent, len(r.objective) - (r.exponent is None), r.objective[-1], r.converged, i == best)
            for i, r in enumerate(self.runs)
        ]
        columns = ["seed", "exponent", "steps", "objective", "converged", "kept"]
        frame = pd.DataFrame(rows, columns=columns)
        return frame.drop(columns="exponent") if all(r.exponent is None for r in self.runs) else frame

    @classmethod
    def unpack(cls, content: Mapping[str, Any], name: object) -> EM:
        """The model with default settings, which are not saved."""
        return cls(LatentGraph.from_dict(content["graph"]))._restore(content, name)


def _best(runs: Sequence[Run]) -> int:
    """Index of the run with the highest objective."""
    return max(range(len(runs)), key=lambda i: runs[i].objective[-1], default=0)


def _same_tables(start: object, graph: LatentGraph) -> bool:
    """Whether a start is a network whose tables have the scopes and sizes of the graph's."""
    return isinstance(start, DiscreteNetwork) and start.graph.directed and _shapes(start.graph) == _shapes(graph)


def _shapes(graph: LatentGraph) -> dict[str, tuple[tuple[str, int], ...]]:
    """Scope and sizes of each table of a network."""
    return {v: tuple((p, graph.num_states(p)) for p in (*graph.parents(v), v)) for v in graph.names}
