"""The model's own messages as stage 1."""

from __future__ import annotations

from collections.abc import Sequence

from torchpbp.errors import StructureError
from torchpbp.learning.regressor import Predictor, Regression, Regressor
from torchpbp.moments.rows import Rows


class Messages(Regressor):
    """What the fitted model itself predicts about the inside of a separator, from all that lies outside.

    Linear stage 1 looks at a few observables outside, each by itself. A model so fitted sends messages down its tree, and
    these combine everything outside by the rules of probability: they are the best instruments there are, as far as
    the model is right. So the two stages are solved again with its messages as instruments. In stage 2 an instrument
    cannot bias, however wrong it is; a good one means less noise.

    Args:
        rounds: how often the stages are solved again, each time with the messages of the solution before.
    """

    starts_linear = True

    def __init__(self, rounds: int = 1) -> None:
        if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
            raise StructureError(f"rounds: expected a whole number of at least 1, got {rounds!r}.")
        self.rounds = rounds

    def fit(self, rows: Rows, regressions: Sequence[Regression], stage: str) -> Predictor:
        raise NotImplementedError("Messages come from a fitted model; see torchpbp.learning.own_messages.")

    def __repr__(self) -> str:
        return f"Messages(rounds={self.rounds})"
