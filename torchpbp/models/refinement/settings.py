"""RefinementSettings of a refinement."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from torchpbp.arguments import check_amounts, check_seed, is_number
from torchpbp.errors import StructureError
from torchpbp.models.refinement.nonnegative import refuse_continuous
from torchpbp.models.refinement.objectives import (
    ConditionalLikelihood,
    CustomLoss,
    JointLikelihood,
    Objective,
    UserLoss,
)
from torchpbp.models.two_stage_model import TwoStageModel

Form = Literal["auto", "nonnegative", "signed"]


@dataclass(frozen=True)
class RefinementSettings:
    """How to refine.

    Args:
        objective: an :class:`Objective`, or a function of model and rows that returns (batch,) costs. ``None``: the joint
            likelihood in non-negative form, leave-some-out conditionals in signed form.
        form: "nonnegative" keeps all operators probability tables (discrete observables only), "signed" leaves them free
            and penalises negative mass; "auto" takes the former where it can.
        steps: most rounds. A round is one pass over the rows; likelihood steps on tables take three passes each.
        batch_size: rows per mini-batch.
        learning_rate: of Adam, which serves all but the joint likelihood in non-negative form; ``None``: 0.02 for logits
            of tables, 0.001 for signed operators.
        prior: pseudo-rows per distribution of a table, in likelihood steps on tables.
        penalty: weight of negative mass over random evidence, in signed form.
        patience: candidates without progress after which descent stops.
        seed: of splits, mini-batches and question patterns.
        progress: show a progress bar.
    """

    objective: Objective | UserLoss | None = None
    form: Form = "auto"
    steps: int = 30
    batch_size: int = 4096
    learning_rate: float | None = None
    prior: float = 1.0
    penalty: float = 10.0
    patience: int = 4
    seed: int = 0
    progress: bool = True

    def __post_init__(self) -> None:
        if self.form not in ("auto", "nonnegative", "signed"):
            raise StructureError(f"form: expected 'auto', 'nonnegative' or 'signed', got {self.form!r}.")
        for name in ("steps", "batch_size", "patience"):
            value = getattr(self, name)
            if not is_number(value) or value < 1 or value != int(value):
                raise StructureError(f"{name}: expected a whole number from 1 on, got {value!r}.")
        check_amounts(prior=self.prior, penalty=self.penalty)
        check_seed(self.seed)
        rate = self.learning_rate
        if rate is not None and not (is_number(rate) and rate > 0):
            raise StructureError(f"learning_rate: expected a positive number or None, got {self.learning_rate}.")
        if self.objective is not None and not isinstance(self.objective, Objective) and not callable(self.objective):
            raise StructureError(
                f"objective: expected an Objective, a function of model and rows, or None; got {self.objective!r}."
            )

    def resolved(self, model: TwoStageModel) -> RefinementSettings:
        """RefinementSettings without "auto" and None, checked against a model."""
        form = self.form
        if form == "nonnegative":
            refuse_continuous(model)
        elif form == "auto":
            form = "signed" if any(o.continuous for o in model.observables.values()) else "nonnegative"
        objective = self.objective
        if objective is None:
            objective = JointLikelihood() if form == "nonnegative" else ConditionalLikelihood()
        elif not isinstance(objective, Objective):
            objective = CustomLoss(objective)
        objective.check(model)
        rate = self.learning_rate or (0.02 if form == "nonnegative" else 0.001)
        return replace(self, form=form, objective=objective, learning_rate=rate)

    @property
    def resolved_objective(self) -> Objective:
        """The objective as an object; of resolved settings only."""
        if not isinstance(self.objective, Objective):
            raise StructureError("objective: these settings are not resolved for a model. Call resolved(model) first.")
        return self.objective
