"""The learned parts of a model: one module per separator, one for the root."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from torchpbp.graph.junction_tree import JunctionTree
from torchpbp.planning.plan import Specification


class SeparatorOperator(nn.Module):
    """W of an inner separator, or Ψ of a leaf: predicts what lies below from the message.

    Args:
        shape: (rank, children's ranks…) or, at a leaf, (rank, states of its observables…).
        name: shown when the module is printed.
        dtype: of the weight.

    Attributes:
        weight: the operator.
        strengths: (rank,) canonical correlations between core group and instrument along the message's dimensions.
        significant: how many of these dimensions the training data bear out.
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


def operator_shapes(tree: JunctionTree, specification: Specification, dims: Mapping[str, int]) -> list[tuple[int, ...]]:
    """Shape of each node's operator; entry 0, the root's, is empty."""
    shapes: list[tuple[int, ...]] = [()]
    for plan in specification.plans:
        below = tree.children[plan.node]
        sizes = [specification.plan(c).rank for c in below] or [dims[v] for v in tree.leaf_observables[plan.node]]
        shapes.append((plan.rank, *sizes))
    return shapes
