"""Training rows in memory, and features of many groups of variables at once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from torchpbp.features.encoded import EncodedMap
from torchpbp.features.maps import FeatureMap, OneHot
from torchpbp.inference.leaf_features import LeafFeatures
from torchpbp.moments.distinct_rows import numbered
from torchpbp.planning.plan import Group


def row_products(parts: Sequence[Tensor]) -> Tensor:
    """Row-wise Kronecker product of (…, d_k) tensors, (…, ∏ d_k)."""
    result = parts[0]
    for part in parts[1:]:
        result = (result.unsqueeze(-1) * part.unsqueeze(-2)).flatten(-2)
    return result


def consecutive(sizes: Mapping[str, int]) -> dict[str, slice]:
    """Consecutive ranges of these sizes."""
    ends = accumulate(sizes.values())
    return {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}


class TrainingRows:
    """Training rows of regressors: states if all variables are discrete, otherwise features of all variables.

    Args:
        names: variables, in the order of columns.
        maps: feature map of each variable.
        states: (rows, variables) int64, if all maps are one-hot.
        features: (rows, all feature dimensions) otherwise.
        weights: (rows,) weights of the rows; equal by default.
        reals: (rows, variables) states and values as float64, if some variable is continuous; a vector or image has a column
            for each entry.
    """

    def __init__(
        self,
        names: Sequence[str],
        maps: Mapping[str, FeatureMap],
        states: Tensor | None = None,
        features: Tensor | None = None,
        weights: Tensor | None = None,
        reals: Tensor | None = None,
    ) -> None:
        self.names, self.maps = tuple(names), dict(maps)
        self.states, self.features, self.weights, self.reals = states, features, weights, reals

    @classmethod
    def of(
        cls, table: Mapping[str, Tensor], maps: Mapping[str, FeatureMap], weights: Tensor | None = None
    ) -> TrainingRows:
        """Rows of a table, name -> (rows,) states or values."""
        if all(isinstance(m, OneHot) for m in maps.values()):
            return cls(list(maps), maps, states=torch.stack([table[v] for v in maps], dim=1), weights=weights)
        features = torch.cat([m.features(table[v]) for v, m in maps.items()], dim=1)
        reals = torch.cat([table[v].double().reshape(len(features), -1) for v in maps], dim=1)
        return cls(list(maps), maps, features=features, weights=weights, reals=reals)

    def __len__(self) -> int:
        return len(self.content)

    @property
    def content(self) -> Tensor:
        """States, or features if some variable is continuous."""
        content = self.features if self.states is None else self.states
        assert content is not None
        return content

    @property
    def values(self) -> Tensor:
        """(rows, variables) states and values as float64; a vector or image has a column for each entry."""
        return self.content.double() if self.reals is None else self.reals

    @property
    def device(self) -> torch.device:
        return self.content.device

    @property
    def counts(self) -> Tensor:
        """(rows,) weights as float64; 1 for each row by default."""
        if self.weights is None:
            return torch.ones(len(self), dtype=torch.float64, device=self.device)
        return self.weights.double()

    def leaves(self, dtype: torch.dtype = torch.float64) -> LeafFeatures:
        """Features of all variables."""
        dims = [self.maps[v].dim for v in self.names]
        lines = self.features
        if self.states is not None:
            start = torch.tensor([0, *itertools.accumulate(dims)][:-1], device=self.device)
            lines = torch.zeros(len(self), sum(dims), dtype=dtype, device=self.device)
            lines.scatter_(1, self.states + start, 1.0)
        assert lines is not None
        features = dict(zip(self.names, lines.to(dtype).split(dims, dim=1), strict=True))
        # The constant in front of encoded features is no input.
        inputs = {v: x[:, isinstance(self.maps[v], EncodedMap) :] for v, x in features.items()}
        seen = torch.ones(len(self), len(dims), dtype=torch.bool, device=self.device)
        return LeafFeatures(features, inputs, seen)

    def positions(self, size: int) -> tuple[Tensor, ...]:
        """Indices of the rows, in batches of ``size``."""
        return torch.split(torch.arange(len(self), device=self.device), size)

    def __getitem__(self, index: Tensor | slice) -> TrainingRows:
        return self._each(lambda tensor: tensor[index])

    def to(self, device: torch.device | str) -> TrainingRows:
        return self._each(lambda tensor: tensor.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> TrainingRows:
        tensors = (self.states, self.features, self.weights, self.reals)
        return TrainingRows(self.names, self.maps, *[None if t is None else change(t) for t in tensors])

    def distinct(self) -> TrainingRows:
        """Distinct rows of states, weighted by their numbers of occurrences."""
        assert self.states is not None
        number, chosen = numbered(self.states.unbind(dim=1))
        counts = number.bincount(minlength=len(chosen)).double()
        return TrainingRows(self.names, self.maps, self.states[chosen], weights=counts)

    def given(self, name: str, state: int | None) -> TrainingRows:
        """Rows of the other variables in which ``name`` has a state (None: all rows), with weights that sum to 1."""
        assert self.states is not None
        assert self.weights is not None
        column = self.names.index(name)
        chosen = slice(None) if state is None else self.states[:, column] == state
        others = [i for i in range(len(self.names)) if i != column]
        weights = self.weights[chosen]
        names = [self.names[i] for i in others]
        maps = {v: self.maps[v] for v in names}
        return TrainingRows(names, maps, self.states[chosen][:, others], weights=weights / weights.sum())

    def value_columns(self) -> dict[str, slice]:
        """Columns of each variable in ``values``."""
        maps = {v: self.maps[v] for v in self.names}
        return consecutive({v: math.prod(m.shape) if isinstance(m, EncodedMap) else 1 for v, m in maps.items()})

    def columns(self) -> dict[str, slice]:
        """Columns of each variable's features in ``features``."""
        return consecutive({v: self.maps[v].dim for v in self.names})


class Projections(nn.Module):
    """θ_s = M_sᵀφ_s for S groups of variables of equal size, for batches of rows.

    The feature of a group is the outer product of its variables' features. For one-hot features the projection is a lookup: row
    ``code`` of M_s, where ``code`` numbers the group's joint states.

    Args:
        groups: S groups of variables.
        matrices: (S, features of a group, m).
        rows: rows with the same variables as those to project.
    """

    matrices: Tensor
    where: Tensor
    strides: Tensor

    def __init__(self, groups: Sequence[Group], matrices: Tensor, rows: TrainingRows) -> None:
        super().__init__()
        self.register_buffer("matrices", matrices)
        self.coded = rows.states is not None
        sizes = [[rows.maps[v].dim for v in g] for g in groups]
        if self.coded:
            most = max((len(g) for g in groups), default=0)
            position = {v: i for i, v in enumerate(rows.names)}
            strides, where = ([[0] * most for _ in groups] for _ in range(2))
            for s, group in enumerate(groups):
                step = 1
                for j in range(len(group) - 1, -1, -1):
                    where[s][j], strides[s][j] = position[group[j]], step
                    step *= sizes[s][j]
            for name, table in (("where", where), ("strides", strides)):
                numbers = torch.tensor(table, dtype=torch.int64, device=matrices.device).reshape(len(groups), most)
                self.register_buffer(name, numbers)
        else:
            self.sizes = sizes[0]
            columns = rows.columns()
            for j in range(len(self.sizes)):
                index = [list(range(columns[g[j]].start, columns[g[j]].stop)) for g in groups]
                self.register_buffer(f"where{j}", torch.tensor(index, device=matrices.device))

    def forward(self, rows: TrainingRows) -> Tensor:
        """(rows, S, m)."""
        count, size, m = self.matrices.shape
        if rows.states is not None:
            codes = (rows.states[:, self.where] * self.strides).sum(dim=-1)  # (rows, S)
            offsets = torch.arange(count, device=codes.device) * size
            return nn.functional.embedding(codes + offsets, self.matrices.reshape(count * size, m))
        assert rows.features is not None
        # (rows, S, dim of each variable)
        parts = [rows.features[:, getattr(self, f"where{j}")] for j in range(len(self.sizes))]
        feature = row_products(parts) if parts else rows.features.new_ones(len(rows), count, 1)
        return torch.einsum("bsd,sdm->bsm", feature.to(self.matrices), self.matrices)


def shape_key(groups: Sequence[Group], matrices: Sequence[Tensor], rows: TrainingRows) -> tuple[object, ...]:
    """Key that is equal for products of projections that can be computed at once."""
    shapes = tuple(tuple(m.shape) for m in matrices)
    if rows.states is not None:
        return shapes
    return (shapes, tuple(tuple(rows.maps[v].dim for v in g) for g in groups))


class ProductTargets(nn.Module):
    """y_s = ⊗_k θ_{s,k} − offset_s for S separators of equal shape.

    Args:
        factors: projections of all S separators, for each k.
        offset: (S, size of y).
    """

    offset: Tensor

    def __init__(self, factors: Sequence[Projections], offset: Tensor) -> None:
        super().__init__()
        self.factors = nn.ModuleList(factors)
        self.register_buffer("offset", offset)

    def forward(self, rows: TrainingRows) -> Tensor:
        """(rows, S, size of y)."""
        return row_products([factor(rows) for factor in self.factors]) - self.offset
