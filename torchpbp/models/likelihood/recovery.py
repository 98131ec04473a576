"""Tables of all families from moments: a start for the likelihood, in closed form.

For a latent with k states, the recovery computes forms ζ of its views' indicators with E[ζ | h] = e_h. Then P(x, h) = E[1_x ζᵀ]
for x in another view, and the table of a family is the mean of the product of its members' forms. Three views determine ζ by the
eigenvectors of slices of a k × k × k tensor; two views determine it up to a basis, which does not affect answers about observables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchpbp.distributed import gather_rows
from torchpbp.graph.domains import Scope
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.graph.views import Separation, Views, find_views, references
from torchpbp.learning.ridge import equal_shapes
from torchpbp.models.likelihood.moments import FormMoments

SMALLEST_SHARE = 0.005
"""Smallest share of a state; decompositions with smaller shares are rejected as noise."""
DIRECTIONS = 8
"""Number of random combinations of slices for eigenvectors."""
OUTERMOST = 0.02
"""Share of the outermost rows, by weight, excluded from corners of the predictions."""
SPREAD = 1.5
"""Points on each axis, in standard deviations, added to the candidates for corners."""
MIXING = 0.1
"""Share of the average and of the uniform distribution in recovered tables, because EM never leaves a zero."""


@dataclass(frozen=True)
class LatentStart:
    """Recovered conditional distributions of a latent's views.

    Args:
        views: groups of observables that are independent given the latent.
        strength: smallest of its states − 1 leading canonical correlations, over the views; NaN without views.
        means: name -> (states of the observable, states) P(x | h) of the observables of its views; empty if not recovered.
    """

    views: Views
    strength: float
    means: Mapping[str, Tensor]

    @property
    def recovered(self) -> bool:
        """Whether conditional distributions were recovered."""
        return bool(self.means)


class Recovery:
    """Tables of the families whose latents have views.

    Args:
        graph: directed and discrete.
        moments: of its observables.
        seed: of the random directions.

    Attributes:
        starts: latent -> its start.
        tables: scope -> table, for the recovered families.
    """

    def __init__(self, graph: LatentGraph, moments: FormMoments, seed: int = 0) -> None:
        self.graph, self.moments = graph, moments
        separation = Separation(graph)
        self.views = find_views(graph, separation)
        self.starts = self._starts(np.random.default_rng(seed))
        proxies: dict[Scope, dict[str, tuple[str, ...]]] = {}  # scope -> latent -> observables of its form
        for v in graph.names:
            scope = (*graph.parents(v), v)
            groups = references(separation, scope, self.views)
            if all(self.starts[u].recovered and names for u, names in groups.items()):
                proxies[scope] = groups
        needed = list(dict.fromkeys(pair for groups in proxies.values() for pair in groups.items()))
        indicators = self._indicators([(names, self.starts[u].means) for u, names in needed])
        forms = dict(zip(needed, indicators, strict=True))
        requests = [
            [forms[u, groups[u]] if u in groups else moments.one_hot(u) for u in scope]
            for scope, groups in proxies.items()
        ]
        tables = each(as_table, [(joint,) for joint in moments.products(requests)])
        self.tables = dict(zip(proxies, tables, strict=True))

    def _starts(self, generator: np.random.Generator) -> dict[str, LatentStart]:
        """Starts of all latents; the tensors of latents with three views are computed in one pass over the rows."""
        states = self.graph.num_states
        forms, strengths = self._canonical_forms()
        three = [h for h in forms if len(forms[h]) == 3 and sum(len(f) == states(h) for f in forms[h]) >= 2]
        tensors = dict(zip(three, self.moments.products([forms[h] for h in three]), strict=True))
        bases = decomposed(tensors, states, generator)
        for h in forms:
            base = None if h in bases else self._corners(forms[h], states(h))
            if base is not None:
                bases[h] = base
        zetas = each(torch.linalg.solve, [(matrix, forms[h][number]) for h, (number, matrix) in bases.items()])
        means = self._conditional_means([(self.views[h], number) for h, (number, _) in bases.items()], zetas)
        recovered = dict(zip(bases, means, strict=True))
        return {
            h: LatentStart(self.views[h], strengths.get(h, math.nan), recovered.get(h, {})) for h in self.graph.latent
        }

    def _canonical_forms(self) -> tuple[dict[str, list[Tensor]], dict[str, float]]:
        """For each view of each latent a constant and its leading canonical directions with the other views, at most states − 1.

        Returns:
            latent -> forms of its views, and latent -> smallest of the states − 1 leading correlations.
        """
        moments, groups = self.moments, {h: views.groups for h, views in self.views.items() if views.groups}

        def directions(group: Tensor, rest: Tensor) -> Tensor:
            """(batch, 1 + columns, directions): correlations, then coefficients."""
            left, right = (
                torch.linalg.cholesky(_ridged(moments.second[c[:, :, None], c[:, None]], 1 / moments.rows))
                for c in (group, rest)
            )
            cross = torch.linalg.solve_triangular(left, moments.second[group[:, :, None], rest[:, None]], upper=False)
            cross = torch.linalg.solve_triangular(right, cross.mT, upper=False).mT
            u, s, _ = torch.linalg.svd(cross, full_matrices=False)
            return torch.cat([s[:, None], torch.linalg.solve_triangular(left.mT, u, upper=True)], dim=1)

        requests = []
        for views in groups.values():
            for i, group in enumerate(views):
                rest = [x for j, names in enumerate(views) if j != i for x in names]
                requests.append((moments.columns(group), moments.columns(rest)))
        solutions = iter(zip(requests, each(directions, requests), strict=True))
        forms: dict[str, list[Tensor]] = {}
        strengths: dict[str, float] = {}
        for h, views in groups.items():
            needed, forms[h], strengths[h] = self.graph.num_states(h) - 1, [], 1.0
            for group in views:
                (columns, _), result = next(solutions)
                count = min(needed, sum(moments.states[x] - 1 for x in group), result.shape[1])
                form = result.new_zeros(1 + count, 1 + moments.size)
                form[0, 0] = 1.0
                form[1:, columns] = result[1:, :count].T
                forms[h].append(form)
                if needed:
                    strengths[h] = min(strengths[h], float(result[0, count - 1]) if count == needed else 0.0)
        return forms, strengths

    def _corners(self, forms: Sequence[Tensor], states: int) -> tuple[int, Tensor] | None:
        """A basis from the predictions of one view by another: distant corners of the predictions.

        Returns:
            The number of the predicted view and the (k, k) matrix of its corners; None if no two views have k directions.
        """
        full = [i for i, form in enumerate(forms) if len(form) == states]
        if len(full) < 2:
            return None
        target, source = full[0], full[1]
        cross = forms[target] @ self.moments.second @ forms[source].T
        inner = forms[source] @ self.moments.second @ forms[source].T
        predict = torch.linalg.solve(_ridged(inner, 1 / self.moments.rows), cross.T).T[1:]  # without the constant
        spread = predict @ inner @ predict.T
        scale = torch.linalg.cholesky(_ridged(spread, 1e-12 + 1e-6 * float(spread.trace())))
        points, weights = [], []
        for values, part in self.moments.values(forms[source]):
            points.append(torch.linalg.solve_triangular(scale, predict @ values.T, upper=False).T)
            weights.append(part)
        chosen = simplex_corners(gather_rows(torch.cat(points)), gather_rows(torch.cat(weights)), states)
        matrix = torch.cat([scale.new_ones(1, states), scale @ chosen.T])
        return target, matrix

    def _conditional_means(self, seen: Sequence[tuple[Views, int]], zetas: Sequence[Tensor]) -> list[dict[str, Tensor]]:
        """P(x | h) of all observables of the views of several latents: first by the base view, then for each view by the others.

        Args:
            seen: views of each latent, and the number of its base view.
            zetas: the form ζ of each latent in its base view.

        Returns:
            For each latent name -> (states of the observable, states).
        """
        others = [views.without(views.groups[base]) for views, base in seen]
        means = [self._parts(names, x) for names, x in zip(others, self._conditionals(zetas), strict=True)]
        forms = self._indicators(list(zip(others, means, strict=True)))
        for (views, base), conditionals, x in zip(seen, means, self._conditionals(forms), strict=True):
            conditionals |= self._parts(views.groups[base], x)
        places = [(number, group) for number, (views, _) in enumerate(seen) for group in views.groups]
        forms = self._indicators([(seen[number][0].without(group), means[number]) for number, group in places])
        for (number, group), x in zip(places, self._conditionals(forms), strict=True):
            means[number] |= self._parts(group, x)
        return means

    def _parts(self, names: Sequence[str], conditionals: Tensor) -> dict[str, Tensor]:
        return {x: conditionals[self.moments.place[x]] for x in names}

    def _conditionals(self, zetas: Sequence[Tensor]) -> list[Tensor]:
        """(indicators, k) P(x | h) of all observables from E[1_x ζᵀ], for each of several forms."""
        moments = self.moments

        def of(zeta: Tensor) -> Tensor:
            joint = moments.mean[:, None] * zeta[:, None, :, 0] + moments.second[1:] @ zeta.mT
            positive = joint.clamp(min=0) + 1e-4 / moments.member.sum(dim=0)[moments.owner, None]
            return positive / (moments.member.T @ positive)[:, moments.owner]

        return each(of, [(zeta,) for zeta in zetas])

    def _indicators(self, requests: Sequence[tuple[Sequence[str], Mapping[str, Tensor]]]) -> list[Tensor]:
        """For each list of observables and their P(x | h) the form ζ of least variance with E[ζ | h] = e_h."""
        moments = self.moments

        def of(columns: Tensor, means: Tensor) -> Tensor:
            centred = means - moments.mean[columns - 1].unsqueeze(2)
            expected = torch.nn.functional.pad(centred, (0, 0, 1, 0), value=1.0)  # (batch, 1 + indicators, k)
            columns = torch.nn.functional.pad(columns, (1, 0))
            spread = moments.noise[columns[:, :, None], columns[:, None]]
            spread.diagonal(dim1=1, dim2=2).mul_(1 + 1e-3).add_(1e-9)
            weighted = torch.linalg.solve(spread, expected)
            gram = expected.mT @ weighted
            ridge = 1e-9 * gram.diagonal(dim1=1, dim2=2).sum(dim=1)[:, None, None]
            solved = torch.linalg.solve(gram + ridge * _eye(gram.shape[1], gram), weighted.mT)
            form = solved.new_zeros(*solved.shape[:2], 1 + moments.size)
            return form.scatter_(2, columns[:, None].expand_as(solved), solved)

        return each(of, [(moments.columns(names), torch.cat([means[x] for x in names])) for names, means in requests])


def each(function: Callable[..., Tensor], requests: Sequence[tuple[Tensor, ...]]) -> list[Tensor]:
    """Apply a batched function to several lists of arguments, in one batch per combination of shapes."""
    result: dict[int, Tensor] = {}
    for numbers in equal_shapes({i: tuple(x.shape for x in arguments) for i, arguments in enumerate(requests)}):
        stacked = (torch.stack(column) for column in zip(*(requests[i] for i in numbers), strict=True))
        result |= zip(numbers, function(*stacked).unbind(), strict=True)
    return [result[number] for number in range(len(requests))]


def decomposed(
    tensors: Mapping[str, Tensor], states: Callable[[str], int], generator: np.random.Generator
) -> dict[str, tuple[int, Tensor]]:
    """E[z | h] of one view of each latent from E[z1 ⊗ z2 ⊗ z3].

    T[:, :, c] T[:, :, 0]⁻¹ = A diag(E[z3_c | h]) A⁻¹: its eigenvectors, scaled to first entry 1, are A.

    Args:
        tensors: latent -> tensor of its three views.
        states: of a latent.
        generator: of combinations of slices.

    Returns:
        latent -> the number of the view and the (k, k) matrix A with the nearest tensor of rank k; without latents for which all
        attempts have complex eigenvalues or very small shares.
    """
    requests: dict[str, tuple[Tensor, Tensor]] = {}
    views: dict[str, list[int]] = {}  # of each attempt
    for h, tensor in tensors.items():
        pairs = [(a, b) for a, b in ((1, 2), (0, 2), (0, 1)) if tensor.shape[a] == tensor.shape[b] == states(h)]
        if not pairs:
            continue
        turned = torch.stack([tensor.permute(a, b, 3 - a - b) for a, b in pairs])  # up to three pairs
        count = 1 if turned.shape[3] == 2 else DIRECTIONS
        weights = torch.from_numpy(generator.standard_normal((len(pairs) * count, turned.shape[3] - 1)))
        requests[h] = turned.repeat_interleave(count, dim=0), weights.to(tensor.device)
        views[h] = [a for a, _ in pairs for _ in range(count)]
    bases = {}
    for h, attempts in zip(requests, each(_attempted, list(requests.values())), strict=True):
        best = int(attempts[:, 0].argmin())
        if math.isfinite(float(attempts[best, 0])):
            bases[h] = views[h][best], attempts[best, 1:].reshape(states(h), states(h))
    return bases


def _attempted(tensors: Tensor, weights: Tensor) -> Tensor:
    """(batch, attempts, k, k, slices) tensors and weights of slices -> (batch, attempts, 1 + k · k): distance of the tensor of
    rank k, infinite after a failure, and the matrix A."""
    batch, attempts, count = tensors.shape[:3]
    tensors, weights = tensors.flatten(0, 1), weights.flatten(0, 1)
    result = tensors.new_full((len(tensors), 1 + count * count), math.inf)
    base = tensors[..., 0]
    slices = torch.einsum("nabc,nc->nab", tensors[..., 1:], weights)
    product, info = torch.linalg.solve_ex(base.mT, slices.mT)
    numbers = ((info == 0) & product.flatten(1).isfinite().all(dim=1)).nonzero().flatten()
    values, vectors = torch.linalg.eig(product[numbers].mT)
    a = vectors.real
    good = values.imag.abs().amax(dim=1) <= 1e-9 * values.abs().amax(dim=1)
    good &= a[:, 0].abs().amin(dim=1) >= 1e-8
    numbers, a = numbers[good], a[good] / a[good][:, :1]
    shares, info = torch.linalg.solve_ex(a, tensors[numbers][:, :, :1, 0])
    good = (info == 0) & (shares[..., 0] >= SMALLEST_SHARE).all(dim=1)
    numbers, a, shares = numbers[good], a[good], shares[good]
    second = torch.linalg.solve(a, base[numbers]) / shares  # (attempts, k, k): states × z2
    pairs = torch.einsum("nah,nhb->nabh", a * shares.mT, second).flatten(1, 2)
    gram = pairs.mT @ pairs
    ridge = 1e-12 * gram.diagonal(dim1=1, dim2=2).sum(dim=1)[:, None, None] * _eye(count, gram)
    unfolded = tensors[numbers].flatten(1, 2)
    third = torch.linalg.solve(gram + ridge, pairs.mT @ unfolded)  # (attempts, k, z3)
    errors = (pairs @ third - unfolded).flatten(1).norm(dim=1).nan_to_num(nan=math.inf)
    result[numbers] = torch.cat([errors[:, None], a.flatten(1)], dim=1)
    return result.reshape(batch, attempts, -1)


def simplex_corners(points: Tensor, weights: Tensor, states: int) -> Tensor:
    """(states, states − 1) points that span a large simplex, by successive projection."""
    dims = points.shape[1]
    if not dims:
        return points.new_zeros(states, 0)
    size = points.norm(dim=1)
    order = size.argsort()
    inside = order[weights[order].cumsum(0) <= (1 - OUTERMOST) * weights.sum()]
    axes = SPREAD * _eye(dims, points)
    pool = torch.cat([points[inside], axes, -axes])
    first = pool[pool.norm(dim=1).argmax()]
    chosen = [first]
    residual = pool - first
    for _ in range(states - 1):
        place = residual.norm(dim=1).argmax()
        chosen.append(pool[place])
        direction = residual[place] / residual[place].norm().clamp(min=1e-12)
        residual = residual - (residual @ direction)[:, None] * direction
    return torch.stack(chosen)


def as_table(joint: Tensor) -> Tensor:
    """(batch, …) estimates of P(family) as conditional tables of the last dimension, with positive entries."""
    positive = joint.clamp(min=0)
    average = positive.sum(dim=tuple(range(1, joint.ndim - 1)), keepdim=True) if joint.ndim > 2 else positive
    average = average / average.sum(dim=-1, keepdim=True).clamp(min=1e-300)
    totals = positive.sum(dim=-1, keepdim=True)
    table = torch.where(totals > 1e-12, positive / totals.clamp(min=1e-300), average)
    table = (1 - MIXING) * table + MIXING * (average + 1 / positive.shape[-1]) / 2
    return table / table.sum(dim=-1, keepdim=True)


def _ridged(matrix: Tensor, ridge: float) -> Tensor:
    return matrix + ridge * _eye(matrix.shape[-1], matrix)


def _eye(size: int, like: Tensor) -> Tensor:
    return torch.eye(size, dtype=like.dtype, device=like.device)
