"""Refinement: descent goes on from the two-stage solution, as far as held-out rows agree.

Two-stage regression is consistent and has no local optima, but it is not efficient: it uses low-order moments only. From
its solution, descent on the likelihood (or on any loss) comes close to what maximum likelihood reaches, without random
starts.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch

from torchpbp.errors import DataError, StructureError
from torchpbp.inputs.columns import DataLike
from torchpbp.lazy import pandas as pd
from torchpbp.models.conditioning import check_refinable
from torchpbp.models.refinement.descent import take
from torchpbp.models.refinement.guard import START, Guard, Trace
from torchpbp.models.refinement.settings import RefinementSettings
from torchpbp.models.refinement.walk import Fold, adopt, descend, read_rows, repeat
from torchpbp.models.two_stage_model import TwoStageModel
from torchpbp.settings import between

LEAST_ROWS = 20
"""Fewest rows to learn from, and fewest to hold out."""


@dataclass(frozen=True)
class Refinement:
    """What a refinement did.

    Args:
        form: "nonnegative" or "signed".
        objective: its name.
        steps: passes of the accepted candidate (0: only the form changed); ``None`` if the two-stage model was kept.
        trace: all candidates with their held-out scores.
    """

    form: str
    objective: str
    steps: int | None
    trace: Trace

    @property
    def history(self) -> pd.DataFrame:
        """Candidates: step (-1: the two-stage model), training loss, held-out means, whether accepted."""
        return self.trace.table()

    def __str__(self) -> str:
        start, best = self.trace.records[0].means, self.trace.best().means
        scores = ", ".join(f"{name} {start[name]:.4f} -> {best[name]:.4f}" for name in start)
        done = "two-stage model kept" if self.steps is None else f"{self.form} form, {self.steps} passes"
        return f"Refinement by {self.objective}: {done}; held out: {scores}"


def refine(
    model: TwoStageModel,
    data: DataLike,
    settings: RefinementSettings | None = None,
    *,
    held_out: float = 0.2,
    refit: bool = False,
) -> Refinement:
    """Refine a fitted model in place by descent from where it is.

    A share of the rows is held out. A candidate is accepted only if it is no worse than the given model on any of the
    objective's guards there: for likelihoods both the joint likelihood and conditionals of random patterns, for other
    losses the loss itself. The best of them is taken, or the model stays as it is. Rows the model was fitted on favour it
    when they are held out, so pass fresh rows, or use :class:`~torchpbp.RefinedPBP`, which fits and judges on different
    ones.

    Args:
        model: fitted; changed only by an accepted candidate.
        data: rows, as in :meth:`PBP.fit`; what is missing in them is summed over.
        settings: how to refine.
        held_out: share of the rows that judge.
        refit: repeat the accepted number of passes with all rows, from the given model. The result is then judged by
            rows it has seen, and falls back to the accepted candidate if it is worse than the start on them.

    Returns:
        A report with the history of candidates.

    Raises:
        DataError: too few rows to hold some out.
        NotFittedError: the model is not fitted.
        StructureError: form and model do not fit together.
    """
    if not isinstance(model, TwoStageModel):
        raise StructureError(f"refine: expected a PBP model, got {type(model).__name__}.")
    check_refinable(model)
    model.require_fitted()
    between(0, 1, ends=False).check("held_out", held_out)
    settings = (settings or RefinementSettings()).resolved(model)
    rows = read_rows(model, data)
    order = torch.randperm(rows.batch, generator=torch.Generator().manual_seed(settings.seed))
    count = round(held_out * rows.batch)
    if count < LEAST_ROWS or rows.batch - count < LEAST_ROWS:
        raise DataError(
            f"Refinement: expected at least {LEAST_ROWS} rows to learn from and {LEAST_ROWS} held out, got "
            f"{rows.batch - count} and {count}. Give more rows or change held_out."
        )
    objective = settings.resolved_objective
    guard = Guard(objective.guards, take(rows, order[:count]), settings.seed)
    fold = Fold(copy.deepcopy(model), take(rows, order[count:]), guard)
    trace, operators = descend([fold], settings)
    best = trace.best()
    if best.step != START:
        again = repeat(copy.deepcopy(model), rows, settings, best.step) if refit else None
        adopt(model, operators)
        if again is not None:
            judged = copy.deepcopy(model)
            adopt(judged, again)
            if trace.passes(guard.record(judged, best.step)):
                adopt(model, again)
    return Refinement(str(settings.form), objective.name, None if best.step == START else best.step, trace)
