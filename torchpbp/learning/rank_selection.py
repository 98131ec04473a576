"""Choosing the message rank on held-out rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchpbp.inference.queries import leaf_estimates, own_estimate
from torchpbp.inference.schedule import Schedule
from torchpbp.inference.variables import Observable, prepare
from torchpbp.inputs.evidence import Evidence
from torchpbp.inputs.gaps import observed

HELD_OUT_SHARE = 0.2
HELD_OUT_ROWS = 20_000


@dataclass(frozen=True)
class RankScore:
    """Held-out score of one candidate.

    Args:
        rank: the candidate.
        score: mean over rows of the summed log-probability of each observable given all others.
        standard_error: of the difference to the best candidate.
    """

    rank: int
    score: float
    standard_error: float


class HoldOut:
    """Splits tables into rows to learn from and a bounded number of held-out rows.

    Args:
        seed: of the split.
        share: probability that a row is held out, until ``most`` rows are.
        most: largest number of rows held out.
    """

    def __init__(self, seed: int, share: float = HELD_OUT_SHARE, most: int = HELD_OUT_ROWS) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._share, self._most = share, most
        self._kept: list[dict[str, Tensor]] = []
        self.count = 0

    def split(self, table: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Keep some rows of a table and return the others."""
        if self.count >= self._most:
            return dict(table)
        held = torch.rand(len(next(iter(table.values()))), generator=self._generator) < self._share
        self._kept.append({v: x[held] for v, x in table.items()})
        self.count += int(held.sum())
        return {v: x[~held] for v, x in table.items()}

    @property
    def rows(self) -> dict[str, Tensor]:
        """The rows held out."""
        return {v: torch.cat([part[v] for part in self._kept]) for v in self._kept[0]}

    def same(self, rows: Mapping[str, Tensor]) -> bool:
        """Whether the rows held out are these, gaps included."""
        return all(torch.equal(x.nan_to_num(), rows[v].nan_to_num()) for v, x in self.rows.items()) and all(
            torch.equal(observed(x), observed(rows[v])) for v, x in self.rows.items()
        )


def leave_one_out(
    operators: Sequence[Tensor],
    root: Tensor,
    schedule: Schedule,
    parents: Sequence[int],
    observables: Mapping[str, Observable],
    evidence: Evidence,
    floor: float,
) -> Tensor:
    """(batch,) sum over observables of log P(observable | all others), from one pass in each direction.

    A row's missing values are neither scored nor used.
    """
    estimates = leaf_estimates(operators, root, schedule, prepare(observables, evidence, root), parents)
    total = torch.zeros(evidence.batch, dtype=root.dtype)
    for node, table in estimates.items():
        leaf = [observables[v] for v in schedule.observables[node]]
        zetas = [o.zeta(evidence, table) for o in leaf]
        for k, observable in enumerate(leaf):
            total = total + observable.log_score(own_estimate(table, k, zetas), evidence, floor)
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
