"""Encoders that return NaN: an error in fits and answers, no NaN that goes unnoticed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from torchpbp import PBP, Continuous, templates
from torchpbp.errors import DataError


class FailsFarOut(nn.Module):
    """NaN beyond 1.5."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, values: Tensor) -> Tensor:
        return torch.where(values[:, :1] > 1.5, torch.nan, self.layer(values))


def test_nan_of_an_encoder_is_an_error() -> None:
    torch.manual_seed(0)
    leaves = {f"x{i}": Continuous(shape=(2,)) for i in range(4)}
    graph = templates.balanced_tree(leaves, leaf_states=4, states=3)
    rows = {v: torch.randn(200, 2).clamp(-1, 1) for v in leaves}
    model = PBP(graph, features=FailsFarOut()).fit(rows)
    for ask in (lambda e: model.posterior("x0", e), model.log_evidence):
        with pytest.raises(DataError, match="The encoder of 'x1' returned NaN or infinity"):
            ask({"x1": torch.full((1, 2), 2.0)})
    rows["x2"][5] = 2.0
    with pytest.raises(DataError, match="The encoder of 'x2' returned NaN or infinity"):
        PBP(graph, features=FailsFarOut()).fit(rows)
