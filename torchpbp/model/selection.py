"""Choosing the message rank on held-out rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchpbp.inference.queries import as_distribution, leaf_estimates
from torchpbp.inference.schedule import Schedule
from torchpbp.inputs.evidence import Evidence

CANDIDATE_RANKS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
HELD_OUT_SHARE = 0.2
HELD_OUT_ROWS = 20_000


@dataclass(frozen=True)
class RankScore:
    """Held-out score of one candidate.

    Args:
        rank: the candidate.
        score: mean over rows of the log-probability of each leaf given all others.
        standard_error: of the difference to the best candidate.
    """

    rank: int
    score: float
    standard_error: float


class HoldOut:
    """Splits batches of rows into a part to learn from and a bounded held-out part.

    Args:
        seed: of the split.
        share: probability that a row is held out, until ``most`` rows are.
        most: largest number of rows held out.
    """

    def __init__(self, seed: int, share: float = HELD_OUT_SHARE, most: int = HELD_OUT_ROWS) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._share, self._most = share, most
        self._kept: list[Tensor] = []
        self.count = 0

    def split(self, codes: Tensor) -> Tensor:
        """Keep some columns of (variables, rows) and return the others."""
        if self.count >= self._most:
            return codes
        held = torch.rand(codes.shape[1], generator=self._generator) < self._share
        self._kept.append(codes[:, held])
        self.count += int(held.sum())
        return codes[:, ~held]

    @property
    def rows(self) -> Tensor:
        """(variables, rows) held out."""
        return torch.cat(self._kept, dim=1)


def leave_one_leaf_out(
    operators: Sequence[Tensor],
    root: Tensor,
    schedule: Schedule,
    parents: Sequence[int],
    evidence: Evidence,
    floor: float,
) -> Tensor:
    """(batch,) sum over leaves of log P(leaf's observables | all other observables), from one pass in each direction."""
    estimates = leaf_estimates(operators, root, schedule, evidence, parents, own_evidence=False)
    total = torch.zeros(evidence.batch, dtype=root.dtype)
    for node, table in estimates.items():
        code = torch.zeros(evidence.batch, dtype=torch.int64)
        for k, v in enumerate(schedule.observables[node]):
            code = code * table.shape[1 + k] + evidence.hard[v]
        chosen = as_distribution(table.flatten(1), floor).gather(1, code.unsqueeze(1))
        total = total + chosen.squeeze(1).log()
    return total


def choose_rank(candidates: Sequence[int], fit_and_score: Callable[[int], Tensor]) -> tuple[int, list[RankScore]]:
    """The smallest rank whose held-out score is within one standard error of the best.

    Args:
        candidates: ranks in ascending order.
        fit_and_score: rank -> (rows,) held-out log-probabilities.
    """
    rows = {rank: fit_and_score(rank) for rank in candidates}
    best = max(rows, key=lambda r: float(rows[r].mean()))
    scores = []
    for rank, values in rows.items():
        difference = rows[best] - values
        error = float(difference.std() / max(1, len(values)) ** 0.5) if len(values) > 1 else 0.0
        scores.append(RankScore(rank, float(values.mean()), error))
    top = float(rows[best].mean())
    chosen = next(s.rank for s in scores if top - s.score <= s.standard_error or s.rank == best)
    return chosen, scores
