"""The walk of a refinement: from the two-stage solution into a form, then pass by pass, candidates scored on the way."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor
from tqdm.auto import tqdm

from torchpbp.errors import DataError, TorchPBPWarning
from torchpbp.inputs.columns import ColumnReader, DataLike
from torchpbp.inputs.evidence import Evidence
from torchpbp.inputs.labels import is_code_range
from torchpbp.inputs.missing_values import observed
from torchpbp.models.refinement.descent import Descent, GradientSteps, MultiplicativeSteps, take
from torchpbp.models.refinement.guard import START, Guard, Trace, pooled
from torchpbp.models.refinement.nonnegative import nonnegative_form
from torchpbp.models.refinement.objectives import JointLikelihood, hide
from torchpbp.models.refinement.settings import RefinementSettings
from torchpbp.models.two_stage_model import TwoStageModel

CANDIDATES = (1, 2, 3, 5, 8, 12, 18, 25, 35, 50, 70, 100)
"""Passes after which a candidate is scored; above 100, every 50th."""
CORNER_ROWS = 2000
"""Rows whose messages are searched for corners of the simplex."""


class Fold(NamedTuple):
    """A model to be changed, the rows it learns from, and the guard with the rows that judge it."""

    model: TwoStageModel
    rows: Evidence
    guard: Guard


def candidate_steps(steps: int) -> list[int]:
    """Numbers of passes at which candidates are scored, ``steps`` the last."""
    later = range(CANDIDATES[-1] + 50, steps, 50)
    return [*(s for s in (*CANDIDATES, *later) if s < steps), steps]


def walk(model: TwoStageModel, rows: Evidence, settings: RefinementSettings) -> Iterator[tuple[int, float]]:
    """Change ``model`` step by step and yield (passes, mean training loss) at each candidate, the form itself first.

    Args:
        model: a model of one's own: afterwards it may hold logits in place of operators.
        rows: to learn from.
        settings: resolved for the model.
    """
    nonnegative = settings.form == "nonnegative"
    objective = settings.resolved_objective
    if nonnegative:
        order = torch.randperm(rows.batch, generator=torch.Generator().manual_seed(settings.seed))[:CORNER_ROWS]
        patterns, _ = hide(take(rows, order), torch.Generator().manual_seed(settings.seed))
        adopt(model, nonnegative_form(model, patterns))
        yield 0, math.nan
    descent: Descent
    if nonnegative and isinstance(objective, JointLikelihood):
        descent = MultiplicativeSteps(model, rows, settings.batch_size, settings.prior)
    else:
        rate = settings.learning_rate or 0.0
        descent = GradientSteps(
            model, objective, rows, settings.batch_size, rate, settings.penalty, nonnegative, settings.seed
        )
    candidates = set(candidate_steps(settings.steps))
    for step in range(1, settings.steps + 1):
        loss = descent.sweep()
        if step in candidates or not math.isfinite(loss):
            yield step, loss
        if not math.isfinite(loss):
            return


def descend(folds: Sequence[Fold], settings: RefinementSettings) -> tuple[Trace, list[Tensor]]:
    """Walk all folds side by side until their guards, taken together, see no more progress.

    Returns:
        All candidates, scored over all folds, and the operators of the best in the first fold.
    """
    trace = Trace([pooled([f.guard.record(f.model, START) for f in folds])])
    best = operators_of(folds[0].model)
    walks = [walk(f.model, f.rows, settings) for f in folds]
    with _bar(settings) as bar:
        for reached in zip(*walks, strict=False):
            records = [f.guard.record(f.model, step, loss) for f, (step, loss) in zip(folds, reached, strict=True)]
            record = pooled(records)
            if not math.isfinite(record.total) or not all(math.isfinite(loss) or step == 0 for step, loss in reached):
                text = f"Refinement: the loss is no longer finite after {record.step} passes; the best state before is kept."
                warnings.warn(f"{text} A smaller learning_rate may help.", TorchPBPWarning, stacklevel=4)
                break
            trace.records.append(record)
            bar.update(record.step - bar.n)
            if trace.best() is record:
                best = operators_of(folds[0].model)
            if trace.stalled(settings.patience):
                break
    return trace, best


def repeat(model: TwoStageModel, rows: Evidence, settings: RefinementSettings, steps: int) -> list[Tensor] | None:
    """Walk a given number of passes without a guard and return the operators; None if the loss did not stay finite."""
    with _bar(settings) as bar:
        for step, loss in walk(model, rows, settings):
            bar.update(step - bar.n)
            if step >= steps:
                operators = operators_of(model)
                healthy = (step == 0 or math.isfinite(loss)) and all(bool(w.isfinite().all()) for w in operators)
                return operators if healthy and step == steps else None
    return None


def _bar(settings: RefinementSettings) -> tqdm[NoReturn]:
    return tqdm(total=settings.steps, desc="refining", unit="pass", delay=2, leave=False, disable=not settings.progress)


def operators_of(model: TwoStageModel) -> list[Tensor]:
    """A copy of the operators, the root first."""
    return [w.detach().clone() for w in model.operator_tree.operators]


@torch.no_grad()
def adopt(model: TwoStageModel, operators: Sequence[Tensor]) -> None:
    """Put operators into a model and bring its marginals up to date."""
    model.set_operators(operators, operators[0])
    model.set_marginals()


def read_rows(model: TwoStageModel, data: DataLike, check: bool = True) -> Evidence:
    """The rows of a table, or of an iterable of tables, that show something, as evidence on the model's device.

    Args:
        model: fitted.
        data: as in :meth:`PBP.fit`.
        check: refuse columns without any value, and warn of rows without any if they are many.

    Raises:
        DataError: data that cannot be read.
    """
    domains = {v: o.domain for v, o in model.observables.items()}
    reader = ColumnReader(domains, model.labels, missing=True, quiet=True)  # no new labels are taken
    parts = list(reader.tables(data))
    new = [v for v, labels in reader.labels.items() if v not in model.labels and not is_code_range(labels)]
    if new:
        raise DataError(
            f"Columns {new} hold labels, but the model was fitted without labels for them. Give their states' numbers."
        )
    if check:
        reader.missing_values.check()
    device = model.root.weight.device
    columns = {v: torch.cat([p[v] for p in parts]).to(device) for v in model.observables}
    hard = {v: x for v, x in columns.items() if not model.observables[v].continuous}
    real = {v: x for v, x in columns.items() if model.observables[v].continuous}
    rows = Evidence(len(next(iter(columns.values()))), hard, {}, real)
    if not reader.missing_values.empty:
        return rows
    return take(rows, torch.stack([observed(x) for x in columns.values()]).any(dim=0).nonzero().squeeze(1))
