"""Two-stage regression with a learned stage 1: networks or kernels in place of linear regression on groups.

Whatever the method, what it predicts about the inside of a separator becomes the separator's instrument. In the
instrumental form stage 2 uses it as nothing more: W = E[y ḡᵀ] E[θ ḡᵀ]⁻¹ with raw y and θ. In the plain form a second
regression predicts y, and W leads from one prediction to the other [PBP Step 5].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchpbp.distributed import sum_over_processes
from torchpbp.errors import StructureError
from torchpbp.graph.junction_tree import JunctionTree
from torchpbp.learning.joined import Joined, earned
from torchpbp.learning.regressor import Predictor, Regression, Regressor, families
from torchpbp.learning.two_stage import (
    Covariances,
    Learned,
    Stage1,
    System,
    apply_whitener,
    assemble,
    compress_all,
    compressions,
    equal,
    solve_all,
    targets,
    without,
)
from torchpbp.moments.moments import Group, Moments, Question
from torchpbp.moments.rows import Rows
from torchpbp.planning.plan import Specification

ROWS_AT_ONCE = 8192


def required_own_pairs(specification: Specification) -> list[tuple[Group, Group]]:
    """Pairs of groups whose second moments are needed of kernel features: none that involve an instrument."""
    return list(dict.fromkeys((p.core, p.core) for p in specification.plans))


def required_own_scopes(tree: JunctionTree, specification: Specification) -> list[Group]:
    """Groups whose joint tables are needed of discrete variables: none over inside and outside together."""
    scopes = dict.fromkeys(g for p in specification.plans for g in (p.core, *p.instrument))
    below = (tuple(v for g in targets(tree, specification, n) for v in g) for n in range(len(tree)))
    return list(scopes | dict.fromkeys(below))


def learn_regressed(
    tree: JunctionTree,
    specification: Specification,
    moments: Moments,
    rows: Rows,
    regressor: Regressor,
    stage1: float,
    stage2: float,
) -> Learned:
    """Solve every separator.

    Args:
        tree: junction tree.
        specification: core groups, instruments and ranks; a net looks at all variables of its separator's instrument.
        moments: of core groups and of what operators predict.
        rows: of this process.
        regressor: the stage-1 method.
        stage1: ridge penalty λ of the regression on the instrument that the method makes.
        stage2: ridge penalty λ of S2.
    """
    whitened = [core_regression(tree, specification, n, moments) for n in range(1, len(tree))]
    first = regressor.fit(rows, [r for r, _ in whitened], "stage1a")
    joined = regressor.linear and regressor.form == "instrumental"
    if joined:
        first = Joined(first, specification, moments, rows)
    found = _covariances(rows, [r for r, _ in whitened], first)
    kept = [torch.eye(len(f.gram), dtype=torch.float64) for f in found]  # of each instrument
    if joined:
        kept = [
            earned(f.cross, f.gram, r.size, plan.rank - 1, moments.rows)
            for plan, (r, _), f in zip(specification.plans, whitened, found, strict=True)
        ]
        found = [_Found(f.cross @ k, k.mT @ f.gram @ k, f.mean @ k) for f, k in zip(found, kept, strict=True)]
    shapes = {}
    for plan, f in zip(specification.plans, found, strict=True):
        if f.cross.shape[1] < plan.rank - 1:
            raise StructureError(
                f"Separator {tree.separator_name(plan.node)}: the message has rank {plan.rank}, but {regressor!r} gives an "
                f"instrument with {f.cross.shape[1]} dimensions. Raise its size or lower rank=."
            )
        shapes[plan.node] = (*f.cross.shape, plan.rank)
    systems = []
    for nodes in equal(shapes, lambda shape: shape):
        cores = [specification.plan(n).core for n in nodes]
        cross = torch.stack([found[n - 1].cross for n in nodes])
        systems.append(
            Covariances(
                nodes,
                cross,
                torch.stack([found[n - 1].gram for n in nodes]),
                torch.stack([whitened[n - 1][1] for n in nodes]),
                torch.stack([moments.whitener(c) for c in cores]),
                torch.stack([moments.ones(c) for c in cores]),
                cross.new_ones(len(nodes), cross.shape[2]),
                cross.new_full((len(nodes),), moments.rows),
                shapes[nodes[0]][-1],
            )
        )
    stages = compress_all(systems, stage1)

    questions: list[Question] = [
        (targets(tree, specification, n), compressions(tree, stages, n), [()]) for n in range(len(tree))
    ]
    root, *means = [answer.squeeze(-1) for answer in moments.responses(questions)]
    responses = [
        _response(tree, specification, plan.node, stages, mean, moments)
        for plan, mean in zip(specification.plans, means, strict=True)
    ]
    second = regressor.fit(rows, responses, "stage1b") if regressor.form == "plain" else None
    solved = {}
    for plan, mean, f in zip(specification.plans, means, _covariances(rows, responses, first, second), strict=True):
        stage = stages[plan.node]
        if second is None:
            solved[plan.node] = System(mean, f.cross @ kept[plan.node - 1] @ stage.predictor, stage.predicted)
        else:
            gram = stage.directions.T @ f.gram @ stage.directions
            solved[plan.node] = System(mean, *_factored(gram, f.cross @ stage.directions))
    return assemble(tree, solve_all(solved, stage2), root, stages)


def core_regression(
    tree: JunctionTree, specification: Specification, node: int, moments: Moments
) -> tuple[Regression, Tensor]:
    """Regression S1A of a separator, of whitened and centred features, and the whitened mean, (core dim, 1)."""
    plan = specification.plan(node)
    whitener = moments.whitener(plan.core)
    constant = apply_whitener(whitener, moments.mean(plan.core).unsqueeze(1))
    matrix = without(constant, torch.diag(whitener) if whitener.ndim == 1 else whitener)
    inputs = tuple(dict.fromkeys(v for g in plan.instrument for v in g))
    offset = (matrix @ moments.mean(plan.core).unsqueeze(1)).squeeze(1)
    return Regression(tree.separator_name(node), inputs, (plan.core,), (matrix.T.contiguous(),), offset), constant


def _response(
    tree: JunctionTree,
    specification: Specification,
    node: int,
    stages: dict[int, Stage1],
    mean: Tensor,
    moments: Moments,
) -> Regression:
    """Regression S1B of a separator: compressed features of all children together, or a leaf's own features."""
    groups = targets(tree, specification, node)
    matrices = compressions(tree, stages, node)
    if matrices is None:
        matrices = [torch.eye(moments.dim(g), dtype=torch.float64) for g in groups]
    inputs = tuple(dict.fromkeys(v for g in specification.plan(node).instrument for v in g))
    return Regression(tree.separator_name(node), inputs, tuple(groups), tuple(matrices), mean.flatten())


@dataclass(frozen=True)
class _Found:
    """Second moments of one separator: E[y ξᵀ] and E[ξ ξᵀ], both centred, and E[ξ]."""

    cross: Tensor
    gram: Tensor
    mean: Tensor


def _covariances(
    rows: Rows, regressions: Sequence[Regression], instrument: Predictor, predicted: Predictor | None = None
) -> list[_Found]:
    """Centred moments of targets with instruments, in one pass over the rows of all processes.

    Args:
        rows: of this process.
        regressions: what is to be explained.
        instrument: gives ξ.
        predicted: gives predictions to use in place of raw targets.
    """
    grouped = families(regressions, rows)

    def raw(part: Rows) -> list[Tensor]:
        result: list[Tensor] = [torch.empty(0)] * len(regressions)
        for members, module in grouped:
            y = module(part)
            for s, i in enumerate(members):
                result[i] = y[:, s]
        return result

    totals: list[list[Tensor]] = []
    weight = torch.zeros((), dtype=torch.float64)
    for positions in torch.split(torch.arange(len(rows)), ROWS_AT_ONCE):
        part = rows[positions]
        counts = torch.ones(len(part), dtype=torch.float64) if part.weights is None else part.weights
        xi = instrument.predict(part, positions)
        y = raw(part) if predicted is None else predicted.predict(part, positions)
        sums = [_sums(a, b, counts) for a, b in zip(y, xi, strict=True)]
        totals = sums if not totals else [_added(a, b) for a, b in zip(totals, sums, strict=True)]
        weight = weight + counts.sum()
    sum_over_processes(weight)
    result = []
    for y_sum, xi_sum, cross, gram in totals:
        for tensor in (y_sum, xi_sum, cross, gram):
            sum_over_processes(tensor)
            tensor /= weight
        result.append(_Found(cross - torch.outer(y_sum, xi_sum), gram - torch.outer(xi_sum, xi_sum), xi_sum))
    return result


def _sums(y: Tensor, xi: Tensor, weights: Tensor) -> list[Tensor]:
    weighted = weights.unsqueeze(1) * xi
    return [weights @ y, weights @ xi, y.T @ weighted, xi.T @ weighted]


def _added(a: list[Tensor], b: list[Tensor]) -> list[Tensor]:
    return [x + y for x, y in zip(a, b, strict=True)]


def _factored(gram: Tensor, cross: Tensor) -> tuple[Tensor, Tensor]:
    """Matrices H, G with G Gᵀ = gram and H Gᵀ = cross: predictions in the form stage 2 takes them."""
    values, vectors = torch.linalg.eigh(gram)
    kept = values > 1e-12 * values.amax().clamp(min=torch.finfo(values.dtype).tiny)
    root = torch.where(kept, values.clamp(min=0).sqrt(), torch.zeros_like(values))
    inverse = torch.where(kept, 1 / root.clamp(min=1e-150), torch.zeros_like(root))
    return cross @ (vectors * inverse), vectors * root
