"""Linear stage 1, in closed form from moments alone [PBP Steps 3-4]."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping

import torch
from torch import Tensor

from torchpbp.learning.compression import Message, PredictedCores, apply_whitener, orthogonal_to
from torchpbp.learning.stage1 import CompressedStage1, Penalties, PredictedProducts, Regressor, Stage1
from torchpbp.moments.moments import Moments, Question
from torchpbp.moments.rows import TrainingRows
from torchpbp.planning.plan import Group, Plan, SeparatorPlan


class Ridge(Regressor):
    """Linear regression on indicator or kernel features of the instrument's groups, in closed form from moments.

    The penalty is the model's ``ridge``.
    """

    def required_tables(self, plan: Plan) -> list[Group]:
        tables = {tuple(dict.fromkeys((*a, *b))): None for a, b in self.required_pairs(plan)}
        below = [[v for group in groups for v in group] for groups in plan.targets]
        for separator in plan.separators:
            for group in separator.instrument:
                tables[(*below[separator.node], *group)] = None
        tables[tuple(below[0])] = None
        return list(tables)

    def required_pairs(self, plan: Plan) -> list[tuple[Group, Group]]:
        pairs: dict[tuple[Group, Group], None] = {}
        for separator in plan.separators:
            pairs[separator.core, separator.core] = None
            for i, group in enumerate(separator.instrument):
                pairs[separator.core, group] = None
                for other in separator.instrument[i:]:
                    if (other, group) not in pairs:
                        pairs[group, other] = None
        return list(pairs)

    def required_separators(self, plan: Plan) -> list[tuple[SeparatorPlan, list[Group]]]:
        return list(zip(plan.separators, plan.targets[1:], strict=True))

    def learn(self, plan: Plan, moments: Moments, rows: TrainingRows | None, penalties: Penalties) -> Stage1:
        return LinearStage1(plan, moments)

    def __repr__(self) -> str:
        return "Ridge()"


class LinearStage1(CompressedStage1):
    """Regressions on the features of the instruments' groups.

    Args:
        plan: core groups, instruments and ranks.
        moments: moments of the features.
    """

    def __init__(self, plan: Plan, moments: Moments) -> None:
        self.plan, self.moments = plan, moments

    def cores(self) -> list[PredictedCores]:
        moments, result = self.moments, []
        plans = {s.node: s for s in self.plan.separators}
        dims, near_dims = moments.dims, moments.near_dims
        shapes: dict[int, tuple[int, ...]] = {
            n: (group_dim(s.core, dims), sum(group_dim(g, near_dims) for g in s.instrument), s.rank)
            for n, s in plans.items()
        }
        for nodes in equal_shapes(shapes):
            covariances = moments.separators([plans[n] for n in nodes])
            scale, whitener = covariances.scale.unsqueeze(-2), covariances.whitener
            constant = apply_whitener(whitener, covariances.core_mean.unsqueeze(-1))
            result.append(
                PredictedCores(
                    nodes,
                    orthogonal_to(constant, apply_whitener(whitener, covariances.cross) * scale),
                    scale.mT * covariances.gram * scale,
                    constant,
                    whitener,
                    covariances.ones,
                    covariances.scale,
                    covariances.rows,
                    shapes[nodes[0]][-1],
                )
            )
        return result

    def products(self, messages: Mapping[int, Message]) -> tuple[Tensor, list[PredictedProducts]]:
        instruments = [(), *(s.instrument for s in self.plan.separators)]
        questions: dict[int, Question] = {
            n: (groups, compressions(self.plan, messages, n), instruments[n])
            for n, groups in enumerate(self.plan.targets)
        }
        shapes = {n: self._shape(questions[n], messages[n]) for n in messages}
        groups = [[0], *equal_shapes(shapes)]
        (root, _), *answers = self.moments.below([[questions[n] for n in nodes] for nodes in groups])
        products = []
        for nodes, (mean, centred) in zip(groups[1:], answers, strict=True):
            predictor = torch.stack([messages[n].predictor for n in nodes])
            predicted = torch.stack([messages[n].predicted for n in nodes])
            lead = predictor.ndim - 2  # dimensions of separators and, if any, replicates
            predictions = centred.flatten(lead, -2) @ predictor
            products.append(
                PredictedProducts(nodes, tuple(mean.shape[lead:]), mean.flatten(lead), predictions, predicted)
            )
        return root.squeeze(0), products

    def _shape(self, question: Question, message: Message) -> tuple[Hashable, ...]:
        below, features, _ = question
        return (
            tuple(group_dim(g, self.moments.dims) for g in below),
            None if features is None else tuple(f.shape for f in features),
            message.predictor.shape,
            message.predicted.shape,
        )


def compressions(plan: Plan, messages: Mapping[int, Message], node: int) -> list[Tensor] | None:
    """U of each of a node's children; None at a leaf, whose features are not compressed."""
    if plan.tree.leaf_observables[node]:
        return None
    return [messages[c].features for c in plan.tree.children[node]]


def group_dim(group: Group, dims: Mapping[str, int]) -> int:
    """Dimensions of the product features of a group."""
    return math.prod([dims[v] for v in group])


def equal_shapes(shapes: Mapping[int, Hashable]) -> list[list[int]]:
    """Nodes grouped by shape: each group is solved as one batch."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for node, shape in shapes.items():
        groups[shape].append(node)
    return list(groups.values())
