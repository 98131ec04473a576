"""Stage 1 of messages computed by networks: closed-form regressions on instruments from moments."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchpbp.learning.least_squares import cholesky_factor
from torchpbp.learning.message_nets import InstrumentNets
from torchpbp.learning.stage1 import Penalties, PredictedProducts, Predictions, Stage1


class NetStage1(Stage1):
    """Stage 1 with messages and instruments computed by networks, differentiable in its moments.

    The factor of a ridge regression on η is L⁻ᵀ with L Lᵀ = Cov[η] + λ. Stage 2 is then the instrumental-variable estimate
    W = Cov[y, η] (Cov[η] + λ)⁻¹ Cov[η, θ] (…)⁻¹, which the ridge on η does not bias.

    Args:
        nets: networks of the plan.
        moments: averages in the order of :class:`~torchpbp.learning.net_moments.MomentSums`, with a class dimension.
        classes: keep the class dimension; otherwise it has size 1 and is removed.
    """

    def __init__(self, nets: InstrumentNets, moments: Sequence[Tensor], classes: bool) -> None:
        self.nets, self.classes = nets, classes
        self.moments = list(moments) if classes else [m.squeeze(0) for m in moments]

    def predictions(self, penalties: Penalties) -> Predictions:
        products, strengths, significant, fixed = [], {}, {}, {}
        for i, family in enumerate(self.nets.families):
            gram, message, product = (self._by_separator(m) for m in self.moments[3 * i : 3 * i + 3])
            ridge = penalties.of_nodes(family.nodes).stage1
            if isinstance(ridge, Tensor) and self.classes:
                ridge = ridge.unsqueeze(1)
            # The constant comes first in η, so the first column holds means, and covariances are its Schur complements.
            mean = gram[..., :1, 1:]
            factor = cholesky_factor(_centred(gram[..., 1:, 1:], mean.mT, mean) + ridge * _eye(gram))
            y = _whitened(_centred(product[..., 1:], product[..., :1], mean), factor)
            theta = _whitened(_centred(message[..., 1:, 1:], message[..., 1:, :1], mean), factor)
            products.append(
                PredictedProducts(family.nodes, family.sizes, product[..., 0], y, theta, message[..., 1:, 0])
            )
            explained = theta.detach().square().sum(dim=-1).clamp(max=1).sqrt()
            worst = explained if not self.classes else explained.amin(dim=1)
            one = worst.new_ones(len(worst), 1)
            for n, values in zip(
                family.nodes, torch.cat([one, worst.sort(dim=-1, descending=True)[0]], 1), strict=True
            ):
                strengths[n], significant[n] = values, family.rank
        root = self.moments[-1]
        for n, v in self.nets.own.items():
            eye = torch.eye(self.nets.dims[v], dtype=root.dtype, device=root.device)
            fixed[n] = eye.unsqueeze(0) if self.classes else eye  # one for all classes
            strengths[n], significant[n] = root.new_ones(len(eye)), len(eye)
        return Predictions(root, products, strengths, significant, fixed)

    def heads(self, penalties: Penalties) -> list[tuple[Tensor, Tensor]]:
        """Last layers of S1A and S1B by family: η @ head predicts the message, or the products below.

        Returns:
            (classes, separators, m, rank) and (classes, separators, m, ∏ sizes) each; without classes, no class dimension.
        """
        result = []
        for i, family in enumerate(self.nets.families):
            gram, message, product = self.moments[3 * i : 3 * i + 3]
            ridge = penalties.of_nodes(family.nodes).stage1
            heads = closed_form_heads(gram, torch.cat([message, product], dim=-2), ridge)
            result.append((heads[..., : family.rank], heads[..., family.rank :]))
        return result

    def _by_separator(self, moment: Tensor) -> Tensor:
        """Separators first, then classes."""
        return moment.transpose(0, 1) if self.classes else moment


def closed_form_heads(gram: Tensor, cross: Tensor, ridge: float | Tensor) -> Tensor:
    """(…, m, d) last layers with the smallest squared error of d targets, linear in η = (1, g).

    Args:
        gram: (…, m, m) E[ηηᵀ].
        cross: (…, d, m) E[yηᵀ].
        ridge: penalty, not of the constant.
    """
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    eye[0, 0] = 0.0
    return torch.cholesky_solve(cross.mT, cholesky_factor(gram + ridge * eye))


def _centred(second: Tensor, left: Tensor, right: Tensor) -> Tensor:
    return second - left * right


def _whitened(cross: Tensor, factor: Tensor) -> Tensor:
    """Cov[·, η] L⁻ᵀ."""
    return torch.linalg.solve_triangular(factor, cross.mT, upper=False).mT


def _eye(gram: Tensor) -> Tensor:
    return torch.eye(gram.shape[-1] - 1, dtype=gram.dtype, device=gram.device)
