"""Two-stage regression over a whole junction tree: from joint tables to operators [PBP Steps 3-6].

Separators whose matrices have equal shapes are solved together.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Learned:
    """Operators of a fitted tree.

    Args:
        operators: per node (index 0 unused) a tensor with modes (message, children's messages…) or, at a leaf,
            (message, states of the leaf's observables…).
        root: tensor with one mode per child of the root.
        strengths: per node the canonical correlations of the message's dimensions.
        reached: per node the rank of the data's cross moment above rounding.
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


def learn(tree: JunctionTree, specification: Specification, tables: JointTables, stage1: float, stage2: float) -> Learned:
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

    systems = {p.node: _Moments.of(p, tables) for p in specification.plans}
    for nodes in _equal(systems, lambda m: (m.cross.shape, m.rank)):
        stacked = [systems[n] for n in nodes]
        factor = ridge_factor(torch.stack([m.gram for m in stacked]), stage1)
        result = compress(torch.stack([m.cross for m in stacked]) @ factor, stacked[0].rank)
        for i, n in enumerate(nodes):
            features[n] = systems[n].feature_scale.unsqueeze(1) * result.directions[i]
            predictors[n] = systems[n].instrument_scale.unsqueeze(1) * factor[i]
            predicted[n] = result.predicted[i]
            strengths[n] = result.strengths[i]

    responses = {p.node: _responses(tree, specification, p, tables, features) for p in specification.plans}
    shapes = {p.node: (responses[p.node].shape, p.rank) for p in specification.plans}
    for nodes in _equal(shapes, lambda shape: shape):
        raw = torch.stack([responses[n] for n in nodes])
        targets = raw.reshape(len(nodes), -1, raw.shape[-1]) @ torch.stack([predictors[n] for n in nodes])
        weights = least_squares(targets, torch.stack([predicted[n] for n in nodes]), stage2)
        for i, n in enumerate(nodes):
            operators[n] = weights[i].T.reshape(-1, *responses[n].shape[:-1])
    return Learned(tuple(operators), _root_tensor(tree, specification, tables, features), tuple(strengths))


@dataclass(frozen=True)
class _Moments:
    """Whitened second moments of one separator.

    Features and instruments are scaled by 1/√p, so that their own second moment is the identity: rare states weigh as
    much as common ones and penalties mean the same everywhere.
    """

    cross: Tensor  # (core states, instrument size)
    gram: Tensor  # (instrument size, instrument size)
    feature_scale: Tensor
    instrument_scale: Tensor
    rank: int

    @classmethod
    def of(cls, plan: SeparatorPlan, tables: JointTables) -> _Moments:
        feature_scale = _inverse_root(tables.table(plan.core).reshape(-1))
        scale = torch.cat([_inverse_root(tables.table(g).reshape(-1)) for g in plan.instrument])
        cross = torch.cat([_block(tables, plan.core, g) for g in plan.instrument], dim=1)
        gram = torch.cat(
            [torch.cat([_block(tables, a, b) for b in plan.instrument], dim=1) for a in plan.instrument], dim=0
        )
        rank = min(plan.rank, *cross.shape)
        return cls(
            feature_scale.unsqueeze(1) * cross * scale, scale.unsqueeze(1) * gram * scale, feature_scale, scale, rank
        )


def _targets(tree: JunctionTree, specification: Specification, node: int) -> Group:
    """Observables whose joint features an operator predicts: the children's core groups, or the leaf's own."""
    if tree.leaf_observables[node]:
        return tree.leaf_observables[node]
    return tuple(v for child in tree.children[node] for v in specification.plan(child).core)


def _responses(
    tree: JunctionTree, specification: Specification, plan: SeparatorPlan, tables: JointTables, features: Sequence[Tensor]
) -> Tensor:
    """E[(⊗ θ of the children) ηᵀ]: (children's ranks or leaf states…, instrument size)."""
    below = _targets(tree, specification, plan.node)
    blocks = []
    for group in plan.instrument:
        table = tables.table((*below, *group))
        if tree.leaf_observables[plan.node]:
            blocks.append(table.reshape(*table.shape[: len(below)], -1))
        else:
            cores = [specification.plan(child).core for child in tree.children[plan.node]]
            table = table.reshape(*[math.prod(tables.states[v] for v in core) for core in cores], -1)
            blocks.append(_compressed(table, [features[c] for c in tree.children[plan.node]]))
    return torch.cat(blocks, dim=-1)


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


def _block(tables: JointTables, a: Group, b: Group) -> Tensor:
    """E[φ_a φ_bᵀ] for the one-hot features of two groups, which may share variables."""
    union = tuple(dict.fromkeys((*a, *b)))
    table = tables.table(union)
    rows = math.prod(tables.states[v] for v in a)
    columns = math.prod(tables.states[v] for v in b)
    if len(union) == len(a) + len(b):
        return table.reshape(rows, columns)
    result = table.new_zeros(rows, columns)
    result[_codes(union, a, tables), _codes(union, b, tables)] = table.reshape(-1)
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


def _inverse_root(probabilities: Tensor) -> Tensor:
    return torch.where(probabilities > 0, probabilities.clamp(min=1e-300).rsqrt(), torch.zeros_like(probabilities))


def _equal(items: dict, key) -> Iterable[list[int]]:  # type: ignore[no-untyped-def, type-arg]
    groups = defaultdict(list)
    for node, item in items.items():
        groups[key(item)].append(node)
    return groups.values()
