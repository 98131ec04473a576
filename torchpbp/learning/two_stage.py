"""The two stages: stage 1, compression, stage 2, operators [PBP Steps 3-6]."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchpbp.inference.operator_tree import OperatorTree
from torchpbp.learning.least_squares import LeastSquaresLayer
from torchpbp.learning.message_nets import InstrumentNets
from torchpbp.learning.stage1 import Penalties, PredictedProducts, Regressor, Stage1
from torchpbp.moments.moments import Moments
from torchpbp.moments.rows import TrainingRows
from torchpbp.planning.plan import Plan


@dataclass(frozen=True)
class Solution:
    """Result of the two stages.

    With classes, operators, strengths and significant dimensions have a leading class dimension.

    Args:
        tree: the operators.
        strengths: canonical correlations of the message's dimensions, per separator (node 1 first).
        significant: number of statistically significant dimensions of the message, including the constant, per separator.
        nets: trained networks of stage 1 to keep in the model, if any.
    """

    tree: OperatorTree
    strengths: tuple[Tensor, ...]
    significant: tuple[int | Tensor, ...]
    nets: InstrumentNets | None = None


def learn(
    plan: Plan, moments: Moments, regressor: Regressor, penalties: Penalties, rows: TrainingRows | None = None
) -> Solution:
    """Operators of all separators.

    Args:
        plan: core groups, instruments and ranks.
        moments: moments required by the regressor.
        regressor: the stage-1 method.
        penalties: ridge penalties of both stages.
        rows: rows of this process, for row regressors.
    """
    return solve(plan, regressor.learn(plan, moments, rows, penalties), penalties)


def solve(plan: Plan, moments: Stage1, penalties: Penalties) -> Solution:
    """Both stages in closed form: a pure function of moments and penalties, differentiable if the messages are.

    Args:
        plan: core groups, instruments and ranks.
        moments: moments of stage 1; with classes, operators have a leading class dimension.
        penalties: ridge penalties of both stages.
    """
    stage1 = moments.predictions(penalties)
    operators = solve_operators(stage1.products, penalties) | stage1.known
    nodes = range(1, len(plan.tree))
    return Solution(
        OperatorTree(plan, (stage1.root.new_empty(0), *(operators[n] for n in nodes)), stage1.root),
        tuple(stage1.strengths[n] for n in nodes),
        tuple(stage1.significant[n] for n in nodes),
        stage1.nets,
    )


def stacked(solutions: Sequence[Solution]) -> Solution:
    """Solutions of all classes on the same plan, stacked along a leading class dimension."""
    trees = [s.tree for s in solutions]
    nets = [s.nets for s in solutions if s.nets is not None]
    operators = [torch.stack(weights) for weights in zip(*(t.operators[1:] for t in trees), strict=True)]
    return Solution(
        OperatorTree(trees[0].plan, (trees[0].operators[0], *operators), torch.stack([t.root for t in trees])),
        tuple(torch.stack(parts) for parts in zip(*(s.strengths for s in solutions), strict=True)),
        tuple(torch.tensor(parts, device="cpu") for parts in zip(*(s.significant for s in solutions), strict=True)),
        InstrumentNets.stacked(nets, classes=len(nets)) if nets else None,
    )


def solve_operators(products: Iterable[PredictedProducts], penalties: Penalties) -> dict[int, Tensor]:
    """Stage 2: node -> operator with modes (message, sizes below…). The constant predicts the mean."""
    operators: dict[int, Tensor] = {}
    for p in products:
        penalty = penalties.of_nodes(p.nodes).stage2
        if isinstance(penalty, Tensor) and p.predicted.ndim == 4:
            penalty = penalty.unsqueeze(1)  # the same for all classes
        weights = LeastSquaresLayer(penalty).from_factors(p.predictions, p.predicted)  # (…, products, messages)
        constant = p.mean
        if p.message_mean is not None:
            constant = constant - (weights @ p.message_mean.unsqueeze(-1)).squeeze(-1)
        stacked = torch.cat([constant.unsqueeze(-1), weights], dim=-1).mT
        operators |= zip(p.nodes, stacked.reshape(*stacked.shape[:-1], *p.sizes).unbind(), strict=True)
    return operators
