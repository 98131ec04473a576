"""Regressions of the separators, and what predicts their targets for whole batches of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchpbp.learning.compression import apply_whitener, orthogonal_to
from torchpbp.moments.moments import Moments
from torchpbp.moments.rows import ProductTargets, Projections, TrainingRows, shape_key
from torchpbp.planning.plan import Group, Plan


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
