"""Selection of the message rank on held-out rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from torchpbp.distributed import sum_over_processes
from torchpbp.errors import DataError
from torchpbp.inference.observable import Observable, prepare
from torchpbp.inference.operator_tree import OperatorTree, variable_estimate
from torchpbp.inputs.evidence import Evidence
from torchpbp.inputs.missing_values import observed
from torchpbp.learning.feature_fitting import Tables

HELD_OUT_SHARE = 0.2
HELD_OUT_ROWS = 20_000


@dataclass(frozen=True)
class RankScore:
    """Held-out score of one candidate.

    Args:
        rank: the candidate.
        score: mean over rows of the summed log-probability of each observable given all others.
        standard_error: standard error of the difference from the best candidate.
    """

    rank: int
    score: float
    standard_error: float


class HoldOut:
    """Splits tables into training rows and a bounded number of held-out rows, identically in every pass.

    Args:
        tables: the data.
        seed: seed of the split.
        share: probability that a row is held out, up to ``most`` rows.
        most: largest number of held-out rows.
    """

    def __init__(self, tables: Tables, seed: int, share: float = HELD_OUT_SHARE, most: int = HELD_OUT_ROWS) -> None:
        self._tables, self._seed, self._share, self._most = tables, seed, share, most
        self._held: list[dict[str, Tensor]] = []
        self.count = 0

    def learning_rows(self) -> Iterator[dict[str, Tensor]]:
        """One pass over the training rows.

        Raises:
            DataError: the order of the rows differs from the previous pass.
        """
        before = self.rows if self.count else {}
        self._held, self.count = [], 0
        generator = torch.Generator().manual_seed(self._seed)
        for table in self._tables():
            yield self._split(table, generator)
        if before and not self._same(before):
            raise DataError(
                "The rows came in another order in the second pass, so rows to learn from and rows to score on would mix. "
                "Turn off shuffling, or give rank and bandwidth as numbers."
            )

    @property
    def rows(self) -> dict[str, Tensor]:
        """The rows held out in the last pass."""
        return {v: torch.cat([part[v] for part in self._held]) for v in self._held[0]}

    def check_counts(self, learning_rows: float) -> None:
        """Raise a DataError for too few training or held-out rows over all processes."""
        count = int(sum_over_processes(torch.tensor(self.count, device="cpu")))
        if count < 10 or learning_rows < 10:
            raise DataError(
                f"A rank or bandwidth chosen on data needs rows to hold out: got {int(learning_rows)} to learn from and "
                f"{count} to score on, at least 10 each are needed. Give it as a number instead."
            )

    def _split(self, table: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        if self.count >= self._most:
            return dict(table)
        first = next(iter(table.values()))
        held = (torch.rand(len(first), generator=generator, device="cpu") < self._share).to(first.device)
        self._held.append({v: x[held] for v, x in table.items()})
        self.count += int(held.sum())
        return {v: x[~held] for v, x in table.items()}

    def _same(self, rows: Mapping[str, Tensor]) -> bool:
        """Whether the held-out rows equal these, including missing values."""
        return all(
            torch.equal(x.nan_to_num(), rows[v].nan_to_num()) and torch.equal(observed(x), observed(rows[v]))
            for v, x in self.rows.items()
        )


def leave_one_out(
    tree: OperatorTree, observables: Mapping[str, Observable], evidence: Evidence, floor: float
) -> Tensor:
    """(batch,) sum over observables of log P(observable | all others), from one pass in each direction.

    A row's missing values are neither scored nor used.
    """
    total = tree.root.new_zeros(evidence.batch)
    for node, table in tree.estimates(prepare(observables, evidence, tree.root)).items():
        leaf = [observables[v] for v in tree.plan.tree.leaf_observables[node]]
        zetas = [o.zeta(evidence, table) for o in leaf]
        for k, observable in enumerate(leaf):
            total = total + observable.log_score(variable_estimate(table, k, zetas), evidence, floor)
    return total


def choose_rank(rows: Mapping[int, Tensor]) -> tuple[int, list[RankScore]]:
    """The smallest rank whose held-out score is within one standard error of the best.

    Args:
        rows: candidate rank, in ascending order -> (rows,) held-out log-probabilities.
    """
    best = max(rows, key=lambda r: float(rows[r].mean()))
    scores = []
    for rank, values in rows.items():
        difference = rows[best] - values
        error = float(difference.std() / max(1, len(values)) ** 0.5) if len(values) > 1 else 0.0
        scores.append(RankScore(rank, float(values.mean()), error))
    top = float(rows[best].mean())
    chosen = next(s.rank for s in scores if top - s.score <= s.standard_error or s.rank == best)
    return chosen, scores
