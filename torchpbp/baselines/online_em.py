"""Stepwise online EM [Liang and Klein 2009]: tables are renewed after every mini-batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from torchpbp.baselines.em import EM, ExpectationStep, Run, maximised
from torchpbp.errors import StructureError
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.graph.latent_graph import LatentGraph


class OnlineEM(EM):
    """Expectation maximisation with running averages of the expected counts.

    After mini-batch k the average moves towards the batch's counts per row by η_k = (k + 2)^−a, and all tables are
    renewed from it. Large exponents a forget the start slowly; which one is best depends on the data, so several are run
    and the one with the highest objective on all rows is kept [JT 9].

    Args:
        graph: directed, discrete, with a number of states for each latent.
        exponents: values of a, above 0.5 and at most 1.
        batch_size: rows per mini-batch.
        restarts: random starts for each exponent.
        iterations: passes over the rows, at most.
        tolerance, prior, seed, progress: as for :class:`EM`.
    """

    def __init__(
        self,
        graph: LatentGraph,
        *,
        exponents: Sequence[float] = (0.6, 0.7, 0.8, 0.9, 1.0),
        batch_size: int = 100,
        restarts: int = 1,
        iterations: int = 100,
        tolerance: float = 1e-4,
        prior: float = 0.01,
        seed: int = 0,
        progress: bool = True,
    ) -> None:
        super().__init__(
            graph,
            restarts=restarts,
            iterations=iterations,
            tolerance=tolerance,
            prior=prior,
            seed=seed,
            progress=progress,
        )
        if not exponents or not all(0.5 < a <= 1 for a in exponents):
            raise StructureError(
                f"exponents: expected one or more numbers above 0.5 and at most 1, where online EM converges, got {list(exponents)}."
            )
        if batch_size < 1:
            raise StructureError(f"batch_size: expected at least 1, got {batch_size}.")
        self.exponents, self.batch_size = tuple(exponents), batch_size

    def _candidates(self) -> list[tuple[int, float | None]]:
        return [(seed, a) for seed, _ in super()._candidates() for a in self.exponents]

    def _expectation_step(self, table: Mapping[str, Tensor]) -> ExpectationStep:
        rows = len(next(iter(table.values())))
        return ExpectationStep(self.graph, table, torch.ones(rows, dtype=torch.float64))

    def _run(
        self, step: ExpectationStep, start: DiscreteNetwork, seed: int, exponent: float | None, bar: tqdm[Any]
    ) -> tuple[DiscreteNetwork, Run]:
        tables = dict(start.factors)
        averages = {scope: start.joint(scope) for scope in tables}  # what the start expects of a row
        generator = torch.Generator().manual_seed(seed)
        objective: list[float] = []
        k = 0
        for _ in range(self.iterations):
            for batch in torch.split(torch.randperm(len(step.counts), generator=generator), self.batch_size):
                _, counts = step(tables, batch)
                share = (k + 2) ** -float(exponent or 1.0)
                for scope, count in counts.items():
                    averages[scope] = (1 - share) * averages[scope] + share * count / len(batch)
                tables = {scope: maximised(step.rows * average, self.prior) for scope, average in averages.items()}
                k += 1
            log_likelihood, _ = step(tables)
            objective.append(self._objective(log_likelihood, tables, step.rows))
            bar.update()
            if self._converged(objective):
                break
        return self._found(tables), Run(seed, tuple(objective), self._converged(objective), exponent)
