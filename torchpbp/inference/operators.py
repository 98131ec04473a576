"""The learned parts of a model as modules: one per separator, one for the root."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class SeparatorOperator(nn.Module):
    """W of an inner separator, or Ψ of a leaf: predicts what lies below from the message.

    Args:
        shape: (rank, children's ranks…) or, at a leaf, (rank, states of its observables…).
        name: shown when the module is printed.
        dtype: of the weight.

    Attributes:
        weight: the operator.
        strengths: (rank,) canonical correlations between core group and instrument along the message's dimensions.
        significant: how many of these dimensions are statistically significant in the training data.
    """

    strengths: Tensor
    significant: Tensor

    def __init__(self, shape: Sequence[int], name: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.name = name
        self.weight = nn.Parameter(torch.zeros(*shape, dtype=dtype))
        self.register_buffer("strengths", torch.zeros(shape[0], dtype=dtype))
        self.register_buffer("significant", torch.tensor(0, dtype=torch.int64))

    def extra_repr(self) -> str:
        return f"{self.name}, shape={tuple(self.weight.shape)}"


class RootOperator(nn.Module):
    """T = E[⊗ θ] over the root's children.

    Args:
        shape: children's ranks.
        dtype: of the weight.
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(*shape, dtype=dtype))

    def extra_repr(self) -> str:
        return f"shape={tuple(self.weight.shape)}"
