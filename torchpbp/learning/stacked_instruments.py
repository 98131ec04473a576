"""Features of linear stage 1 stacked with predictions, in the directions where predictions significantly improve on them.

Each dimension of an instrument adds noise to stage 2. On most graphs linear regression is sufficient for the messages, and
predictions of networks would only add noise. Their contribution beyond the linear features is therefore tested first; the tests
are valid because rows are predicted out of fold.
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
"""Residual variance, as a share of a prediction's largest, that counts as rounding error."""


class StackedInstruments(Predictor):
    """Predictions followed by the features of the instrument's groups, scaled as for ridge penalties.

    Args:
        predictor: predictor of the predictions.
        plan: plan with the groups of each separator.
        moments: moments that determine the scale.
        rows: rows with the same variables as those to predict.
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
    """Projection of a stacked instrument to all linear features and the significant directions of the predictions.

    f⊥ is the residual of a prediction f of y after linear regression on the features. Of its principal directions v, those
    are selected in which v·f⊥ correlates with v·y, by one-sided tests.

    Args:
        cross: (y, instrument) covariance of the targets, of variance at most 1 in each direction, with the instrument. The
            first dimensions of the instrument, as many as y has, are the prediction of y.
        gram: (instrument, instrument) covariance of the instrument.
        least: number of dimensions that the message needs; if fewer are selected, the instrument is not reduced.
        rows: number of rows; below 2 for a population, where the instrument is not reduced.
        level: probability that an uninformative dimension is selected.

    Returns:
        (instrument, selected) matrix that projects the instrument.
    """
    every = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    if rows < 2:
        return every
    predicted = len(cross)
    linear = every[:, predicted:]
    slope = torch.linalg.pinv(gram[predicted:, predicted:], rtol=1e-10, hermitian=True) @ gram[predicted:, :predicted]
    rest = every[:, :predicted] - linear @ slope  # maps the instrument to f⊥
    variances, directions = torch.linalg.eigh(rest.mT @ gram @ rest)
    covariances = (directions * (cross @ rest @ directions)).sum(dim=0)
    correlations = covariances / variances.clamp(min=torch.finfo(gram.dtype).tiny).sqrt()
    varies = variances > NEGLIGIBLE * gram[:predicted, :predicted].diagonal().amax()
    threshold = -torch.special.ndtri(gram.new_tensor(level))
    significant = varies & (correlations * math.sqrt(rows) > threshold)
    result = torch.cat([(rest @ directions)[:, significant], linear], dim=1)
    return every if result.shape[1] < least else result
