"""Message passing of a KernelPBP: functions represented by values or coefficients at the training rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchpbp.graph.junction_tree import JunctionTree
from torchpbp.models.kernel.comparison import rescale_
from torchpbp.models.kernel.gram_operators import GramOperator


@dataclass(frozen=True)
class GramMessages:
    """Values of upward messages, and the (batch,) log of their extracted scales."""

    messages: dict[int, Tensor]
    log_scale: Tensor


@dataclass(frozen=True)
class GramMessagePassing:
    """Upward and downward messages on a junction tree.

    Args:
        tree: of the model.
        operators: node -> :class:`~torchpbp.models.kernel.gram_operators.GramOperator`, for nodes above more than one leaf.
        positive: clip messages at 0.
    """

    tree: JunctionTree
    operators: nn.ModuleDict
    positive: bool

    def upward(self, leaf_values: Callable[[int], tuple[Tensor, Tensor]], keep: bool = True) -> GramMessages:
        """Values of every upward message at the training rows.

        Args:
            leaf_values: leaf -> (batch, rows) values of its message, with a largest entry of 1, and the (batch,) log of the
                extracted scale.
            keep: whether messages of inner nodes are returned; otherwise a pass takes little memory and is faster.
        """
        messages: dict[int, Tensor] = {}
        logs: list[Tensor] = []

        def below(node: int) -> list[Tensor]:
            for child in self.tree.children[node]:
                if self.tree.leaf_observables[child]:
                    messages[child], log_scale = leaf_values(child)
                    logs.append(log_scale)
            return [messages[c] if keep else messages.pop(c) for c in self.tree.children[node]]

        for node in reversed(self.tree.inner):
            messages[node], log_scale = self._normalised(self._operator(node).upward(product(below(node))))
            logs.append(log_scale)
        top = below(0)
        return GramMessages(
            {**messages, **dict(zip(self.tree.children[0], top, strict=True))}, torch.stack(logs).sum(dim=0)
        )

    def downward(self, up: GramMessages, leaves: set[int]) -> dict[int, Tensor]:
        """Node -> (batch, rows) coefficients of its downward message, for ``leaves`` and the nodes above them."""
        wanted: set[int] = set()
        for node in leaves:
            while node > 0:
                wanted.add(node)
                node = self.tree.parent[node]
        messages: dict[int, Tensor] = {}
        for node in [0, *self.tree.inner]:
            if node and node not in wanted:
                continue
            if node == 0:
                above = torch.ones_like(up.messages[self.tree.children[0][0]])
            else:
                above = self._operator(node).downward(messages[node])
            for child in self.tree.children[node]:
                if child in wanted:
                    others = [up.messages[c] for c in self.tree.children[node] if c != child]
                    message = above * product(others) if others else above
                    messages[child] = self._normalised(message)[0]
        return messages

    def _operator(self, node: int) -> GramOperator:
        operator = self.operators[str(node)]
        assert isinstance(operator, GramOperator)
        return operator

    def _normalised(self, message: Tensor) -> tuple[Tensor, Tensor]:
        """A message, modified in place, with a largest entry of 1, clipped if ``positive``; and the (batch,) log of its scale."""
        return rescale_(message.clamp_(min=0) if self.positive else message)


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Context in which denormal numbers are 0: they are frequent in kernels, and up to 100 times slower."""
    before = float(torch.full((1,), torch.finfo(torch.float64).tiny, dtype=torch.float64, device="cpu").mul(0.5)) == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def product(parts: Sequence[Tensor]) -> Tensor:
    """Elementwise product."""
    result = parts[0]
    for part in parts[1:]:
        result = result * part
    return result
