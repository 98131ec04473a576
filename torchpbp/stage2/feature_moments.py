"""Moments of arbitrary features, such as those of kernels, summed over the rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from torchpbp.distributed import sum_over_processes
from torchpbp.errors import StructureError
from torchpbp.features.maps import FeatureMap
from torchpbp.stage2.moments import Group, Moments, Question
from torchpbp.stage2.table_layout import LARGEST_TABLE


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
