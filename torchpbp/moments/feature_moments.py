"""Moments of arbitrary features, such as kernel features, summed over the rows.

With missing values, each separator is learned from the rows that observe its core group and the groups below it. Stages 1 and 2
then use the same rows, and selection of these rows by outside variables causes no bias. The instrument may be incomplete, since
any function of the observed outside is a valid instrument: a missing value has the mean features of its variable. Moments without
an instrument, such as the root's, are averaged over the rows that observe them, which is unbiased for values missing completely at
random.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from torchpbp.distributed import sum_over_processes
from torchpbp.errors import DataError, StructureError
from torchpbp.features.maps import FeatureMap
from torchpbp.grouping import grouped
from torchpbp.inputs.missing_values import observed
from torchpbp.moments.moments import Moments, Question, SeparatorMoments
from torchpbp.moments.rows import row_products
from torchpbp.moments.table_layout import LARGEST_TABLE
from torchpbp.planning.plan import Group, SeparatorPlan

Needed = frozenset[str]
"""Variables with missing values that a row must observe to be counted; empty: every row is counted."""


class FeatureMoments(Moments):
    """Moments of arbitrary features, accumulated batch by batch over repeated passes through the data.

    Args:
        maps: feature map of each variable.
        batches: returns a new iterator over mini-batches, name -> (rows,) values; -1 or NaN where missing.
        pairs: pairs of groups whose second moments are needed in addition to those of ``plans``.
        whitening: regularisation κ of the whitening (C + κI)^{-1/2}, in units of the features.
        missing_features: for each variable with missing values the (dim,) features of a missing value in an instrument.
        plans: separators with the groups below each, for :meth:`separators` and :meth:`below`.
        weight: returns (rows,) weights for the rows of a mini-batch; 1 by default.
        device: device of the mini-batches and maps.
    """

    def __init__(
        self,
        maps: Mapping[str, FeatureMap],
        batches: Callable[[], Iterator[Mapping[str, Tensor]]],
        pairs: Iterable[tuple[Group, Group]],
        whitening: float,
        missing_features: Mapping[str, Tensor] | None = None,
        plans: Iterable[tuple[SeparatorPlan, Sequence[Group]]] = (),
        weight: Callable[[Mapping[str, Tensor]], Tensor] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self._like = torch.empty(0, dtype=torch.float64, device=device)
        self._maps, self._batches, self._kappa, self._weight = dict(maps), batches, whitening, weight
        self._missing_features = dict(missing_features or {})
        self.dims = self.near_dims = {v: m.dim for v, m in maps.items()}
        self._below: dict[tuple[Sequence[Group], Sequence[Group]], Needed] = {}
        self._inside: dict[tuple[int, Group, Sequence[Group]], Needed] = {}
        wanted: dict[tuple[Needed, Group, Group], None] = {}

        def want(needed: Needed, a: Group, b: Group) -> None:
            if (needed, b, a) not in wanted:
                wanted[needed, a, b] = None

        for a, b in pairs:
            want(self._needed(a, b), a, b)
        for plan, below in plans:
            inside, question = (plan.node, plan.core, plan.instrument), (tuple(below), tuple(plan.instrument))
            needed = self._needed(plan.core, *below)
            self._inside[inside] = self._inside.get(inside, frozenset()) | needed
            self._below[question] = self._below.get(question, frozenset()) | needed
        for (_, core, near), needed in self._inside.items():
            for i, group in enumerate(near):
                want(needed, core, group)
                for other in near[i:]:
                    want(needed, group, other)
            want(needed, core, core)
        self._sum(list(wanted))

    def _needed(self, *groups: Group) -> Needed:
        return frozenset(v for g in groups for v in g if v in self._missing_features)

    def _sum(self, wanted: Sequence[tuple[Needed, Group, Group]]) -> None:
        """Compute first and second moments in one pass."""
        by_rows = {n: [(a, b) for _, a, b in x] for n, x in grouped(wanted, lambda x: x[0]).items()}
        groups = {n: list(dict.fromkeys(g for pair in pairs for g in pair)) for n, pairs in by_rows.items()}
        sums = {(n, g): self._like.new_zeros(self.dim(g)) for n, members in groups.items() for g in members}
        products = {(n, a, b): self._like.new_zeros(self.dim(a), self.dim(b)) for n, a, b in wanted}
        counts = dict.fromkeys(by_rows, 0.0)
        rows = 0.0
        for weights, seen, features in self._features(list(dict.fromkeys(g for x in groups.values() for g in x))):
            rows += float(weights.sum())
            for needed, pairs in by_rows.items():
                row_weights, chosen = _select(weights, features, groups[needed], seen, needed)
                counts[needed] += float(row_weights.sum())
                weighted = {g: self._weighted(row_weights, chosen[g]) for g in groups[needed]}
                for g in groups[needed]:
                    sums[needed, g] += weighted[g].sum(dim=0)
                for a, b in pairs:
                    products[needed, a, b] += weighted[a].T @ chosen[b]
        total = sum_over_processes(torch.tensor([rows, *counts.values()], dtype=torch.float64, device="cpu"))
        for part in (*sums.values(), *products.values()):
            sum_over_processes(part)
        self.rows = float(total[0])
        self._counts = dict(zip(counts, total[1:].tolist(), strict=True))
        for needed, count in self._counts.items():
            _check_seen(count, needed)
        self._mean = {(n, g): s / self._counts[n] for (n, g), s in sums.items()}
        self._cross = {(n, a, b): p / self._counts[n] for (n, a, b), p in products.items()}

    def _features(self, groups: Sequence[Group]) -> Iterator[tuple[Tensor, dict[str, Tensor], dict[Group, Tensor]]]:
        """For each batch the weights of its rows, masks of incomplete variables, and features of groups."""
        names = list(dict.fromkeys(v for g in groups for v in g))
        for batch in self._batches():
            count = len(next(iter(batch.values())))
            seen = {v: observed(batch[v]) for v in self._missing_features}
            single = {v: self._single(v, batch[v], seen.get(v)) for v in names}
            one = self._like.new_ones(count, 1)
            weights = one.squeeze(1) if self._weight is None else self._weight(batch)
            yield weights, seen, {g: row_products([one, *(single[v] for v in g)]) for g in groups}

    def _weighted(self, weights: Tensor, features: Tensor) -> Tensor:
        """Rows times their weights."""
        return features if self._weight is None else weights.unsqueeze(1) * features

    def _single(self, name: str, values: Tensor, seen: Tensor | None) -> Tensor:
        if seen is None or bool(seen.all()):
            return self._maps[name].features(values)
        result = self._missing_features[name].to(torch.float64).repeat(len(values), 1)
        result[seen] = self._maps[name].features(values[seen])
        return result

    def ones(self, group: Group) -> Tensor:
        result = self._like.new_ones(1)
        for v in group:
            result = torch.kron(result, self._maps[v].missing().to(result))
        return result

    def mean(self, group: Group) -> Tensor:
        return self._mean[self._needed(group), group]

    def _block(self, needed: Needed, a: Group, b: Group) -> Tensor:
        return self._cross[needed, a, b] if (needed, a, b) in self._cross else self._cross[needed, b, a].T

    def instrument_scale(self, group: Group) -> Tensor:
        """Ones: kernel features are already scaled by smoothness."""
        return self._like.new_ones(self.dim(group))

    def whitener(self, group: Group) -> Tensor:
        return self._whitener(self._block(self._needed(group), group, group))

    def _whitener(self, second: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(second)
        return (vectors * (values.clamp(min=0) + self._kappa).rsqrt()) @ vectors.T

    def separators(self, plans: Sequence[SeparatorPlan]) -> SeparatorMoments:
        needed = [self._inside.get((p.node, p.core, p.instrument), self._needed(p.core)) for p in plans]
        pairs = list(zip(plans, needed, strict=True))
        core_mean = torch.stack([self._mean[n, p.core] for p, n in pairs])
        near_mean = torch.stack([torch.cat([self._mean[n, g] for g in p.instrument]) for p, n in pairs])
        crosses = [torch.cat([self._block(n, p.core, g) for g in p.instrument], dim=1) for p, n in pairs]
        grams = [
            torch.cat([torch.cat([self._block(n, a, b) for b in p.instrument], dim=1) for a in p.instrument])
            for p, n in pairs
        ]
        return SeparatorMoments(
            core_mean,
            near_mean,
            torch.stack(crosses) - core_mean.unsqueeze(2) * near_mean.unsqueeze(1),
            torch.stack(grams) - near_mean.unsqueeze(2) * near_mean.unsqueeze(1),
            torch.stack([self._whitener(self._block(n, p.core, p.core)) for p, n in pairs]),
            torch.ones_like(near_mean),
            torch.stack([self.ones(p.core) for p in plans]),
            self._like.new_tensor([float(self._counts[n]) for n in needed]),
        )

    def below(self, wanted: Sequence[Sequence[Question]]) -> list[tuple[Tensor, Tensor]]:
        questions = [q for group in wanted for q in group]
        needed = [self._below.get((tuple(b), tuple(near)), self._needed(*b)) for b, _, near in questions]
        answers = iter(self._third(questions, needed))
        result = []
        for group in wanted:
            part = [next(answers) for _ in group]
            result.append((torch.stack([m for m, _ in part]), torch.stack([c for _, c in part])))
        return result

    def _third(self, questions: Sequence[Question], needed: Sequence[Needed]) -> list[tuple[Tensor, Tensor]]:
        """E[y] and Cov[y, η] of each question over the rows that observe the needed variables."""
        groups = list(dict.fromkeys(g for below, _, near in questions for g in (*below, *near)))
        totals: list[tuple[Tensor, Tensor, Tensor]] = []
        for below, features, near in questions:
            sizes = [f.shape[1] for f in features] if features is not None else [self.dim(g) for g in below]
            width = sum(self.dim(g) for g in near)
            if math.prod(sizes) * width > LARGEST_TABLE:
                raise StructureError(
                    f"Learning would need a moment with {math.prod(sizes) * width:,} entries, at most {LARGEST_TABLE:,} "
                    "are allowed. Use a smaller rank, fewer features or fewer instruments."
                )
            like = self._like
            totals.append((like.new_zeros(sizes), like.new_zeros(*sizes, width), like.new_zeros(width)))
        counts = self._like.new_zeros(len(questions))
        for weights, seen, batch in self._features(groups):
            for k, ((below, features, near), total) in enumerate(zip(questions, totals, strict=True)):
                row_weights, chosen = _select(weights, batch, [*below, *near], seen, needed[k])
                parts = [chosen[g] if features is None else chosen[g] @ features[i] for i, g in enumerate(below)]
                left = self._weighted(row_weights, row_products([row_weights.new_ones(len(row_weights), 1), *parts]))
                right = torch.cat([left[:, :0], *(chosen[g] for g in near)], dim=1)
                counts[k] += row_weights.sum()
                total[0].add_(left.sum(dim=0).reshape(total[0].shape))
                total[1].add_((left.T @ right).reshape(total[1].shape))
                total[2].add_(self._weighted(row_weights, right).sum(dim=0))
        sum_over_processes(counts)
        result = []
        for rows, total, inside in zip(counts.tolist(), totals, needed, strict=True):
            _check_seen(rows, inside)
            mean, cross, near_mean = (sum_over_processes(part) / rows for part in total)
            result.append((mean, cross - mean.unsqueeze(-1) * near_mean))
        return result


def _check_seen(count: float, needed: Needed) -> None:
    """Raise a DataError for moments over no rows."""
    if count == 0:
        raise DataError(
            f"No row observes all of {', '.join(sorted(needed))}, which must be seen together to be learned. Give more rows, or "
            "a graph whose core groups are smaller."
        )


def _select(
    weights: Tensor,
    features: Mapping[Group, Tensor],
    groups: Iterable[Group],
    seen: Mapping[str, Tensor],
    needed: Needed,
) -> tuple[Tensor, dict[Group, Tensor]]:
    """Weights of the rows that observe all needed variables, and features of groups in these rows."""
    wanted = dict.fromkeys(groups)
    if not needed:
        return weights, {g: features[g] for g in wanted}
    chosen = torch.stack([seen[v] for v in needed]).all(dim=0).nonzero().squeeze(1)
    return weights[chosen], {g: features[g][chosen] for g in wanted}
