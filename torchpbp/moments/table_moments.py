"""Moments of one-hot features, read off joint probability tables."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np
import torch
from torch import Tensor

from torchpbp.exact.contraction import contract
from torchpbp.exact.prior import cross_table, joint_codes
from torchpbp.moments.joint_tables import JointTables
from torchpbp.moments.moments import Moments, Question, SeparatorMoments
from torchpbp.moments.table_reading import Cells, CellsOf, reading
from torchpbp.planning.plan import Group, SeparatorPlan


class TableMoments(Moments):
    """Moments of one-hot features, read off joint probability tables.

    Blocks are cached, since neighbouring separators share most of them.

    In instruments, "missing" is an additional state of each variable, so every row has an instrument. Moments of core groups
    and of products below are averaged over the rows that observe these. They are unbiased for values missing completely at
    random, and also if the missingness of an outside value depends on the value itself.

    Args:
        tables: joint tables of all groups. Counts may have the shape (cells, replicates), for several tables of equal numbers
            of rows; moments of separators then have a dimension of replicates after the dimension of separators.
    """

    def __init__(self, tables: JointTables) -> None:
        self.tables = tables
        self.dims, self.near_dims = tables.states, tables.layout.states
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
        """1/√p of each joint state, 0 for p = 0; it gives rare and common states equal weight."""
        if group not in self._scale:
            self._scale[group] = _inverse_root(self.mean(group))
        return self._scale[group]

    instrument_scale = whitener

    def cross(self, a: Group, b: Group) -> Tensor:
        """E[φ_a φ_bᵀ]; the groups may share variables."""
        if (b, a) in self._cross:
            return self._cross[b, a].T
        if (a, b) not in self._cross:
            union = tuple(dict.fromkeys((*a, *b)))
            self._cross[a, b] = cross_table(self.tables.table(union), union, a, b, self.dims)
        return self._cross[a, b]

    def third(self, below: Sequence[Group], features: Sequence[Tensor] | None, near: Sequence[Group]) -> Tensor:
        """Uncentred E[(⊗_k θ_k) ηᵀ]: (sizes of θ…, instrument dim)."""
        names = [v for g in below for v in g]
        sizes = [self.dim(g) for g in below]
        table = torch.cat([self.tables.table((*names, *g)).reshape(*sizes, self.dim(g)) for g in near], dim=-1)
        if features is None:
            return table
        raw = [f"raw{i}" for i in range(len(below))]
        small = [f"small{i}" for i in range(len(below))]
        pairs = list(zip(raw, small, strict=True))
        return contract([table, *features], [(*raw, "rest"), *pairs], (*small, "rest"))

    def separators(self, plans: Sequence[SeparatorPlan]) -> SeparatorMoments:
        key = self._sizes, tuple(plans)
        read = reading(self.tables.layout, key, lambda cells_of: self._separator_cells(plans, cells_of))
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

    def _separator_cells(self, plans: Sequence[SeparatorPlan], cells_of: CellsOf) -> list[Cells]:
        """Cells of E[φ], E[φηᵀ] and E[ηηᵀ], separators stacked."""
        parts, order = [], self._alike([(p.core, *p.instrument) for p in plans])
        for members in order:
            chosen = [plans[i] for i in members]
            cores = self._joint_cells([p.core for p in chosen], [()] * len(chosen), cells_of)[..., 0]
            near = [list(groups) for groups in zip(*(p.instrument for p in chosen), strict=True)]
            cross = [self._joint_cells([p.core for p in chosen], groups, cells_of) for groups in near]
            parts.append((cores, np.concatenate(cross, axis=-1), self._gram_cells(near, cells_of)))
        return [_in_order(arrays, order) for arrays in zip(*parts, strict=True)]

    def _gram_cells(self, near: Sequence[list[Group]], cells_of: CellsOf) -> Cells:
        """(separators, instrument dim, instrument dim) cells of E[ηηᵀ], from each position's groups."""
        rows: list[list[Cells]] = [[] for _ in near]
        for i, a in enumerate(near):
            for j, b in enumerate(near):
                rows[i].append(rows[j][i].swapaxes(1, 2) if j < i else self._pair_cells(a, b, cells_of))
        return np.concatenate([np.concatenate(row, axis=2) for row in rows], axis=1)

    def _pair_cells(self, a: Sequence[Group], b: Sequence[Group], cells_of: CellsOf) -> Cells:
        """Cells of E[η_a η_bᵀ]; contradictory states of groups with common variables have the cell 0."""
        states, (first, second) = self.tables.layout.states, (a[0], b[0])
        unions = [tuple(dict.fromkeys((*x, *y))) for x, y in zip(a, b, strict=True)]
        cells = cells_of(unions, [states[v] for v in unions[0]])
        sizes = len(a), *(math.prod(states[v] for v in group) for group in (first, second))
        if len(unions[0]) == len(first) + len(second):
            return cells.reshape(sizes)
        result = np.zeros(sizes, dtype=cells.dtype)
        row, column = (joint_codes(unions[0], group, states) for group in (first, second))
        result[:, row, column] = cells.reshape(len(a), -1)
        return result

    def _joint_cells(self, inside: Sequence[Sequence[str]], near: Sequence[Group], cells_of: CellsOf) -> Cells:
        """(tables, inside dim, near dim) cells for observed states of inside variables, and all states of an instrument's."""
        wide = self.tables.layout.states
        sizes = [*(self.dims[v] for v in inside[0]), *(wide[v] for v in near[0])]
        cells = cells_of([(*x, *y) for x, y in zip(inside, near, strict=True)], sizes)
        return cells.reshape(len(inside), -1, math.prod(wide[v] for v in near[0]))

    def below(self, wanted: Sequence[Sequence[Question]]) -> list[tuple[Tensor, Tensor]]:
        return [self._below(questions) for questions in wanted]

    def _below(self, questions: Sequence[Question]) -> tuple[Tensor, Tensor]:
        key = self._sizes, tuple((tuple(below), tuple(near)) for below, _, near in questions)
        read = reading(self.tables.layout, key, lambda cells_of: self._below_cells(questions, cells_of))
        (both,) = read(self.tables.counts)  # (questions, …, dims of the groups…, 1 + instrument dim)
        lead = self.tables.counts.ndim  # dimensions of questions and, if any, replicates
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

    def _below_cells(self, questions: Sequence[Question], cells_of: CellsOf) -> list[Cells]:
        """Cells of E[y] followed by E[yηᵀ], where y are the joint features of all groups below; questions stacked."""
        inside = [tuple(v for g in below for v in g) for below, _, _ in questions]
        parts, order = [], self._alike([(x, *near) for x, (_, _, near) in zip(inside, questions, strict=True)])
        for members in order:
            names = [inside[i] for i in members]
            near = zip(*(((), *questions[i][2]) for i in members), strict=True)
            parts.append(np.concatenate([self._joint_cells(names, groups, cells_of) for groups in near], axis=-1))
        cells = _in_order(parts, order)
        return [cells.reshape(len(questions), *(self.dim(g) for g in questions[0][0]), cells.shape[-1])]

    def _alike(self, groups: Sequence[Sequence[Group]]) -> list[list[int]]:
        """Indices of lists of groups, grouped by equality up to names of variables."""
        wide, result = self.tables.layout.states, dict[Hashable, list[int]]()
        for i, several in enumerate(groups):
            place = {v: k for k, v in enumerate(dict.fromkeys(v for group in several for v in group))}
            key = tuple(tuple((place[v], self.dims[v], wide[v]) for v in group) for group in several)
            result.setdefault(key, []).append(i)
        return list(result.values())


def _in_order(parts: Sequence[Cells], order: Sequence[Sequence[int]]) -> Cells:
    """Arrays concatenated along the first dimension and sorted by these indices."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)[np.argsort(np.concatenate(order))]


def _inverse_root(p: Tensor) -> Tensor:
    """1/√p, and 0 where p is 0."""
    return torch.where(p > 0, p.clamp(min=1e-300).rsqrt(), torch.zeros_like(p))
