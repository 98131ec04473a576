"""Moments of one-hot features, read off joint probability tables."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchpbp.contraction import contract
from torchpbp.stage2.joint_tables import JointTables
from torchpbp.stage2.moments import Group, Moments, Question


class TableMoments(Moments):
    """Moments of one-hot features, read off joint probability tables.

    Blocks are computed once: neighbouring separators share most of them.

    Args:
        tables: joint tables of all groups asked for.
    """

    def __init__(self, tables: JointTables) -> None:
        self.tables = tables
        self.dims = tables.states
        self.rows = tables.rows
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
            p = self.mean(group)
            self._scale[group] = torch.where(p > 0, p.clamp(min=1e-300).rsqrt(), torch.zeros_like(p))
        return self._scale[group]

    instrument_scale = whitener

    def cross(self, a: Group, b: Group) -> Tensor:
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
        result[self._codes(union, a), self._codes(union, b)] = table.reshape(-1)
        return result

    def _codes(self, union: Group, group: Group) -> Tensor:
        """For each joint state of ``union`` the joint state of ``group``."""
        code = torch.zeros([self.dims[v] for v in union], dtype=torch.int64)
        for v in group:
            axis = union.index(v)
            shape = [-1 if i == axis else 1 for i in range(len(union))]
            code = code * self.dims[v] + torch.arange(self.dims[v]).reshape(shape)
        return code.reshape(-1)

    def responses(self, wanted: Sequence[Question]) -> list[Tensor]:
        return [self._response(*question) for question in wanted]

    def _response(self, below: Sequence[Group], features: Sequence[Tensor] | None, near: Sequence[Group]) -> Tensor:
        names = [v for g in below for v in g]
        sizes = [self.dim(g) for g in below]
        table = torch.cat([self.tables.table((*names, *g)).reshape(*sizes, self.dim(g)) for g in near], dim=-1)
        if features is None:
            return table
        raw = [f"raw{i}" for i in range(len(below))]
        small = [f"small{i}" for i in range(len(below))]
        pairs = list(zip(raw, small, strict=True))
        return contract([table, *features], [(*raw, "rest"), *pairs], (*small, "rest"))
