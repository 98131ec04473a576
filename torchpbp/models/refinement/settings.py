"""Settings of a refinement."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

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
from torchpbp.settings import Constraint, Settings, choice, flag, non_negative, optional, positive, seed, setting, whole

Form = Literal["auto", "nonnegative", "signed"]


def _objective(value: Any) -> Any:
    if not isinstance(value, Objective) and not callable(value):
        raise TypeError
    return value


@dataclass(frozen=True)
class RefinementSettings(Settings):
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

    objective: Objective | UserLoss | None = setting(
        None, optional(Constraint("an Objective or a function of model and rows", _objective))
    )
    form: Form = setting("auto", choice("auto", "nonnegative", "signed"))
    steps: int = setting(30, whole(1))
    batch_size: int = setting(4096, whole(1))
    learning_rate: float | None = setting(None, optional(positive()))
    prior: float = setting(1.0, non_negative())
    penalty: float = setting(10.0, non_negative())
    patience: int = setting(4, whole(1))
    seed: int = setting(0, seed())
    progress: bool = setting(True, flag())

    def resolved(self, model: TwoStageModel) -> RefinementSettings:
        """Settings without "auto" and None, checked against a model."""
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
