"""Regressions of the separators, and predictors of their targets for batches of rows."""

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
"""Smallest variance of a target's direction, as a share of the largest, for which a network is trained."""


@dataclass(frozen=True)
class Regression:
    """Regression of one separator: of y = ⊗_k M_kᵀφ_k − offset on the variables ``inputs``.

    Args:
        name: name of the separator, for errors.
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

    Methods that can memorise rows must predict training rows out of fold.
    """

    @abstractmethod
    def predict(self, rows: TrainingRows, positions: Tensor) -> list[Tensor]:
        """Instrument or prediction of each regression, (rows, m) each.

        Args:
            rows: some of the training rows.
            positions: (rows,) their indices among all rows of this process.
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
    """Groups of regressions of equal shape: their indices, and the module that computes their targets."""
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
    """A function that computes the targets of all regressions, (rows, size) each, for rows with the same variables."""
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
    """Principal directions of the targets, (size, directions) orthonormal columns for each regression.

    Most whitened kernel features have almost no variance. Regressions of equal size have equal numbers of directions.

    Args:
        regressions: regressions with a single factor each.
        rows: rows of this process.
        least: smallest number of directions of each regression.
    """
    targets = targets_of(regressions, rows)
    moments = [torch.zeros(r.size, r.size, dtype=torch.float64, device=rows.device) for r in regressions]
    for positions in rows.positions(ROWS_AT_ONCE):
        part = rows[positions]
        weight = part.counts.unsqueeze(1)
        for moment, y in zip(moments, targets(part), strict=True):
            moment += y.T @ (weight * y)
    spectra = [torch.linalg.eigh(sum_over_processes(moment)) for moment in moments]
    counts: dict[int, int] = {}
    for regression, (values, _), few in zip(regressions, spectra, least, strict=True):
        count = max(1, min(few, regression.size), int((values > LEAST_VARIANCE * values.amax()).sum()))
        counts[regression.size] = max(count, counts.get(regression.size, 0))
    return [_fixed_basis(vectors[:, -counts[r.size] :]) for r, (_, vectors) in zip(regressions, spectra, strict=True)]


def _fixed_basis(vectors: Tensor) -> Tensor:
    """An orthonormal basis that depends only on the span of the columns.

    Whitened indicators have equal variance in all directions, so the basis of an eigendecomposition depends on rounding errors, and
    training would too.
    """
    generator = torch.Generator().manual_seed(0)
    reference = torch.randn(vectors.shape, generator=generator, dtype=vectors.dtype, device="cpu")
    basis, scale = torch.linalg.qr(vectors @ (vectors.T @ reference.to(vectors.device)))
    return basis * scale.diagonal().sign()


def projected(regression: Regression, directions: Tensor) -> Regression:
    """The regression of some directions of a target with a single factor.

    Args:
        regression: regression of the full target.
        directions: (size, directions).
    """
    (matrix,) = regression.matrices
    return replace(regression, matrices=((matrix @ directions).contiguous(),), offset=regression.offset @ directions)
