"""Stepwise online EM [OEM]: tables are updated after every mini-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from torchpbp.baselines.em import EM, EMSettings, Run
from torchpbp.distributed import gather_objects, process_rank
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.inputs.columns import DataLike
from torchpbp.models.likelihood.expectation import ExpectationStep
from torchpbp.models.likelihood.layout import FamilyLayout
from torchpbp.models.likelihood.rows import WeightedRows, distinct_rows, read_rows
from torchpbp.settings import Constraint, between, non_negative, setting, several, whole


def _exponents() -> Constraint:
    numbers = several(between(0, 1))

    def read(value: Any) -> tuple[float, ...]:
        exponents: tuple[float, ...] = numbers.read(value)
        if not exponents or min(exponents) <= 0.5:
            raise ValueError
        return exponents

    return Constraint("one or more numbers above 0.5 and at most 1, where online EM converges, in a list", read)


@dataclass(frozen=True, kw_only=True)
class OnlineEMSettings(EMSettings):
    """Settings of :class:`OnlineEM`, described there."""

    restarts: int = setting(1, whole(1))
    max_steps: int = setting(100, whole(1))
    relative_tolerance: float = setting(1e-4, non_negative())
    exponents: tuple[float, ...] = setting((0.6, 0.7, 0.8, 0.9, 1.0), _exponents())
    batch_size: int = setting(100, whole(1))


class OnlineEM(EM):
    """Expectation maximisation with running averages of the expected counts.

    All candidates use the same mini-batches and are computed in parallel, like the runs of :class:`EM`.

    After mini-batch k the average moves towards the batch's counts per row by η_k = (k + 2)^−a, and all tables are
    updated from it. Large exponents a forget the start slowly; the best exponent depends on the data, so several are run
    and the one with the highest objective on all rows is selected [JT 9].

    Args:
        graph: directed, discrete graph with a number of states for each latent.
        exponents: values of a, above 0.5 and at most 1.
        batch_size: rows per mini-batch, over all processes.
        restarts: number of random starts for each exponent.
        max_steps: largest number of passes over the rows.
        relative_tolerance: as for :class:`EM`, of the objective after each pass, which fluctuates slightly.
        prior, seed, start, progress: as for :class:`EM`.
    """

    def __init__(
        self,
        graph: LatentGraph,
        *,
        exponents: Sequence[float] = (0.6, 0.7, 0.8, 0.9, 1.0),
        batch_size: int = 100,
        restarts: int = 1,
        max_steps: int = 100,
        relative_tolerance: float = 1e-4,
        prior: float = 0.01,
        seed: int = 0,
        start: DiscreteNetwork | None = None,
        progress: bool = True,
    ) -> None:
        super().__init__(graph, start=start)
        self.settings: OnlineEMSettings = OnlineEMSettings(
            restarts=restarts,
            max_steps=max_steps,
            relative_tolerance=relative_tolerance,
            prior=prior,
            seed=seed,
            progress=progress,
            exponents=exponents,  # type: ignore[arg-type]
            batch_size=batch_size,
        )

    def _candidates(self) -> list[tuple[int, float | None]]:
        return [(seed, a) for seed, _ in super()._candidates() for a in self.settings.exponents]

    def _prepared(self, data: DataLike, weights: Any) -> tuple[WeightedRows, ExpectationStep]:
        rows = read_rows(self.graph, data, weights, type(self).__name__, distinct=False, device=self._device)
        return rows, ExpectationStep(self.graph, rows.table, rows.weights, block=len(rows.weights))

    def _run(
        self,
        step: ExpectationStep,
        starts: Sequence[DiscreteNetwork],
        candidates: Sequence[tuple[int, float | None]],
        bar: tqdm[Any],
    ) -> tuple[Tensor, list[Run]]:
        layout = step.layout
        initial = {id(s): (layout.vector(dict(s.factors)), _expected(layout, s)) for s in starts}
        vectors = torch.stack([initial[id(s)][0] for s in starts])
        averages = torch.stack([initial[id(s)][1] for s in starts])
        exponents = vectors.new_tensor([float(a or 1.0) for _, a in candidates])[:, None]
        objective = ExpectationStep(self.graph, *distinct_rows(step.table, step.weights))  # on all rows
        generator = torch.Generator().manual_seed(self.settings.seed)
        shares = gather_objects(len(step.weights))  # mini-batches are drawn from the rows of all processes
        first = sum(shares[: process_rank()])
        last = first + len(step.weights)
        final = vectors.clone()
        objectives: list[list[float]] = [[] for _ in candidates]
        going = list(range(len(candidates)))
        k = 0
        for _ in range(self.settings.max_steps):
            order = torch.randperm(sum(shares), generator=generator, device="cpu").to(vectors.device)
            for batch in torch.split(order, self.settings.batch_size):
                local = batch[(batch >= first) & (batch < last)] - first
                share = (k + 2) ** -exponents
                averages = torch.lerp(averages, step(vectors, local)[1] / len(batch), share)
                vectors = layout.maximised(sum(shares) * averages, self.settings.prior)
                k += 1
            stay = self._record(objectives, going, objective.log_likelihood(vectors), vectors, step.rows)
            final[going] = vectors
            bar.update()
            going = [going[i] for i in stay]
            if not going:
                break
            vectors, averages, exponents = vectors[stay], averages[stay], exponents[stay]
        return final, self._runs(objectives, candidates)


def _expected(layout: FamilyLayout, network: DiscreteNetwork) -> Tensor:
    """(entries,) expected counts of one row under a network."""
    return layout.vector({scope: network.joint(scope) for scope in layout.scopes})
