"""Ridge or nets, by a test on held-out rows."""

from __future__ import annotations

import logging

import torch

from torchpbp.errors import ArgumentError
from torchpbp.learning.predictions import predicted_covariances
from torchpbp.learning.ridge import LinearStage1, Ridge
from torchpbp.learning.stacked_instruments import StackedInstruments, direction_scores
from torchpbp.learning.stage1 import Penalties, Stage1
from torchpbp.moments.moments import Moments
from torchpbp.moments.rows import TrainingRows
from torchpbp.neural.mlp import MLP
from torchpbp.planning.plan import Group, Plan, SeparatorPlan

LEVEL = 1e-3
"""Chance that nets are trained although linear regression does."""
LEAST_CORRELATION = 1e-3
"""In a population, where nothing is left to chance: correlation that counts as telling more."""
LOGGER = logging.getLogger(__name__)


class AutoRegressor(MLP):
    """Linear stage 1, or nets where they tell more: what ``regressor="auto"`` stands for.

    Before any net is trained, nets with random hidden layers and heads in closed form predict rows that the heads were not
    solved on. Where at no separator such a prediction tells significantly more than the features of linear stage 1, the
    model is that of :class:`~torchpbp.Ridge`; otherwise nets are trained as by :class:`~torchpbp.MLP`. The model says which
    in ``regressor_choice``, and so does the log.

    Args:
        hidden, folds, linear, missing: as for :class:`~torchpbp.MLP`.
        epochs, patience, batch_size, learning_rate, weight_decay, dtype, trainer, checkpoint, seed: likewise.
    """

    def required_tables(self, plan: Plan) -> list[Group]:
        return list(dict.fromkeys([*Ridge().required_tables(plan), *super().required_tables(plan)]))

    def required_separators(self, plan: Plan) -> list[tuple[SeparatorPlan, list[Group]]]:
        return Ridge().required_separators(plan)

    def learn(self, plan: Plan, moments: Moments, rows: TrainingRows | None, penalties: Penalties) -> Stage1:
        if rows is None:
            raise ArgumentError(f"{self!r} needs the rows themselves, not only moments.")
        telling = self.telling(plan, moments, rows)
        count = len(plan.separators)
        if telling:
            names = "; ".join(plan.tree.separator_name(n) for n in telling[:3]) + ("; …" if len(telling) > 3 else "")
            choice = f"MLP: nets tell more than linear regression at {len(telling)} of {count} separators ({names})"
            stage1 = super().learn(plan, moments, rows, penalties)
        else:
            choice = f"Ridge: nets tell no more than linear regression at any of {count} separators"
            stage1 = LinearStage1(plan, moments)
        LOGGER.info("regressor='auto' chose %s.", choice)
        stage1.choice = choice
        return stage1

    def telling(self, plan: Plan, moments: Moments, rows: TrainingRows) -> list[int]:
        """Nodes of the separators at which random nets tell significantly more than linear features."""
        regressions, _ = self.core_targets(plan, moments, rows)
        predictor = self.fit(rows, regressions, train=False)
        covariances = predicted_covariances(rows, regressions, StackedInstruments(predictor, plan, moments, rows))
        scores = [direction_scores(c.cross, c.gram)[0] for c in covariances]
        if moments.rows < 2:
            return [s.node for s, r in zip(plan.separators, scores, strict=True) if bool((r > LEAST_CORRELATION).any())]
        tests = max(1, sum(len(r) for r in scores))
        threshold = float(-torch.special.ndtri(torch.tensor(LEVEL / tests, dtype=torch.float64)))
        return [
            s.node
            for s, r in zip(plan.separators, scores, strict=True)
            if bool((r * moments.rows**0.5 > threshold).any())
        ]

    def __repr__(self) -> str:
        return f"AutoRegressor(hidden={list(self.settings.hidden)}, folds={self.settings.folds})"
