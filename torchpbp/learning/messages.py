"""Stage 1 with messages of a fitted model as instruments."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchpbp.errors import ArgumentError
from torchpbp.inference.operator_tree import OperatorTree
from torchpbp.inputs.evidence import Evidence
from torchpbp.learning.predictions import PredictedStage1
from torchpbp.learning.regressions import Predictor, Regression
from torchpbp.learning.ridge import LinearStage1, Ridge
from torchpbp.learning.stage1 import Penalties, RowRegressor, Stage1
from torchpbp.learning.two_stage import solve
from torchpbp.moments.moments import Moments
from torchpbp.moments.rows import TrainingRows
from torchpbp.planning.plan import Group, Plan
from torchpbp.settings import whole

BOUND = 4.0
"""Bound on predictions of messages, which have unit variance; larger values are noise of a division by nearly 0."""
ROWS_AT_ONCE = 8192


class Messages(RowRegressor):
    """Stage 1 whose instruments are the downward messages of a fitted model.

    Linear stage 1 regresses on a few outside observables separately. The downward messages of a model fitted this way combine
    all outside observables by the rules of probability, which makes them optimal instruments if the model is correct. Both
    stages are therefore solved again with these messages as instruments. A poor instrument does not bias stage 2; a good one
    reduces its noise. Discrete variables only.

    Args:
        rounds: number of repetitions, each with the messages of the previous solution.
    """

    def __init__(self, rounds: int = 1) -> None:
        self.rounds: int = whole(1).check("rounds", rounds)

    def required_tables(self, plan: Plan) -> list[Group]:
        return Ridge().required_tables(plan)

    def learn(self, plan: Plan, moments: Moments, rows: TrainingRows | None, penalties: Penalties) -> Stage1:
        if rows is None or rows.states is None:
            raise ArgumentError(f"{self!r} needs rows of discrete variables. Use Ridge().")
        distinct = rows.distinct() if rows.weights is None else rows
        stage1: Stage1 = LinearStage1(plan, moments)
        for _ in range(self.rounds):
            tree = solve(plan, stage1, penalties).tree
            outside = _FixedPredictions(outside_messages(tree, distinct))
            stage1 = PredictedStage1(plan, moments, distinct, outside.fit, method=repr(self))
        return stage1

    def __repr__(self) -> str:
        return f"Messages(rounds={self.rounds})"


def outside_messages(tree: OperatorTree, rows: TrainingRows) -> list[Tensor]:
    """Predictions of each separator's message given all outside observables of the same row.

    Returns:
        Per node except the root, (rows, message dim without the constant).
    """
    assert rows.states is not None
    parts = []
    for states in torch.split(rows.states, ROWS_AT_ONCE):
        evidence = Evidence(len(states), dict(zip(rows.names, states.unbind(dim=1), strict=True)))
        downward = tree.downward(tree.upward(evidence))
        parts.append([_normalised(message) for message in downward if message is not None])
    return [torch.cat(part) for part in zip(*parts, strict=True)]


def _normalised(message: Tensor) -> Tensor:
    """E[θ | outside] of (rows, message dim) downward messages E[θ 1(outside)], whose first entry is P(outside)."""
    probability = message[:, :1]
    expected = message[:, 1:] / probability.clamp(min=1e-6)
    return expected.clamp(-BOUND, BOUND).masked_fill(probability <= 0, 0.0)


class _FixedPredictions(Predictor):
    """Predictor with precomputed predictions."""

    def __init__(self, predictions: list[Tensor]) -> None:
        self.predictions = predictions

    def fit(self, rows: TrainingRows, regressions: Sequence[Regression]) -> Predictor:
        return self

    def predict(self, rows: TrainingRows, positions: Tensor) -> list[Tensor]:
        return [p[positions] for p in self.predictions]
