"""Two-stage regression over a whole junction tree: from joint tables to operators [PBP Steps 3-6].

The first dimension of every message is the constant 1, and the others are centred: ridge penalties then never touch
total probability, and a subtree without evidence drops out exactly. Separators whose matrices have equal shapes are
solved together.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from torchpbp.contraction import contract
from torchpbp.graph.junction_tree import JunctionTree
from torchpbp.specification.instruments import Group
from torchpbp.specification.specification import SeparatorPlan, Specification
from torchpbp.stage1.ridge import ridge_factor
from torchpbp.stage2.compression import compress
from torchpbp.stage2.joint_tables import JointTables
from torchpbp.stage2.least_squares import least_squares

T = TypeVar("T")


@dataclass(frozen=True)
class Learned:
    """Operators of a fitted tree.

    Args:
        operators: per node (index 0 unused) a tensor with modes (message, children's messages…) or, at a leaf,
            (message, states of the leaf's observables…).
        root: tensor with one mode per child of the root.
        strengths: per node the canonical correlations of the message's dimensions.
    """

    operators: tuple[Tensor, ...]
    root: Tensor
    strengths: tuple[Tensor, ...]


def required_scopes(tree: JunctionTree, specification: Specification) -> list[Group]:
    """Groups of variables whose joint tables learning needs."""
    scopes: dict[Group, None] = {}
    for plan in specification.plans:
        below = _targets(tree, specification, plan.node)
        for i, group in enumerate(plan.instrument):
            scopes[(*plan.core, *group)] = None
            scopes[(*below, *group)] = None
            for other in plan.instrument[i:]:
                scopes[tuple(dict.fromkeys((*group, *other)))] = None
    scopes[tuple(v for child in tree.children[0] for v in specification.plan(child).core)] = None
    return list(scopes)


def learn(
    tree: JunctionTree, specification: Specification, tables: JointTables, stage1: float, stage2: float
) -> Learned:
    """Solve every separator.

    Args:
        tree: junction tree.
        specification: core groups, instruments and ranks.
        tables: joint tables over :func:`required_scopes`.
        stage1: ridge penalty λ of S1A and S1B, relative to instruments of unit variance.
        stage2: ridge penalty λ of S2, relative to messages of unit variance.
    """
    count = len(tree)
    features: list[Tensor] = [torch.empty(0)] * count  # U_S: (core states, rank), θ = Uᵀφ
    predictors: list[Tensor] = [torch.empty(0)] * count  # instrument states -> stage-1 factor space
    predicted: list[Tensor] = [torch.empty(0)] * count
    strengths: list[Tensor] = [torch.empty(0)] * count
    operators: list[Tensor] = [torch.empty(0)] * count

    blocks = _Blocks(tables)
    systems = {p.node: _Moments.of(p, blocks) for p in specification.plans}
    for nodes in _equal(systems, lambda m: (m.cross.shape, m.rank)):
        stacked = [systems[n] for n in nodes]
        factor = ridge_factor(torch.stack([m.gram for m in stacked]), stage1)
        result = compress(torch.stack([m.cross for m in stacked]) @ factor, stacked[0].rank - 1)
        for i, n in enumerate(nodes):
            features[n] = systems[n].message_features(result.directions[i])
            predictors[n] = systems[n].instrument_scale.unsqueeze(1) * factor[i]
            predicted[n] = result.predicted[i]
            strengths[n] = torch.cat([torch.ones(1, dtype=torch.float64), result.strengths[i]])

    responses = {p.node: _responses(tree, specification, p, blocks, features) for p in specification.plans}
    shapes = {p.node: (responses[p.node].cross.shape, p.rank) for p in specification.plans}
    for nodes in _equal(shapes, lambda shape: shape):
        raw = torch.stack([responses[n].cross for n in nodes])
        targets = raw.reshape(len(nodes), -1, raw.shape[-1]) @ torch.stack([predictors[n] for n in nodes])
        weights = least_squares(targets, torch.stack([predicted[n] for n in nodes]), stage2)
        for i, n in enumerate(nodes):
            mean = responses[n].mean
            operators[n] = torch.cat([mean.unsqueeze(0), weights[i].T.reshape(-1, *mean.shape)])
    return Learned(tuple(operators), _root_tensor(tree, specification, tables, features), tuple(strengths))


@dataclass(frozen=True)
class _Moments:
    """Whitened covariances of one separator.

    Features and instruments are scaled by 1/√p: rare states weigh as much as common ones and penalties mean the same
    everywhere.
    """

    cross: Tensor  # (core states, instrument size)
    gram: Tensor  # (instrument size, instrument size)
    constant: Tensor  # (core states, 1)
    feature_scale: Tensor
    instrument_scale: Tensor
    rank: int

    @classmethod
    def of(cls, plan: SeparatorPlan, blocks: _Blocks) -> _Moments:
        feature_scale = blocks.scale(plan.core)
        scale = torch.cat([blocks.scale(g) for g in plan.instrument])
        cross = torch.cat([blocks.cross(plan.core, g) for g in plan.instrument], dim=1)
        gram = torch.cat(
            [torch.cat([blocks.cross(a, b) for b in plan.instrument], dim=1) for a in plan.instrument], dim=0
        )
        feature_mean, mean = blocks.mean(plan.core), torch.cat([blocks.mean(g) for g in plan.instrument])
        constant = (feature_scale * feature_mean).unsqueeze(1)  # the constant 1, in whitened feature space
        cross = feature_scale.unsqueeze(1) * (cross - torch.outer(feature_mean, mean)) * scale
        gram = scale.unsqueeze(1) * (gram - torch.outer(mean, mean)) * scale
        return cls(_without(constant, cross), gram, constant, feature_scale, scale, plan.rank)

    def message_features(self, directions: Tensor) -> Tensor:
        """U with θ = Uᵀφ: the constant, then the directions given, (core states, rank).

        Rounding leaves a trace of the constant in weak directions, where it would be amplified; it is taken out again.
        """
        ones = (self.feature_scale > 0).to(self.feature_scale.dtype).unsqueeze(1)  # one-hot features sum to 1
        return torch.cat([ones, self.feature_scale.unsqueeze(1) * _without(self.constant, directions)], dim=1)


def _targets(tree: JunctionTree, specification: Specification, node: int) -> Group:
    """Observables whose joint features an operator predicts: the children's core groups, or the leaf's own."""
    if tree.leaf_observables[node]:
        return tree.leaf_observables[node]
    return tuple(v for child in tree.children[node] for v in specification.plan(child).core)


@dataclass(frozen=True)
class _Responses:
    """What an operator predicts, y = ⊗ θ of the children or the leaf's own features.

    Args:
        mean: E[y], one mode per child (or leaf observable).
        cross: Cov[y, η], with the instrument as the last mode.
    """

    mean: Tensor
    cross: Tensor


def _responses(
    tree: JunctionTree, specification: Specification, plan: SeparatorPlan, blocks: _Blocks, features: Sequence[Tensor]
) -> _Responses:
    tables, below = blocks.tables, _targets(tree, specification, plan.node)
    children = tree.children[plan.node]
    sizes = [math.prod(tables.states[v] for v in specification.plan(c).core) for c in children]
    parts = []
    for group in ((), *plan.instrument):
        table = tables.table((*below, *group))
        if children:
            parts.append(_compressed(table.reshape(*sizes, -1), [features[c] for c in children]))
        else:
            parts.append(table.reshape(*table.shape[: len(below)], -1))
    mean = parts[0].squeeze(-1)
    instrument_mean = torch.cat([blocks.mean(g) for g in plan.instrument])
    return _Responses(mean, torch.cat(parts[1:], dim=-1) - mean.unsqueeze(-1) * instrument_mean)


def _root_tensor(
    tree: JunctionTree, specification: Specification, tables: JointTables, features: Sequence[Tensor]
) -> Tensor:
    """T = E[⊗ θ of the root's children] [PBP Step 6]."""
    cores = [specification.plan(child).core for child in tree.children[0]]
    table = tables.table([v for core in cores for v in core])
    table = table.reshape(*[math.prod(tables.states[v] for v in core) for core in cores], 1)
    return _compressed(table, [features[c] for c in tree.children[0]]).squeeze(-1)


def _compressed(table: Tensor, features: Sequence[Tensor]) -> Tensor:
    """Apply each child's Uᵀ to its mode; the last mode stays."""
    raw = [f"raw{i}" for i in range(len(features))]
    small = [f"small{i}" for i in range(len(features))]
    pairs = [(r, s) for r, s in zip(raw, small, strict=True)]
    return contract([table, *features], [(*raw, "rest"), *pairs], (*small, "rest"))


class _Blocks:
    """Second moments of one-hot features of groups, each computed once: neighbouring separators share most of them."""

    def __init__(self, tables: JointTables) -> None:
        self.tables = tables
        self._cross: dict[tuple[Group, Group], Tensor] = {}
        self._scale: dict[Group, Tensor] = {}

    def mean(self, group: Group) -> Tensor:
        """Probability of each joint state."""
        return self.tables.table(group).reshape(-1)

    def scale(self, group: Group) -> Tensor:
        """1/√p of each joint state; 0 where it never occurs."""
        if group not in self._scale:
            self._scale[group] = _inverse_root(self.mean(group))
        return self._scale[group]

    def cross(self, a: Group, b: Group) -> Tensor:
        """E[φ_a φ_bᵀ] for two groups, which may share variables."""
        if (b, a) in self._cross:
            return self._cross[b, a].T
        if (a, b) not in self._cross:
            self._cross[a, b] = self._computed(a, b)
        return self._cross[a, b]

    def _computed(self, a: Group, b: Group) -> Tensor:
        union = tuple(dict.fromkeys((*a, *b)))
        table = self.tables.table(union)
        rows = math.prod(self.tables.states[v] for v in a)
        columns = math.prod(self.tables.states[v] for v in b)
        if len(union) == len(a) + len(b):
            return table.reshape(rows, columns)
        result = table.new_zeros(rows, columns)
        result[_codes(union, a, self.tables), _codes(union, b, self.tables)] = table.reshape(-1)
        return result


def _codes(union: Group, group: Group, tables: JointTables) -> Tensor:
    """For each joint state of ``union`` the joint state of ``group``."""
    sizes = [tables.states[v] for v in union]
    code = torch.zeros(sizes, dtype=torch.int64)
    for v in group:
        axis = union.index(v)
        shape = [-1 if i == axis else 1 for i in range(len(union))]
        code = code * tables.states[v] + torch.arange(tables.states[v]).reshape(shape)
    return code.reshape(-1)


def _without(direction: Tensor, matrix: Tensor) -> Tensor:
    """Columns of a matrix made orthogonal to a direction."""
    return matrix - direction @ (direction.T @ matrix) / (direction.T @ direction)


def _inverse_root(probabilities: Tensor) -> Tensor:
    return torch.where(probabilities > 0, probabilities.clamp(min=1e-300).rsqrt(), torch.zeros_like(probabilities))


def _equal(items: Mapping[int, T], key: Callable[[T], Hashable]) -> Iterable[list[int]]:
    """Nodes grouped by the key of their item."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for node, item in items.items():
        groups[key(item)].append(node)
    return groups.values()
