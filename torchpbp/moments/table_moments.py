"""Moments of one-hot features, read off joint probability tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from torchpbp.exact.contraction import contract
from torchpbp.moments.joint_tables import JointTables
from torchpbp.moments.moments import Moments, Question, SeparatorMoments
from torchpbp.moments.table_reading import Cells, Number, reading
from torchpbp.planning.plan import Group, SeparatorPlan


class TableMoments(Moments):
    """Moments of one-hot features, read off joint probability tables.

    Blocks are computed once: neighbouring separators share most of them.

    Where values are missing, "missing" is one more state of an instrument's variables, so that it is known for every row. A
    moment of core groups, or of what operators predict, is taken over the rows in which these are known. That is right
    where values are missing completely at random; it stays right where whether an outside value is missing depends on the
    value itself.

    Args:
        tables: joint tables of all groups asked for. Counts of shape (cells, replicates), of which all moments of separators then
            have a dimension behind that of the separators, are those of as many tables of equally many rows.
    """

    def __init__(self, tables: JointTables) -> None:
        self.tables = tables
        self.dims = tables.states
        self.rows = tables.rows
        self._sizes = tuple(self.dims.values())
        self._cross: dict[tuple[Group, Group], Tensor] = {}
        self._scale: dict[Group, Tensor] = {}
        self._mean: dict[Group, Tensor] = {}

    def ones(self, group: Group) -> Tensor:
        return (self.mean(group) > 0).to(torch.float64)

    def mean(self, group: Group) -> Tensor:
        if group not in self._mean:
            self._mean[group] = self.tables.table(group).reshape(-1)
        return self._mean[group]

    def whitener(self, group: Group) -> Tensor:
        """1/√p of each joint state; 0 where it never occurs. Rare states then weigh as much as common ones."""
        if group not in self._scale:
            self._scale[group] = _inverse_root(self.mean(group))
        return self._scale[group]

    instrument_scale = whitener

    def cross(self, a: Group, b: Group) -> Tensor:
        """E[φ_a φ_bᵀ]; the groups may share variables."""
        if (b, a) in self._cross:
            return self._cross[b, a].T
        if (a, b) not in self._cross:
            self._cross[a, b] = self._computed(a, b)
        return self._cross[a, b]

    def _computed(self, a: Group, b: Group) -> Tensor:
        union = tuple(dict.fromkeys((*a, *b)))
        table = self.tables.table(union)
        if len(union) == len(a) + len(b):
            return table.reshape(self.dim(a), self.dim(b))
        result = table.new_zeros(self.dim(a), self.dim(b))
        index = [torch.as_tensor(_codes(union, g, self.dims), device=table.device) for g in (a, b)]
        result[index[0], index[1]] = table.reshape(-1)
        return result

    def third(self, below: Sequence[Group], features: Sequence[Tensor] | None, near: Sequence[Group]) -> Tensor:
        """E[(⊗_k θ_k) ηᵀ], not centred: (sizes of θ…, dims of the instrument's groups, joined)."""
        names = [v for g in below for v in g]
        sizes = [self.dim(g) for g in below]
        table = torch.cat([self.tables.table((*names, *g)).reshape(*sizes, self.dim(g)) for g in near], dim=-1)
        if features is None:
            return table
        raw = [f"raw{i}" for i in range(len(below))]
        small = [f"small{i}" for i in range(len(below))]
        pairs = list(zip(raw, small, strict=True))
        return contract([table, *features], [(*raw, "rest"), *pairs], (*small, "rest"))

    def near_dim(self, group: Group) -> int:
        return math.prod(self.tables.layout.states[v] for v in group)

    def separators(self, plans: Sequence[SeparatorPlan]) -> SeparatorMoments:
        key = self._sizes, tuple(plans)
        read = reading(self.tables.layout, key, lambda number: self._separator_cells(plans, number))
        cores, cross, gram = read(self.tables.counts)
        rows = self.tables.known(cores.sum(dim=-1), [v for p in plans for v in p.core])
        core_mean, cross, gram = cores / rows[..., None], cross / rows[..., None, None], gram / self.rows
        near_mean = gram.diagonal(dim1=-2, dim2=-1)
        return SeparatorMoments(
            core_mean,
            near_mean,
            cross - core_mean.unsqueeze(-1) * cross.sum(dim=-2, keepdim=True),
            gram - near_mean.unsqueeze(-1) * near_mean.unsqueeze(-2),
            _inverse_root(core_mean),
            _inverse_root(near_mean),
            (core_mean > 0).to(torch.float64),
            rows,
        )

    def _separator_cells(self, plans: Sequence[SeparatorPlan], number: Number) -> list[Cells]:
        """Cells of E[φ], E[φηᵀ] and E[ηηᵀ], separators stacked."""
        cores = [self._joint_cells(p.core, (), number).reshape(-1) for p in plans]
        crosses = [
            np.concatenate(
                [self._joint_cells(p.core, g, number).reshape(self.dim(p.core), -1) for g in p.instrument], 1
            )
            for p in plans
        ]
        grams = [
            np.block([[self._pair_cells(a, b, number) for b in p.instrument] for a in p.instrument]) for p in plans
        ]
        return [np.stack(cores), np.stack(crosses), np.stack(grams)]

    def _pair_cells(self, a: Group, b: Group, number: Number) -> Cells:
        """Cells of E[η_a η_bᵀ]; where groups share variables, states that contradict each other have the cell 0."""
        union = tuple(dict.fromkeys((*a, *b)))
        sizes = self.near_dim(a), self.near_dim(b)
        if len(union) == len(a) + len(b):
            return number(union).reshape(sizes)
        result = np.zeros(sizes, dtype=np.int64)
        states = self.tables.layout.states
        result[_codes(union, a, states), _codes(union, b, states)] = number(union).reshape(-1)
        return result

    def _joint_cells(self, inside: Sequence[str], near: Group, number: Number) -> Cells:
        """Cells of a table of known states of inside variables, and all states of an instrument's."""
        wide = self.tables.layout.states
        return number((*inside, *near), [*(self.dims[v] for v in inside), *(wide[v] for v in near)])

    def below(self, wanted: Sequence[Sequence[Question]]) -> list[tuple[Tensor, Tensor]]:
        return [self._below(questions) for questions in wanted]

    def _below(self, questions: Sequence[Question]) -> tuple[Tensor, Tensor]:
        key = self._sizes, tuple((tuple(below), tuple(near)) for below, _, near in questions)
        read = reading(self.tables.layout, key, lambda number: self._below_cells(questions, number))
        (both,) = read(self.tables.counts)  # (questions, …, dims of the groups…, 1 + instrument dim)
        lead = self.tables.counts.ndim  # of questions and, where there are some, replicates
        leading, sizes = both.shape[:lead], both.shape[lead:-1]
        flat = both.flatten(lead, -2)
        rows = self.tables.known(flat[..., 0].sum(dim=-1), (v for below, _, _ in questions for g in below for v in g))
        near_mean = flat[..., 1:].sum(dim=-2) / rows.unsqueeze(-1)
        joint = both / rows.reshape(*leading, *[1] * (both.ndim - lead))
        if questions[0][1] is not None:
            for k, size in enumerate(sizes):  # the first dimension is compressed and goes to the end
                features = torch.stack([f[k] for _, f, _ in questions if f is not None])
                joint = joint.reshape(*leading, size, -1).mT @ features
            sizes = torch.Size([f.shape[-1] for f in questions[0][1]])
            joint = joint.reshape(*leading, -1, *sizes).movedim(lead, -1)
        mean = joint[..., 0]
        return mean, joint[..., 1:] - mean.unsqueeze(-1) * near_mean.reshape(*leading, *[1] * len(sizes), -1)

    def _below_cells(self, questions: Sequence[Question], number: Number) -> list[Cells]:
        """Cells of E[y] and, behind it, E[yηᵀ], with y the joint features of all groups below; questions stacked."""
        result = []
        for below, _, near in questions:
            names = [v for g in below for v in g]
            sizes = [self.dim(g) for g in below]
            parts = [self._joint_cells(names, g, number).reshape(*sizes, -1) for g in ((), *near)]
            result.append(np.concatenate(parts, axis=-1))
        return [np.stack(result)]


def _inverse_root(p: Tensor) -> Tensor:
    """1/√p, and 0 where p is 0."""
    return torch.where(p > 0, p.clamp(min=1e-300).rsqrt(), torch.zeros_like(p))


def _codes(union: Group, group: Group, states: Mapping[str, int]) -> Cells:
    """For each joint state of ``union`` the joint state of ``group``."""
    code = np.zeros([states[v] for v in union], dtype=np.int64)
    for v in group:
        axis = union.index(v)
        shape = [-1 if i == axis else 1 for i in range(len(union))]
        code = code * states[v] + np.arange(states[v]).reshape(shape)
    return code.reshape(-1)
