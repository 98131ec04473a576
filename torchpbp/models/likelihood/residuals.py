"""Residuals of pairs of observables: differences between their distributions in the data and in the fitted network."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchpbp.distributed import process_rank
from torchpbp.exact.prior import ancestral_sample
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.models.likelihood.moments import FormMoments

DRAWS = 2_000
"""Number of rows sampled from the network."""


@dataclass(frozen=True)
class PairResiduals:
    """Pearson's statistic of all pairs of observables, in a comparison of the data with a sample of the network.

    Args:
        statistic: (observables, observables) sums of squared residuals, each divided by its variance; 0 on the diagonal.
        freedom: their expectations for a fitted network of the true structure.
    """

    statistic: Tensor
    freedom: Tensor

    @property
    def misfit(self) -> float:
        """Sum of the statistics relative to its expectation: about 1 or less if the structure is true; NaN without pairs."""
        expected = float(self.freedom.sum())
        return float(self.statistic.sum()) / expected if expected else math.nan

    @property
    def relative(self) -> Tensor:
        """(observables, observables) each statistic relative to its expectation; NaN for expectation 0."""
        return torch.where(self.freedom > 0, self.statistic / self.freedom, math.nan)


def pair_residuals(
    graph: LatentGraph, tables: Mapping[str, Tensor], moments: FormMoments, seed: int = 0
) -> PairResiduals:
    """Compare the pairs of the data with those of a sample of a network.

    The tables of a sample are one matrix product for all pairs, where exact tables would take a query per pair. For pairs with
    missing values the rows with both values are counted.

    Args:
        graph: directed and discrete.
        tables: of its variables, given their parents.
        moments: of the data.
        seed: of the sample.
    """
    names = graph.topological_order()
    chances = np.random.default_rng(seed + process_rank()).random((len(names), DRAWS))
    drawn = ancestral_sample(
        [(graph.parents(v), (v,), tables[v]) for v in names],
        {v: graph.num_states(v) for v in names},
        torch.from_numpy(chances).to(moments.weights.device),
    )
    sample = FormMoments(moments.states, drawn, moments.weights.new_ones(DRAWS))
    member = moments.member
    counts, draws = member @ moments.pairs @ member.T, sample.rows
    ours, theirs = moments.joint, sample.joint
    pooled = (counts * ours + draws * theirs) / (counts + draws)
    variance = pooled * (1 / counts.clamp(min=1e-300) + 1 / draws)
    squares = torch.where(pooled > 0, (ours - theirs).square() / variance.clamp(min=1e-300), 0.0)
    seen = (moments.pairs > 0) & ~torch.eye(len(moments.pairs), dtype=torch.bool, device=member.device)
    statistic = torch.where(seen, member.T @ squares @ member, 0.0)
    cells = member.T @ (pooled > 0).double() @ member
    states = ((pooled.diagonal() > 0).double() @ member)[:, None]
    # The fitted network has the marginals of the data; those of the sample vary.
    fitted = cells - states - states.T + 1
    ours_share = draws / (moments.pairs + draws)  # of the variance
    freedom = torch.where(seen, ours_share * fitted.clamp(min=0) + (1 - ours_share) * (cells - 1), 0.0)
    return PairResiduals(statistic, freedom)
