"""Stage 1 by trained networks: their predictions as instruments, and both heads of the networks in the model."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from torchpbp.learning.blanks import Blanks
from torchpbp.learning.compression import Message
from torchpbp.learning.heads import Correlations, HeadPredictor, Sums, add, sums_of
from torchpbp.learning.predictions import PredictedStage1, product_regression
from torchpbp.learning.regressions import Regression, targets_of
from torchpbp.learning.separator_nets import SeparatorNets
from torchpbp.moments.moments import Moments
from torchpbp.planning.plan import Plan


class TrainedStage1(PredictedStage1):
    """Regressions on predictions of trained networks.

    Args:
        plan: core groups, instruments and ranks.
        moments: moments of core groups and of products below.
        predictor: trained networks with heads that predict core features from complete rows.
        directions: as for :class:`PredictedStage1`.
        blanks: masks of inputs for solving both heads.
        method: name of the method, for errors.
    """

    def __init__(
        self,
        plan: Plan,
        moments: Moments,
        predictor: HeadPredictor,
        directions: Sequence[Tensor] | None,
        blanks: Blanks,
        method: str,
    ) -> None:
        self.predictor, self.blanks = predictor, blanks
        super().__init__(plan, moments, predictor.folded.rows, lambda *_: predictor, directions, method)

    def nets(self, messages: Mapping[int, Message]) -> SeparatorNets:
        """The networks with S1A and S1B solved on rows, a share of them with missing values."""
        plan, predictor = self.plan, self.predictor
        folded, trained = predictor.folded, predictor.nets
        nodes = range(1, len(plan.tree))
        below = [product_regression(plan, self.moments, messages, n) for n in nodes]
        inside = [message_regression(plan, messages, n) for n in nodes]
        of_messages, of_products = targets_of(inside, folded.rows), targets_of(below, folded.rows)

        def sums() -> Iterator[Sums]:
            for number in range(self.blanks.draws):
                drawn = self.blanks.seen(number)
                seen = None if drawn is None else drawn.to(folded.rows.device)
                for positions, part in folded.batches(trained):
                    eta = predictor.eta(part, None if seen is None else seen[positions])
                    targets = [torch.cat(y, dim=1) for y in zip(of_messages(part), of_products(part), strict=True)]
                    yield sums_of(eta, targets, folded.weights(positions, own=False))

        total = functools.reduce(add, sums()).over_processes()
        heads = Correlations.of(total).heads(total, predictor.penalties, trained.inputs.width - 1)
        dims = {v: m.dim for v, m in folded.rows.maps.items()}
        with folded.rows.device:
            nets = SeparatorNets(plan, dims, trained.widths, trained.folds, trained.dtype)
        nets.hidden.load_state_dict(trained.state_dict())
        nets.set_heads(
            {n: h[:, : plan[n].rank - 1] for n, h in zip(nodes, heads, strict=True)},
            {n: h[:, plan[n].rank - 1 :] for n, h in zip(nodes, heads, strict=True)},
        )
        return nets


def message_regression(plan: Plan, messages: Mapping[int, Message], node: int) -> Regression:
    """Regression S1A of a separator's message, without its constant."""
    features = messages[node].features[:, 1:]
    name, inputs = plan.tree.separator_name(node), plan[node].outside
    return Regression(name, inputs, (plan[node].core,), (features,), features.new_zeros(features.shape[1]))
