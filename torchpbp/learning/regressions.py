"""Regressions of the separators, and what predicts their targets for whole batches of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchpbp.distributed import sum_over_processes
from torchpbp.learning.compression import apply_whitener, orthogonal_to
from torchpbp.moments.moments import Moments
from torchpbp.moments.rows import ProductTargets, Projections, TrainingRows, shape_key
from torchpbp.planning.plan import Group, Plan

ROWS_AT_ONCE = 8192
LEAST_VARIANCE = 0.01
"""Directions of a target with less variance, as a part of the largest, are not worth a net's while."""


@dataclass(frozen=True)
class Regression:
    """What is predicted at one separator: y = ⊗_k M_kᵀφ_k − offset, from the variables ``inputs``.

    Args:
        name: the separator, for messages.
        inputs: observables outside.
        groups: groups of variables inside, one per factor.
        matrices: M_k, (features of the group, m_k), one per factor.
        offset: (∏ m_k,).
    """

    name: str
    inputs: Group
    groups: tuple[Group, ...]
    matrices: tuple[Tensor, ...]
    offset: Tensor

    @property
    def size(self) -> int:
        """Length of y."""
        return len(self.offset)


class Predictor(ABC):
    """Fitted regressions of all separators.

    Predictions of the rows fitted to must come from regressions that have not seen those rows, wherever the method
    could memorise them.
    """

    @abstractmethod
    def predict(self, rows: TrainingRows, positions: Tensor) -> list[Tensor]:
        """Instrument or prediction of each regression, (rows, m) each.

        Args:
            rows: some of the rows fitted to.
            positions: (rows,) their numbers among all rows of this process.
        """


Fit = Callable[[TrainingRows, Sequence[Regression]], Predictor]
"""Fits all regressions to the rows of this process."""


def core_regression(plan: Plan, node: int, moments: Moments) -> tuple[Regression, Tensor]:
    """Regression S1A of a separator, of whitened and centred features, and the whitened mean, (core dim, 1)."""
    separator = plan[node]
    whitener, mean = moments.whitener(separator.core), moments.mean(separator.core).unsqueeze(1)
    constant = apply_whitener(whitener, mean)
    matrix = orthogonal_to(constant, torch.diag(whitener) if whitener.ndim == 1 else whitener)
    name, offset = plan.tree.separator_name(node), (matrix @ mean).squeeze(1)
    regression = Regression(name, separator.outside, (separator.core,), (matrix.T.contiguous(),), offset)
    return regression, constant


def families(regressions: Sequence[Regression], rows: TrainingRows) -> list[tuple[list[int], ProductTargets]]:
    """Regressions of equal shape: their numbers, and the module that computes all their targets."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for i, r in enumerate(regressions):
        groups.setdefault(shape_key(r.groups, r.matrices, rows), []).append(i)
    result = []
    for members in groups.values():
        same = [regressions[i] for i in members]
        factors = [
            Projections([r.groups[k] for r in same], torch.stack([r.matrices[k] for r in same]), rows)
            for k in range(len(same[0].groups))
        ]
        result.append((members, ProductTargets(factors, torch.stack([r.offset for r in same]))))
    return result


def targets_of(regressions: Sequence[Regression], rows: TrainingRows) -> Callable[[TrainingRows], list[Tensor]]:
    """A function that computes the targets of all regressions, (rows, size) each, for rows of the same kind."""
    grouped = families(regressions, rows)

    def targets(part: TrainingRows) -> list[Tensor]:
        result: list[Tensor] = [part.content] * len(regressions)
        for members, module in grouped:
            y = module(part)
            for s, i in enumerate(members):
                result[i] = y[:, s]
        return result

    return targets


def leading_directions(regressions: Sequence[Regression], rows: TrainingRows, least: Sequence[int]) -> list[Tensor]:
    """The directions in which targets vary, (size, kept) orthonormal columns for each regression.

    Of whitened kernel features most have next to no variance. Regressions of equal size keep equally many.

    Args:
        regressions: with a single factor each.
        rows: of this process.
        least: directions to keep at least.
    """
    targets = targets_of(regressions, rows)
    moments = [torch.zeros(r.size, r.size, dtype=torch.float64, device=rows.device) for r in regressions]
    for positions in rows.positions(ROWS_AT_ONCE):
        part = rows[positions]
        weight = part.counts.unsqueeze(1)
        for moment, y in zip(moments, targets(part), strict=True):
            moment += y.T @ (weight * y)
    spectra = [torch.linalg.eigh(sum_over_processes(moment)) for moment in moments]
    kept: dict[int, int] = {}
    for regression, (values, _), few in zip(regressions, spectra, least, strict=True):
        count = max(1, min(few, regression.size), int((values > LEAST_VARIANCE * values.amax()).sum()))
        kept[regression.size] = max(count, kept.get(regression.size, 0))
    return [_fixed_basis(vectors[:, -kept[r.size] :]) for r, (_, vectors) in zip(regressions, spectra, strict=True)]


def _fixed_basis(vectors: Tensor) -> Tensor:
    """Another orthonormal basis of the same columns' span, which depends on the span alone.

    Whitened indicators have equal variance in all directions, so that rounding decides which basis an eigendecomposition finds, and
    training would depend on it.
    """
    generator = torch.Generator().manual_seed(0)
    reference = torch.randn(vectors.shape, generator=generator, dtype=vectors.dtype, device="cpu")
    basis, scale = torch.linalg.qr(vectors @ (vectors.T @ reference.to(vectors.device)))
    return basis * scale.diagonal().sign()


def projected(regression: Regression, directions: Tensor) -> Regression:
    """The regression of some directions of a target with a single factor.

    Args:
        regression: of the whole target.
        directions: (size, kept).
    """
    (matrix,) = regression.matrices
    return replace(regression, matrices=((matrix @ directions).contiguous(),), offset=regression.offset @ directions)
