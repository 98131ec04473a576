"""The two stages: stage 1, compression, stage 2, operators [PBP Steps 3-6]."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchpbp.inference.operator_tree import OperatorTree
from torchpbp.learning.compression import compress_messages
from torchpbp.learning.least_squares import least_squares
from torchpbp.learning.stage1 import Penalties, PredictedProducts, Regressor, Stage1
from torchpbp.moments.moments import Moments
from torchpbp.moments.rows import TrainingRows
from torchpbp.planning.plan import Plan


@dataclass(frozen=True)
class Solution:
    """What the two stages give.

    Args:
        tree: the operators.
        strengths: per separator (node 1 first) the canonical correlations of the message's dimensions.
        significant: per separator how many dimensions of the message, the constant included, are statistically significant.
    """

    tree: OperatorTree
    strengths: tuple[Tensor, ...]
    significant: tuple[int, ...]


def learn(
    plan: Plan, moments: Moments, regressor: Regressor, penalties: Penalties, rows: TrainingRows | None = None
) -> Solution:
    """Operators of all separators.

    Args:
        plan: core groups, instruments and ranks.
        moments: what the regressor requires.
        regressor: the stage-1 method.
        penalties: ridge penalties of both stages.
        rows: of this process, for regressors that look at rows.
    """
    return solve_stages(plan, regressor.learn(plan, moments, rows, penalties), penalties)


def solve_stages(plan: Plan, stage1: Stage1, penalties: Penalties) -> Solution:
    """Compression and stage 2, given stage 1."""
    messages = compress_messages(stage1.cores(), penalties.stage1)
    root, products = stage1.products(messages)
    operators = solve_operators(products, penalties.stage2)
    ordered = [messages[n] for n in range(1, len(plan.tree))]
    return Solution(
        OperatorTree(plan, (torch.empty(0), *(operators[n] for n in range(1, len(plan.tree)))), root),
        tuple(m.strengths for m in ordered),
        tuple(m.significant for m in ordered),
    )


def solve_operators(products: Iterable[PredictedProducts], penalty: float) -> dict[int, Tensor]:
    """Stage 2: node -> operator with modes (message, sizes below…). The constant predicts the mean."""
    operators: dict[int, Tensor] = {}
    for p in products:
        weights = least_squares(p.predictions, p.predicted, penalty).mT.reshape(len(p.mean), -1, *p.mean.shape[1:])
        operators |= zip(p.nodes, torch.cat([p.mean.unsqueeze(1), weights], dim=1).unbind(), strict=True)
    return operators
