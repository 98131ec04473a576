"""Stepwise online EM [Liang and Klein 2009]: tables are renewed after every mini-batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from torchpbp.arguments import check_counts, is_number
from torchpbp.baselines.em import EM, Run
from torchpbp.baselines.expectation import ExpectationStep, TableLayout
from torchpbp.distributed import gather_objects, process_rank
from torchpbp.errors import StructureError
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.graph.latent_graph import LatentGraph


class OnlineEM(EM):
    """Expectation maximisation with running averages of the expected counts.

    All candidates see the same mini-batches and go on side by side, as the runs of :class:`EM` do.

    After mini-batch k the average moves towards the batch's counts per row by η_k = (k + 2)^−a, and all tables are
    renewed from it. Large exponents a forget the start slowly; which one is best depends on the data, so several are run
    and the one with the highest objective on all rows is kept [JT 9].

    Args:
        graph: directed, discrete, with a number of states for each latent.
        exponents: values of a, above 0.5 and at most 1.
        batch_size: rows per mini-batch, over all processes.
        restarts: random starts for each exponent.
        iterations: passes over the rows, at most.
        tolerance, prior, seed, start, progress: as for :class:`EM`.
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
        start: DiscreteNetwork | None = None,
        progress: bool = True,
    ) -> None:
        super().__init__(
            graph,
            restarts=restarts,
            iterations=iterations,
            tolerance=tolerance,
            prior=prior,
            seed=seed,
            start=start,
            progress=progress,
        )
        listed = isinstance(exponents, Sequence) and len(exponents) > 0
        if not listed or not all(is_number(a) and 0.5 < a <= 1 for a in exponents):
            raise StructureError(
                "exponents: expected one or more numbers above 0.5 and at most 1, where online EM converges, in a list, got "
                f"{exponents!r}."
            )
        check_counts(batch_size=batch_size)
        self.exponents, self.batch_size = tuple(exponents), batch_size

    def _candidates(self) -> list[tuple[int, float | None]]:
        return [(seed, a) for seed, _ in super()._candidates() for a in self.exponents]

    def _expectation_step(self, table: Mapping[str, Tensor]) -> ExpectationStep:
        rows = len(next(iter(table.values())))
        return ExpectationStep(self.graph, table, torch.ones(rows, dtype=torch.float64))

    def _run(
        self,
        step: ExpectationStep,
        starts: Sequence[DiscreteNetwork],
        candidates: Sequence[tuple[int, float | None]],
        bar: tqdm[Any],
    ) -> tuple[Tensor, list[Run]]:
        layout = step.layout
        known = {id(s): (layout.vector(dict(s.factors)), _expected(layout, s)) for s in starts}
        vectors = torch.stack([known[id(s)][0] for s in starts])
        averages = torch.stack([known[id(s)][1] for s in starts])
        exponents = torch.tensor([float(a or 1.0) for _, a in candidates], dtype=torch.float64)[:, None]
        whole = super()._expectation_step(step.table)  # the objective looks at equal rows once
        generator = torch.Generator().manual_seed(self.seed)
        shares = gather_objects(len(step.counts))  # mini-batches are drawn from the rows of all processes
        first = sum(shares[: process_rank()])
        last = first + len(step.counts)
        found = vectors.clone()
        objectives: list[list[float]] = [[] for _ in candidates]
        going = list(range(len(candidates)))
        k = 0
        for _ in range(self.iterations):
            for batch in torch.split(torch.randperm(sum(shares), generator=generator), self.batch_size):
                own = batch[(batch >= first) & (batch < last)] - first
                share = (k + 2) ** -exponents
                averages = torch.lerp(averages, step(vectors, own)[1] / len(batch), share)
                vectors = layout.maximised(step.rows * averages, self.prior)
                k += 1
            stay = self._noted(objectives, going, whole.log_likelihood(vectors), vectors, step.rows)
            found[going] = vectors
            bar.update()
            going = [going[i] for i in stay]
            if not going:
                break
            vectors, averages, exponents = vectors[stay], averages[stay], exponents[stay]
        return found, self._runs(objectives, candidates)


def _expected(layout: TableLayout, network: DiscreteNetwork) -> Tensor:
    """(entries,) what a network expects of one row."""
    return layout.vector({scope: network.joint(scope) for scope in layout.scopes})
