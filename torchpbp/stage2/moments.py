"""Moments of features of groups of variables: what two-stage regression needs to know of the data."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from torchpbp.contraction import contract
from torchpbp.distributed import sum_over_processes
from torchpbp.errors import StructureError
from torchpbp.features.maps import FeatureMap
from torchpbp.stage2.joint_tables import LARGEST_TABLE, JointTables

Group = tuple[str, ...]
Question = tuple[Sequence[Group], Sequence[Tensor] | None, Sequence[Group]]
"""Groups below, their compressions, and groups of the instrument η: a third moment."""


class Moments(ABC):
    """First, second and third moments of group features φ_g, the outer products of their variables' features.

    Attributes:
        dims: feature dimensions of each variable.
        rows: number of rows behind the moments.
    """

    dims: Mapping[str, int]
    rows: float

    def dim(self, group: Group) -> int:
        """Dimensions of a group's features."""
        return math.prod(self.dims[v] for v in group)

    @abstractmethod
    def ones(self, group: Group) -> Tensor:
        """(dim,) vector c with c·φ = 1."""

    @abstractmethod
    def mean(self, group: Group) -> Tensor:
        """E[φ_g]."""

    @abstractmethod
    def cross(self, a: Group, b: Group) -> Tensor:
        """E[φ_a φ_bᵀ]; the groups may share variables."""

    @abstractmethod
    def instrument_scale(self, group: Group) -> Tensor:
        """(dim,) factors that bring an instrument to a common scale, on which ridge penalties are meant."""

    @abstractmethod
    def whitener(self, group: Group) -> Tensor:
        """Factors (dim,) or a matrix (dim, dim) that bring features to unit second moment."""

    @abstractmethod
    def responses(self, wanted: Sequence[Question]) -> list[Tensor]:
        """E[(⊗_k θ_k) ηᵀ] with θ_k = features_kᵀ φ_{below_k}, or θ_k = φ_{below_k} if features is None.

        Returns:
            For each question (sizes of θ…, dims of the instrument's groups, joined).
        """


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


class FeatureMoments(Moments):
    """Moments of arbitrary features, accumulated batch by batch over repeated passes through the data.

    Args:
        maps: feature map of each variable.
        batches: gives a fresh iterator over mini-batches, name -> (rows,) values.
        pairs: pairs of groups whose second moments will be asked for.
        whitening: regularisation κ of the whitening (C + κI)^{-1/2}, in units of the features.
    """

    def __init__(
        self,
        maps: Mapping[str, FeatureMap],
        batches: Callable[[], Iterator[Mapping[str, Tensor]]],
        pairs: Iterable[tuple[Group, Group]],
        whitening: float,
    ) -> None:
        self._maps, self._batches, self._kappa = dict(maps), batches, whitening
        self.dims = {v: m.dim for v, m in maps.items()}
        wanted = list(dict.fromkeys(pairs))
        groups = list(dict.fromkeys(g for pair in wanted for g in pair))
        sums = {g: torch.zeros(self.dim(g), dtype=torch.float64) for g in groups}
        products = {pair: torch.zeros(self.dim(pair[0]), self.dim(pair[1]), dtype=torch.float64) for pair in wanted}
        rows = 0
        for features in self._features(groups):
            for g in groups:
                sums[g] += features[g].sum(dim=0)
            for a, b in wanted:
                products[a, b] += features[a].T @ features[b]
            rows += len(features[groups[0]])
        rows = int(sum_over_processes(torch.tensor(rows)))
        for total in (*sums.values(), *products.values()):
            sum_over_processes(total)
        self.rows = float(rows)
        self._mean = {g: s / rows for g, s in sums.items()}
        self._cross = {pair: p / rows for pair, p in products.items()}

    def _features(self, groups: Sequence[Group]) -> Iterator[dict[Group, Tensor]]:
        """Features of groups, batch by batch."""
        for batch in self._batches():
            single = {v: self._maps[v].features(batch[v]) for v in dict.fromkeys(v for g in groups for v in g)}
            count = len(next(iter(batch.values())))
            yield {g: row_products([single[v] for v in g], count) for g in groups}

    def ones(self, group: Group) -> Tensor:
        result = torch.ones(1, dtype=torch.float64)
        for v in group:
            result = torch.kron(result, self._maps[v].missing())
        return result

    def mean(self, group: Group) -> Tensor:
        return self._mean[group]

    def cross(self, a: Group, b: Group) -> Tensor:
        return self._cross[a, b] if (a, b) in self._cross else self._cross[b, a].T

    def instrument_scale(self, group: Group) -> Tensor:
        """Ones: a kernel's features are already scaled by how smooth they are."""
        return torch.ones(self.dim(group), dtype=torch.float64)

    def whitener(self, group: Group) -> Tensor:
        values, vectors = torch.linalg.eigh(self.cross(group, group))
        return (vectors * (values.clamp(min=0) + self._kappa).rsqrt()) @ vectors.T

    def responses(self, wanted: Sequence[Question]) -> list[Tensor]:
        groups = list(dict.fromkeys(g for below, _, near in wanted for g in (*below, *near)))
        sums: list[Tensor] = []
        for below, features, near in wanted:
            sizes = [f.shape[1] for f in features] if features is not None else [self.dim(g) for g in below]
            width = sum(self.dim(g) for g in near)
            if math.prod(sizes) * width > LARGEST_TABLE:
                raise StructureError(
                    f"Learning would need a moment with {math.prod(sizes) * width:,} entries, at most {LARGEST_TABLE:,} "
                    "are allowed. Use a smaller rank, fewer features or fewer instruments."
                )
            sums.append(torch.zeros(*sizes, width, dtype=torch.float64))
        for batch in self._features(groups):
            for total, (below, features, near) in zip(sums, wanted, strict=True):
                parts = [batch[g] if features is None else batch[g] @ features[k] for k, g in enumerate(below)]
                left = row_products(parts, len(batch[groups[0]]))
                right = torch.cat([batch[g] for g in near], dim=1)
                total += (left.T @ right).reshape(total.shape)
        return [sum_over_processes(total) / self.rows for total in sums]


def row_products(parts: Sequence[Tensor], rows: int) -> Tensor:
    """Row-wise Kronecker product of (rows, d_k) matrices: (rows, ∏ d_k)."""
    result = torch.ones(rows, 1, dtype=torch.float64)
    for part in parts:
        result = (result.unsqueeze(2) * part.unsqueeze(1)).reshape(rows, -1)
    return result
