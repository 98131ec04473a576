"""Stage 1 by trained nets: their predictions as instruments, and both heads for the nets that stay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from torchpbp.learning.blanks import Blanks
from torchpbp.learning.compression import Message
from torchpbp.learning.heads import Correlations, HeadPredictor, Sums, add_up, sums_of
from torchpbp.learning.predictions import PredictedStage1
from torchpbp.learning.regressions import Regression, targets_of
from torchpbp.learning.ridge import compressions
from torchpbp.learning.separator_nets import SeparatorNets
from torchpbp.moments.moments import Moments
from torchpbp.planning.plan import Plan


class TrainedStage1(PredictedStage1):
    """Regressions on what trained nets predict.

    Args:
        plan: core groups, instruments and ranks.
        moments: of core groups and of what operators predict.
        predictor: trained nets with heads that predict core features from complete rows.
        directions: as for :class:`PredictedStage1`.
        blanks: which values are hidden from the nets when their two heads are solved.
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
        """The nets with S1A and S1B solved on rows of which a share has missing values."""
        plan, predictor = self.plan, self.predictor
        folded, trained = predictor.folded, predictor.nets
        nodes = range(1, len(plan.tree))
        below = [self._regression(n, plan.targets(n), compressions(plan, messages, n)) for n in nodes]
        own = [self._regression(n, [plan[n].core], [messages[n].features[:, 1:]]) for n in nodes]
        of_messages, of_products = targets_of(own, folded.rows), targets_of(below, folded.rows)

        def sums() -> Iterator[Sums]:
            for number in range(self.blanks.draws):
                seen = self.blanks.seen(number)
                for positions, part in folded.batches(trained):
                    eta = predictor.eta(part, None if seen is None else seen[positions])
                    targets = [torch.cat(y, dim=1) for y in zip(of_messages(part), of_products(part), strict=True)]
                    yield sums_of(eta, targets, folded.weights(positions, own=False))

        total = add_up(sums())
        heads = Correlations.of(total).heads(total, predictor.penalties, trained.inputs.width - 1)
        dims = {v: m.dim for v, m in folded.rows.maps.items()}
        nets = SeparatorNets(plan, dims, trained.widths, trained.folds, trained.dtype)
        nets.hidden.load_state_dict(trained.state_dict())
        nets.set_heads(
            {n: h[:, : plan[n].rank - 1] for n, h in zip(nodes, heads, strict=True)},
            {n: h[:, plan[n].rank - 1 :] for n, h in zip(nodes, heads, strict=True)},
        )
        return nets

    def _regression(
        self, node: int, groups: Sequence[tuple[str, ...]], matrices: Sequence[Tensor] | None
    ) -> Regression:
        """The regression of a message, or of products, as they are."""
        if matrices is None:
            matrices = [torch.eye(self.moments.dim(g), dtype=torch.float64) for g in groups]
        size = torch.Size([m.shape[1] for m in matrices]).numel()
        name, inputs = self.plan.tree.separator_name(node), self.plan[node].outside
        return Regression(name, inputs, tuple(groups), tuple(matrices), torch.zeros(size, dtype=torch.float64))
