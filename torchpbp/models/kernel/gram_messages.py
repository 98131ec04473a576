"""Messages of a KernelPBP: functions, kept by their values or coefficients at the training rows, up and down the tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchpbp.graph.junction_tree import JunctionTree
from torchpbp.models.kernel.gram_operators import GramOperator


@dataclass(frozen=True)
class GramMessages:
    """Values of upward messages, and the (batch,) log of all that was taken out of them."""

    messages: list[Tensor]
    log_scale: Tensor


@dataclass(frozen=True)
class GramMessagePassing:
    """The recursion on one tree.

    Args:
        tree: of the model.
        operators: node -> :class:`~torchpbp.models.kernel.gram_operators.GramOperator`, for nodes above more than one leaf.
        positive: clip messages at 0.
    """

    tree: JunctionTree
    operators: nn.ModuleDict
    positive: bool

    def upward(self, leaf_values: Mapping[int, Tensor], log_scale: Tensor) -> GramMessages:
        """Values of every upward message at the training rows.

        Args:
            leaf_values: leaf -> (batch, rows) values that it sends.
            log_scale: (batch,) log of what was taken out of them already.
        """
        messages: list[Tensor] = [log_scale.new_empty(0)] * len(self.tree)
        for leaf, values in leaf_values.items():
            messages[leaf], logs = _rescaled(values)
            log_scale = log_scale + logs
        for node in reversed(self.tree.inner):
            message = self._operator(node).upward(product([messages[c] for c in self.tree.children[node]]))
            messages[node], logs = _rescaled(self._clipped(message))
            log_scale = log_scale + logs
        return GramMessages(messages, log_scale)

    def downward(self, up: GramMessages, leaves: set[int]) -> dict[int, Tensor]:
        """Node -> (batch, rows) coefficients that arrive there, for the leaves wanted and the nodes above them."""
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
                    messages[child] = _rescaled(self._clipped(message))[0]
        return messages

    def _operator(self, node: int) -> GramOperator:
        operator = self.operators[str(node)]
        assert isinstance(operator, GramOperator)
        return operator

    def _clipped(self, message: Tensor) -> Tensor:
        return message.clamp(min=0) if self.positive else message


def product(parts: Sequence[Tensor]) -> Tensor:
    """Elementwise product."""
    result = parts[0]
    for part in parts[1:]:
        result = result * part
    return result


def _rescaled(message: Tensor) -> tuple[Tensor, Tensor]:
    """Divide each row by its largest absolute value; also return the logs, as float64."""
    scale = message.abs().amax(dim=1)
    safe = torch.where(scale > 0, scale, torch.ones_like(scale))
    return message / safe.unsqueeze(1), safe.double().log()
