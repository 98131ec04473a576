"""The contract of stage-1 regressors.

A regressor predicts features of the inside of each separator from observables outside of it. The closed-form linear
one (:class:`Ridge`) needs moments only. Others walk over the rows: they are fitted to all separators at once and then
asked for predictions of the very rows they were fitted to, which must come from regressors that have not seen those
rows wherever the method could memorise them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from torchpbp.moments.rows import Group, ProductTargets, Projections, Rows, shape_key

Form = Literal["instrumental", "plain"]


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
    """Fitted regressors of all separators."""

    @abstractmethod
    def predict(self, rows: Rows, positions: Tensor) -> list[Tensor]:
        """Instrument or prediction of each regression, (rows, m) each.

        Args:
            rows: some of the rows fitted to.
            positions: (rows,) their numbers among all rows of this process.
        """


class Regressor(ABC):
    """Settings of a stage-1 method.

    Attributes:
        form: what stage 2 makes of the predictions ḡ of θ. "instrumental": ḡ is an instrument for raw θ and raw y, so W
            stays consistent however poor ḡ is. "plain": least squares from ḡ to a second prediction h̄ of y, as in [PBP].
        linear: whether, in the instrumental form, the features that linear stage 1 would use are the instrument, and ḡ joins
            them only as far as it tells more.
        needs_rows: whether it walks over the rows; moments are not enough then.
        starts_linear: whether it goes on from the solution with linear stage 1.
    """

    form: Form = "instrumental"
    linear = False
    needs_rows = True
    starts_linear = False

    @abstractmethod
    def fit(self, rows: Rows, regressions: Sequence[Regression], stage: str) -> Predictor:
        """Fit all regressions.

        Args:
            rows: the rows of this process.
            regressions: one per separator.
            stage: "stage1a" (features of the core group) or "stage1b" (joint features below), for messages and files.
        """


class Ridge(Regressor):
    """Linear regression on indicator or kernel features of the instrument's groups, in closed form from moments.

    Its penalty is the model's ``ridge``.
    """

    needs_rows = False

    def fit(self, rows: Rows, regressions: Sequence[Regression], stage: str) -> Predictor:
        raise NotImplementedError("Linear stage 1 is solved from moments; see torchpbp.learning.linear.")

    def __repr__(self) -> str:
        return "Ridge()"


def families(regressions: Sequence[Regression], rows: Rows) -> list[tuple[list[int], ProductTargets]]:
    """Regressions of equal shape: their numbers, and the module that computes all their targets."""
    found: dict[tuple[object, ...], list[int]] = {}
    for i, r in enumerate(regressions):
        found.setdefault(shape_key(r.groups, r.matrices, rows), []).append(i)
    result = []
    for members in found.values():
        same = [regressions[i] for i in members]
        factors = [
            Projections([r.groups[k] for r in same], torch.stack([r.matrices[k] for r in same]), rows)
            for k in range(len(same[0].groups))
        ]
        result.append((members, ProductTargets(factors, torch.stack([r.offset for r in same]))))
    return result
