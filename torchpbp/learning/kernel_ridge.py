"""Kernel ridge regression as stage 1: a product kernel over the outside observables, with landmark rows.

The kernel compares the variables of a separator's instrument in two rows, k(η, η') = exp(-Σ_v d_v(η, η')), where d_v is a
constant for different states of a discrete variable and half the squared distance in bandwidths for a continuous one.
It contains interactions of all orders. Features z with z(η)·z(η') = k(η, η') on the span of the landmarks are the
separator's instrument; the ridge regression on them has the model's penalty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchpbp.distributed import gather_rows
from torchpbp.errors import ArgumentError
from torchpbp.features.maps import OneHot
from torchpbp.learning.predictions import PredictedStage1
from torchpbp.learning.regressions import Predictor, Regression
from torchpbp.learning.stage1 import Penalties, RowRegressor, Stage1
from torchpbp.moments.moments import Moments
from torchpbp.moments.rows import TrainingRows
from torchpbp.planning.plan import Plan
from torchpbp.settings import Settings, positive, seed, setting, whole


@dataclass(frozen=True, kw_only=True)
class KernelRidgeSettings(Settings):
    """Settings of :class:`KernelRidge`."""

    landmarks: int = setting(200, whole(1))
    contrast: float = setting(0.5, positive())
    bandwidth: float = setting(1.0, positive())
    seed: int = setting(0, seed())


class KernelRidge(RowRegressor):
    """Ridge regression with a kernel, restricted to the span of landmark rows (subset of regressors).

    Args:
        landmarks: number of randomly drawn rows that span the regression functions.
        contrast: d_v for two different states of a discrete variable. For large values only identical rows are similar, as in
            a table; small values approach linear regression.
        bandwidth: bandwidth of continuous variables, in standard deviations.
        seed: seed of the landmarks.
    """

    def __init__(self, landmarks: int = 200, contrast: float = 0.5, bandwidth: float = 1.0, seed: int = 0) -> None:
        self.settings = KernelRidgeSettings(landmarks=landmarks, contrast=contrast, bandwidth=bandwidth, seed=seed)

    def learn(self, plan: Plan, moments: Moments, rows: TrainingRows | None, penalties: Penalties) -> Stage1:
        if rows is None:
            raise ArgumentError(f"{self!r} needs the rows themselves, not only moments.")
        return PredictedStage1(plan, moments, rows, self._fit, method=repr(self))

    def _fit(self, rows: TrainingRows, regressions: Sequence[Regression]) -> Predictor:
        generator = torch.Generator().manual_seed(self.settings.seed)
        content = gather_rows(rows.values)
        order = torch.randperm(len(content), generator=generator, device="cpu")[: self.settings.landmarks]
        chosen = content[order.to(content.device)]
        return _Kernels(self.settings, chosen, content.std(dim=0, unbiased=False), rows, regressions)

    def __repr__(self) -> str:
        return f"KernelRidge(landmarks={self.settings.landmarks})"


class _Kernels(Predictor):
    """Features of the kernel of each separator.

    Args:
        settings: settings of the kernel.
        landmarks: (landmarks, variables) states or values.
        spread: (variables,) standard deviations.
        rows: rows with the same variables as those to predict.
        regressions: one per separator.
    """

    def __init__(
        self,
        settings: KernelRidgeSettings,
        landmarks: Tensor,
        spread: Tensor,
        rows: TrainingRows,
        regressions: Sequence[Regression],
    ) -> None:
        self.landmarks = landmarks
        # A discrete variable is compared by equality, a continuous one by distance.
        where = rows.value_columns()
        kinds = [[isinstance(rows.maps[v], OneHot)] * (where[v].stop - where[v].start) for v in rows.names]
        self.equality = torch.tensor([kind for part in kinds for kind in part], device=landmarks.device)
        self.scale = torch.where(spread > 0, spread, torch.ones_like(spread)) * settings.bandwidth
        self.contrast = settings.contrast
        self.uses = landmarks.new_zeros(len(regressions), len(self.equality))
        for s, regression in enumerate(regressions):
            for v in regression.inputs:
                self.uses[s, where[v]] = 1.0 / (where[v].stop - where[v].start)  # a vector has the weight of a number
        values, vectors = torch.linalg.eigh(self._kernel(landmarks))  # (separators, landmarks, landmarks)
        varying = values > 1e-9 * values.amax(dim=1, keepdim=True)
        scale = torch.where(varying, values.clamp(min=1e-300).rsqrt(), torch.zeros_like(values))
        self.whitener = vectors * scale.unsqueeze(1)

    def _kernel(self, values: Tensor) -> Tensor:
        """(separators, rows, landmarks) kernel values."""
        difference = values.unsqueeze(1) - self.landmarks  # (rows, landmarks, variables)
        unlike = (difference != 0).double() * self.contrast
        distance = torch.where(self.equality, unlike, 0.5 * (difference / self.scale).square())
        return torch.exp(-torch.einsum("rlv,sv->srl", distance, self.uses))

    def predict(self, rows: TrainingRows, positions: Tensor) -> list[Tensor]:
        parts = [torch.bmm(self._kernel(part), self.whitener) for part in torch.split(rows.values, 512)]
        return list(torch.cat(parts, dim=1))
