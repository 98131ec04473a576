"""Predictions stacked beside the features of linear stage 1, in the directions in which they tell significantly more.

Each dimension of an instrument adds noise to stage 2. On most networks linear regression says all there is to say about a
message, and predictions of nets would add noise only. What they know beyond the linear features is tested first: rows
are predicted by nets that have not seen them, so a prediction that correlates with its target does so for a reason.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchpbp.learning.compression import SIGNIFICANCE
from torchpbp.learning.regressions import Predictor
from torchpbp.moments.moments import Moments
from torchpbp.moments.rows import Projections, TrainingRows
from torchpbp.planning.plan import Plan

NEGLIGIBLE = 1e-10
"""Variance beyond the linear features, as a part of a prediction's largest, that counts as rounding."""


class StackedInstruments(Predictor):
    """Predictions followed by the features of the instrument's groups, on the scale that ridge penalties are meant for.

    Args:
        predictor: the predictions.
        plan: with the groups of each separator.
        moments: for the scale.
        rows: rows of the kind to be read.
    """

    def __init__(self, predictor: Predictor, plan: Plan, moments: Moments, rows: TrainingRows) -> None:
        self.predictor = predictor
        self.groups = [[g for g in s.instrument if g] for s in plan.separators]
        scaled = {
            g: torch.diag(moments.instrument_scale(g)).unsqueeze(0)
            for g in {g: None for groups in self.groups for g in groups}
        }
        self.features = {g: Projections([g], matrix, rows) for g, matrix in scaled.items()}

    def predict(self, rows: TrainingRows, positions: Tensor) -> list[Tensor]:
        linear = {g: module(rows).squeeze(1) for g, module in self.features.items()}
        predictions = self.predictor.predict(rows, positions)
        return [
            torch.cat([p, *(linear[g] for g in groups)], dim=1)
            for p, groups in zip(predictions, self.groups, strict=True)
        ]


def significant_directions(cross: Tensor, gram: Tensor, least: int, rows: float, level: float = SIGNIFICANCE) -> Tensor:
    """The part of a stacked instrument that is worth its noise: all linear features, and what predictions add to them.

    From a prediction f of y its linear regression on the features is taken. Of the principal directions v of the rest f⊥,
    those stay in which v·f⊥ correlates with v·y, by a one-sided test of each.

    Args:
        cross: (y, instrument) covariance of what is predicted, of unit variance at most in each direction, with the
            instrument, whose first dimensions, as many as y has, are its prediction.
        gram: (instrument, instrument) covariance of the instrument.
        least: dimensions that the message needs; where fewer would stay, all do.
        rows: behind the covariances; below 2 for a population, where nothing is left out.
        level: chance that an uninformative dimension is kept.

    Returns:
        (instrument, kept) matrix that takes the instrument to what is kept of it.
    """
    every = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    if rows < 2:
        return every
    predicted = len(cross)
    linear = every[:, predicted:]
    slope = torch.linalg.pinv(gram[predicted:, predicted:], rtol=1e-10, hermitian=True) @ gram[predicted:, :predicted]
    rest = every[:, :predicted] - linear @ slope  # takes the instrument to f⊥
    variances, directions = torch.linalg.eigh(rest.mT @ gram @ rest)
    covariances = (directions * (cross @ rest @ directions)).sum(dim=0)
    correlations = covariances / variances.clamp(min=torch.finfo(gram.dtype).tiny).sqrt()
    varies = variances > NEGLIGIBLE * gram[:predicted, :predicted].diagonal().amax()
    threshold = -torch.special.ndtri(gram.new_tensor(level))
    significant = varies & (correlations * math.sqrt(rows) > threshold)
    result = torch.cat([(rest @ directions)[:, significant], linear], dim=1)
    return every if result.shape[1] < least else result
