"""Learned operators as modules: one per separator, one for the root."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class SeparatorOperator(nn.Module):
    """W of an inner separator, or Ψ of a leaf: predicts the children's messages or the leaf's features from the message.

    Args:
        shape: (rank, children's ranks…) or, at a leaf, (rank, states of its observables…).
        name: name in the printed module.
        dtype: dtype of the weight.
        classes: number of classes, with one operator each; None for a single operator.

    Attributes:
        weight: the operator; like ``strengths`` and ``significant`` it has a leading dimension if there are classes.
        strengths: (rank,) canonical correlations between core group and instrument along the message's dimensions.
        significant: number of statistically significant dimensions in the training data.
    """

    strengths: Tensor
    significant: Tensor

    def __init__(self, shape: Sequence[int], name: str, dtype: torch.dtype, classes: int | None = None) -> None:
        super().__init__()
        self.name = name
        leading = () if classes is None else (classes,)
        self.weight = nn.Parameter(torch.zeros(*leading, *shape, dtype=dtype))
        self.register_buffer("strengths", torch.zeros(*leading, shape[0], dtype=dtype))
        self.register_buffer("significant", torch.zeros(leading, dtype=torch.int64))

    def extra_repr(self) -> str:
        return f"{self.name}, shape={tuple(self.weight.shape)}"


class RootOperator(nn.Module):
    """T = E[⊗ θ] over the root's children.

    Args:
        shape: children's ranks.
        dtype: dtype of the weight.
        classes: number of classes, the size of a leading dimension; None for a single root.
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, classes: int | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(*(() if classes is None else (classes,)), *shape, dtype=dtype))

    def extra_repr(self) -> str:
        return f"shape={tuple(self.weight.shape)}"
