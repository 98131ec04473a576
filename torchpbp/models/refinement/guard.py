"""The held-out guard: step 0 is a candidate, and nothing that is worse on held-out rows is ever returned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from torchpbp.inputs.evidence import Evidence
from torchpbp.lazy import pandas as pd
from torchpbp.models.refinement.objectives import Objective
from torchpbp.models.two_stage_model import TwoStageModel

ROWS_AT_ONCE = 1 << 14
MARGIN = 1.0
"""A candidate must gain more than this many standard errors of the gain: held-out rows are a sample too."""
START = -1
"""The step of the two-stage model itself; step 0 is the form that descent starts from."""


@dataclass
class Record:
    """One candidate.

    Args:
        step: passes over the data; -1 for the two-stage model.
        loss: mean training loss of the pass before it; NaN where there was none.
        scores: guard -> (rows,) held-out costs.
    """

    step: int
    loss: float
    scores: dict[str, Tensor]

    @property
    def means(self) -> dict[str, float]:
        return {name: float(costs.mean()) for name, costs in self.scores.items()}

    @property
    def costs(self) -> Tensor:
        """(rows,) costs, summed over the guards."""
        return torch.stack(list(self.scores.values())).sum(dim=0)

    @cached_property
    def total(self) -> float:
        return float(self.costs.mean())


@dataclass
class Trace:
    """The candidates of one descent, the two-stage model first."""

    records: list[Record] = field(default_factory=list)

    def passes(self, record: Record) -> bool:
        """Whether a candidate is no worse than the start on any guard and, over all, better by ``MARGIN`` errors."""
        start = self.records[0]
        if record is start:
            return True
        means = start.means
        if not all(math.isfinite(x) and x <= means[name] for name, x in record.means.items()):
            return False
        gain = start.costs - record.costs
        error = float(gain.std()) / math.sqrt(len(gain)) if len(gain) > 1 else 0.0
        return float(gain.mean()) > MARGIN * error

    def best(self) -> Record:
        """The candidate with the least held-out cost among those that pass; the start if it is as good as any."""
        candidates = [r for r in self.records if self.passes(r)]
        return min(candidates, key=lambda r: r.total, default=self.records[0])

    def stalled(self, patience: int) -> bool:
        """Whether the last ``patience`` candidates of the descent brought nothing new, passing or not."""
        descent = self.records[1:]
        if len(descent) <= patience:
            return False
        totals = [r.total if math.isfinite(r.total) else math.inf for r in descent]
        return min(totals[-patience:]) >= min(totals[:-patience])

    def table(self) -> pd.DataFrame:
        """One row per candidate: step, training loss, held-out means, whether it passes, whether it is the best."""
        best = self.best()
        return pd.DataFrame(
            {"step": r.step, "loss": r.loss, **r.means, "passes": self.passes(r), "chosen": r is best}
            for r in self.records
        )


def pooled(records: Sequence[Record]) -> Record:
    """The same candidate in several folds, taken together."""
    scores = {name: torch.cat([r.scores[name] for r in records]) for name in records[0].scores}
    return Record(max(r.step for r in records), sum(r.loss for r in records) / len(records), scores)


class Guard:
    """Scores a model on held-out rows, the same question patterns every time.

    Args:
        objectives: what must not get worse.
        held_out: rows that descent does not see.
        seed: of the patterns.
    """

    def __init__(self, objectives: Sequence[Objective], held_out: Evidence, seed: int) -> None:
        self.objectives, self.held_out, self.seed = tuple(objectives), held_out, seed

    @torch.no_grad()
    def record(self, model: TwoStageModel, step: int, loss: float = math.nan) -> Record:
        """Score a candidate. The marginals that noisy answers are shrunk towards are brought up to date first."""
        model.set_marginals()
        scores: dict[str, list[Tensor]] = {objective.name: [] for objective in self.objectives}
        generator = torch.Generator().manual_seed(self.seed)
        for start in range(0, self.held_out.batch, ROWS_AT_ONCE):
            rows = self.held_out.rows(slice(start, start + ROWS_AT_ONCE))
            for objective in self.objectives:
                scores[objective.name].append(objective.score(model, rows, generator).double().cpu())
        return Record(step, loss, {name: torch.cat(parts) for name, parts in scores.items()})
