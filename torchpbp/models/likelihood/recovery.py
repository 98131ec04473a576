"""Tables of all families from moments: a start for the likelihood, in closed form.

For a latent with k states, forms ζ of its views' indicators are sought with E[ζ | h] = e_h. Then P(x, h) = E[1_x ζᵀ] for x in
another view, and the table of a family is the mean of the product of its members' forms. Three views give ζ by the
eigenvectors of slices of a k × k × k tensor; two views give some basis, in which all questions have the same answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchpbp.distributed import gather_rows
from torchpbp.exact.calibration import Scope
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.graph.views import Separation, Views, find_views, references
from torchpbp.models.likelihood.moments import FormMoments

SMALLEST_SHARE = 0.005
"""A state with a smaller share is taken for an artefact of noise."""
DIRECTIONS = 8
"""Random combinations of slices whose eigenvectors are tried."""
OUTERMOST = 0.02
"""Share of the rows, by weight, that corners of the predictions leave aside."""
SPREAD = 1.5
"""Standard deviations along each axis that corners reach at least."""
MIXING = 0.02
"""Share of the average and of the uniform distribution in recovered tables: EM never leaves a zero."""


@dataclass(frozen=True)
class LatentStart:
    """What was found out about a latent.

    Args:
        views: the groups of observables it is seen through.
        strength: smallest canonical correlation that its states need, over the views; NaN without views.
        means: name -> (states of the observable, states) P(x | h) of the observables of its views.
    """

    views: Views
    strength: float
    means: Mapping[str, Tensor]

    @property
    def recovered(self) -> bool:
        """Whether there is something to start from."""
        return bool(self.means)


def recover(
    graph: LatentGraph, moments: FormMoments, seed: int = 0
) -> tuple[dict[Scope, Tensor], dict[str, LatentStart]]:
    """Tables of the families whose latents have views.

    Args:
        graph: directed and discrete.
        moments: of its observables.
        seed: of the random directions.

    Returns:
        scope -> table, for the families that are recovered, and what was found out about each latent.
    """
    separation = Separation(graph)
    views = find_views(graph, separation)
    generator = np.random.default_rng(seed)
    starts = _starts(graph, moments, views, generator)
    requests: dict[Scope, list[Tensor]] = {}
    for v in graph.names:
        scope = (*graph.parents(v), v)
        standing = references(separation, scope, views)
        if all(starts[u].recovered and standing[u] for u in standing):
            requests[scope] = [
                indicator(moments, standing[u], starts[u].means) if u in standing else moments.one_hot(u) for u in scope
            ]
    joint = moments.products(list(requests.values()))
    return {scope: as_table(table) for scope, table in zip(requests, joint, strict=True)}, starts


def _starts(
    graph: LatentGraph, moments: FormMoments, views: Mapping[str, Views], generator: np.random.Generator
) -> dict[str, LatentStart]:
    """Forms of the latents' states; the tensors of all latents with three views come from one pass over the rows."""
    forms: dict[str, list[Tensor]] = {}
    strengths = dict.fromkeys(graph.latent, float("nan"))
    for h in graph.latent:
        if views[h].groups:
            forms[h], strengths[h] = canonical_forms(moments, views[h].groups, graph.num_states(h))
    three = [h for h in forms if len(forms[h]) == 3 and sum(len(f) == graph.num_states(h) for f in forms[h]) >= 2]
    tensors = dict(zip(three, moments.products([forms[h] for h in three]), strict=True))
    starts = {}
    for h in graph.latent:
        base = None
        if h in tensors:
            base = decomposed(tensors[h], graph.num_states(h), generator)
        if base is None and h in forms:
            base = corners(moments, forms[h], graph.num_states(h))
        means: dict[str, Tensor] = {}
        if base is not None:
            number, matrix = base
            zeta = torch.linalg.solve(matrix, forms[h][number])
            means = conditional_means(moments, views[h], number, zeta)
        starts[h] = LatentStart(views[h], strengths[h], means)
    return starts


def canonical_forms(moments: FormMoments, groups: Sequence[Sequence[str]], states: int) -> tuple[list[Tensor], float]:
    """For each view a constant and its directions that the other views predict best, at most states − 1 of them.

    Returns:
        The forms, and the weakest correlation that the states need.
    """
    covariance = moments.second
    forms, strength = [], 1.0
    for i, group in enumerate(groups):
        own = moments.columns(group)
        other = moments.columns([x for j, names in enumerate(groups) if j != i for x in names])
        left, right = (
            torch.linalg.cholesky(_ridged(covariance[c[:, None], c], 1 / moments.rows)) for c in (own, other)
        )
        cross = torch.linalg.solve_triangular(left, covariance[own[:, None], other], upper=False)
        cross = torch.linalg.solve_triangular(right, cross.T, upper=False).T
        u, s, _ = torch.linalg.svd(cross, full_matrices=False)
        free = sum(moments.states[x] - 1 for x in group)
        count = min(states - 1, free, len(s))
        form = u.new_zeros(1 + count, 1 + moments.size)
        form[0, 0] = 1.0
        form[1:, own] = torch.linalg.solve_triangular(left.T, u[:, :count], upper=True).T
        forms.append(form)
        strength = min(strength, float(s[count - 1]) if count == states - 1 and count else 0.0 if states > 1 else 1.0)
    return forms, strength


def decomposed(tensor: Tensor, states: int, generator: np.random.Generator) -> tuple[int, Tensor] | None:
    """E[z | h] of one view from E[z1 ⊗ z2 ⊗ z3].

    T[:, :, c] T[:, :, 0]⁻¹ = A diag(E[z3_c | h]) A⁻¹: its eigenvectors, scaled to first entry 1, are A.

    Returns:
        The number of the view and its (k, k) matrix A, whose tensor of rank k is nearest to the given one; None where all
        attempts have complex or very small shares.
    """
    orders = [
        (a, b, c) for a, b, c in ((1, 2, 0), (0, 2, 1), (0, 1, 2)) if tensor.shape[a] == tensor.shape[b] == states
    ]
    if not orders:
        return None
    turned = torch.stack([tensor.permute(order) for order in orders])  # of one shape: all orders only if it is a cube
    size = turned.shape[3]
    attempts = 1 if size == 2 else DIRECTIONS
    weights = torch.from_numpy(generator.standard_normal((len(orders) * attempts, size - 1))).to(tensor.device)
    best = _nearest(turned.repeat_interleave(attempts, dim=0), weights)
    return None if best is None else (orders[best[0] // attempts][0], best[1])


def _nearest(tensors: Tensor, weights: Tensor) -> tuple[int, Tensor] | None:
    """Of several (attempts, k, k, slices) tensors and combinations of their slices the one whose tensor of rank k is nearest: its
    number, and its matrix A."""
    base, count = tensors[..., 0], tensors.shape[1]
    slices = torch.einsum("nabc,nc->nab", tensors[..., 1:], weights)
    product, info = torch.linalg.solve_ex(base.transpose(1, 2), slices.transpose(1, 2))
    numbers = ((info == 0) & product.flatten(1).isfinite().all(dim=1)).nonzero().flatten()
    values, vectors = torch.linalg.eig(product[numbers].transpose(1, 2))
    a = vectors.real
    good = values.imag.abs().amax(dim=1) <= 1e-9 * values.abs().amax(dim=1)
    good &= a[:, 0].abs().amin(dim=1) >= 1e-8
    numbers, a = numbers[good], a[good] / a[good][:, :1]
    shares, info = torch.linalg.solve_ex(a, tensors[numbers][:, :, :1, 0])
    good = (info == 0) & (shares[..., 0] >= SMALLEST_SHARE).all(dim=1)
    numbers, a, shares = numbers[good], a[good], shares[good]
    if not len(a):
        return None
    second = torch.linalg.solve(a, base[numbers]) / shares  # (attempts, k, k): states × z2
    weighted = a * shares.transpose(1, 2)
    pairs = torch.einsum("nah,nhb->nabh", weighted, second).flatten(1, 2)
    gram = pairs.transpose(1, 2) @ pairs
    ridge = 1e-12 * gram.diagonal(dim1=1, dim2=2).sum(dim=1)[:, None, None] * _eye(count, gram)
    whole = tensors[numbers].flatten(1, 2)
    third = torch.linalg.solve(gram + ridge, pairs.transpose(1, 2) @ whole)  # (attempts, k, z3)
    errors = (pairs @ third - whole).flatten(1).norm(dim=1).nan_to_num(nan=math.inf)
    best = int(errors.argmin())
    return (int(numbers[best]), a[best]) if math.isfinite(float(errors[best])) else None


def corners(moments: FormMoments, forms: Sequence[Tensor], states: int) -> tuple[int, Tensor] | None:
    """Some basis of what one view predicts of another: corners of the predictions, well apart.

    Returns:
        The number of the predicted view and the (k, k) matrix of its corners; None where no two views have k directions.
    """
    full = [i for i, form in enumerate(forms) if len(form) == states]
    if len(full) < 2:
        return None
    target, source = full[0], full[1]
    cross = forms[target] @ moments.second @ forms[source].T
    own = forms[source] @ moments.second @ forms[source].T
    predict = torch.linalg.solve(_ridged(own, 1 / moments.rows), cross.T).T[1:]  # the constant predicts itself
    spread = predict @ own @ predict.T
    scale = torch.linalg.cholesky(_ridged(spread, 1e-12 + 1e-6 * float(spread.trace())))
    points, weights = [], []
    for values, part in moments.values(forms[source]):
        points.append(torch.linalg.solve_triangular(scale, predict @ values.T, upper=False).T)
        weights.append(part)
    chosen = _corners(gather_rows(torch.cat(points)), gather_rows(torch.cat(weights)), states)
    matrix = torch.cat([scale.new_ones(1, states), scale @ chosen.T])
    return target, matrix


def _corners(points: Tensor, weights: Tensor, states: int) -> Tensor:
    """(states, states − 1) points that span a large simplex, by successive projection."""
    dims = points.shape[1]
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


def conditional_means(moments: FormMoments, views: Views, base: int, zeta: Tensor) -> dict[str, Tensor]:
    """P(x | h) of all observables of the views: first through the base view, then each through the views it is not in."""
    others = views.without(views.groups[base])
    means = _conditionals(moments, others, zeta)
    means |= _conditionals(moments, views.groups[base], indicator(moments, others, means))
    through = [indicator(moments, views.without(group), means) for group in views.groups]
    for group, form in zip(views.groups, through, strict=True):
        means |= _conditionals(moments, group, form)
    return means


def _conditionals(moments: FormMoments, names: Sequence[str], zeta: Tensor) -> dict[str, Tensor]:
    """(states of x, k) P(x | h) of some observables from E[1_x ζᵀ]."""
    joint = moments.mean[:, None] * zeta[:, 0] + moments.second[1:] @ zeta.T
    means = {}
    for x in names:
        positive = joint[moments.place[x]].clamp(min=0) + 1e-4 / moments.states[x]
        means[x] = positive / positive.sum(dim=0)
    return means


def indicator(moments: FormMoments, names: Sequence[str], means: Mapping[str, Tensor]) -> Tensor:
    """The form ζ of least variance with E[ζ | h] = e_h, made of some observables with known P(x | h)."""
    columns = torch.nn.functional.pad(moments.columns(names), (1, 0))
    stacked = torch.cat([means[x] for x in names]) - moments.mean[columns[1:] - 1, None]
    expected = torch.nn.functional.pad(stacked, (0, 0, 1, 0), value=1.0)  # (1 + indicators, k)
    spread = moments.noise[columns[:, None], columns]
    spread.diagonal().mul_(1 + 1e-3).add_(1e-9)
    weighted = torch.linalg.solve(spread, expected)
    gram = expected.T @ weighted
    form = expected.new_zeros(expected.shape[1], 1 + moments.size)
    form[:, columns] = torch.linalg.solve(_ridged(gram, 1e-9 * float(gram.trace())), weighted.T)
    return form


def as_table(joint: Tensor) -> Tensor:
    """A conditional table of the last dimension from estimates of P(family), with no entry at 0."""
    positive = joint.clamp(min=0)
    average = positive.flatten(0, -2).sum(dim=0) if positive.ndim > 1 else positive
    average = average / average.sum().clamp(min=1e-300)
    totals = positive.sum(dim=-1, keepdim=True)
    table = torch.where(totals > 1e-12, positive / totals.clamp(min=1e-300), average)
    table = (1 - MIXING) * table + MIXING * (average + 1 / positive.shape[-1]) / 2
    return table / table.sum(dim=-1, keepdim=True)


def _ridged(matrix: Tensor, ridge: float) -> Tensor:
    return matrix + ridge * _eye(len(matrix), matrix)


def _eye(size: int, like: Tensor) -> Tensor:
    return torch.eye(size, dtype=like.dtype, device=like.device)
