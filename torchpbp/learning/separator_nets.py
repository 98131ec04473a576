"""Trained networks of all separators with both heads, as part of a model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchpbp.errors import ArgumentError, CheckpointError
from torchpbp.inference.leaf_features import LeafFeatures
from torchpbp.learning.nets import HiddenNets, Inputs, hidden_shapes, input_width
from torchpbp.learning.ridge import equal_shapes
from torchpbp.learning.stage1_nets import PredictedMessage, RegressionNets
from torchpbp.planning.plan import Plan
from torchpbp.settings import floating_dtype, several, whole


class SeparatorNets(RegressionNets):
    """One network per separator and fold on the observables of the instrument, with two heads on its hidden layers.

    S1A predicts the message, S1B the products below it. Predictions are averaged over the folds. The parameters have no
    gradient: the hidden layers are trained already, and the heads are solved in closed form.

    Args:
        plan: core groups, instruments and ranks.
        dims: feature dimensions of each observable.
        hidden: widths of the hidden layers.
        folds: networks per separator.
        dtype: dtype of the parameters.
    """

    def __init__(
        self, plan: Plan, dims: Mapping[str, int], hidden: Sequence[int], folds: int, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.hidden = HiddenNets(Inputs([s.outside for s in plan.separators], dims), folds, hidden, dtype)
        self.families, self.sizes = head_families(plan, dims)
        shapes = head_shapes(plan, self.families, self.sizes, folds, self.hidden.size)
        self.message_heads = nn.ParameterList(nn.Parameter(torch.zeros(a, dtype=dtype)) for a, _ in shapes)
        self.product_heads = nn.ParameterList(nn.Parameter(torch.zeros(b, dtype=dtype)) for _, b in shapes)
        self.requires_grad_(False)

    @torch.no_grad()
    def set_heads(self, messages: Mapping[int, Tensor], products: Mapping[int, Tensor]) -> None:
        """Copy solved heads into the parameters.

        Args:
            messages: node -> (K, rank − 1, size) head of S1A, without the constant.
            products: node -> (K, ∏ sizes below, size) head of S1B.
        """
        for nodes, a, b in zip(self.families, self.message_heads, self.product_heads, strict=True):
            a.copy_(torch.stack([messages[n] for n in nodes]))
            b.copy_(torch.stack([products[n] for n in nodes]))

    def predict(self, leaves: LeafFeatures) -> dict[int, PredictedMessage]:
        nets = self.hidden
        x, h = nets(nets.inputs.of_features(leaves.features, leaves.seen, nets.dtype))
        eta = torch.cat([x.unsqueeze(1).expand(-1, nets.folds, -1, -1), h], dim=2).flatten(1, 2) / nets.folds
        result: dict[int, PredictedMessage] = {}
        for nodes, *heads in zip(self.families, self.message_heads, self.product_heads, strict=True):
            inputs = eta[[n - 1 for n in nodes]]
            theta, y = ((head.transpose(1, 2).flatten(2) @ inputs).mT for head in heads)
            message = torch.cat([torch.ones_like(inputs[:, :1].mT), theta], dim=-1)
            result |= {
                n: PredictedMessage(m, p.reshape(len(p), *self.sizes[n]))
                for n, m, p in zip(nodes, message, y, strict=True)
            }
        return dict(sorted(result.items()))

    # -- files ---------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        nets = self.hidden
        return {"hidden": list(nets.widths), "folds": nets.folds, "dtype": str(nets.dtype).removeprefix("torch.")}

    @classmethod
    def saved_shapes(cls, plan: Plan, dims: Mapping[str, int], saved: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        hidden, folds, _ = _read(saved)
        groups = [s.outside for s in plan.separators]
        width = input_width(groups, dims)
        layers = hidden_shapes(len(groups), folds, width, hidden)
        result: dict[str, tuple[int, ...]] = {
            f"hidden.{name}.{i}": shape for name, shapes in layers.items() for i, shape in enumerate(shapes)
        }
        families, sizes = head_families(plan, dims)
        size = width + (hidden[-1] if hidden else 0)
        for i, (a, b) in enumerate(head_shapes(plan, families, sizes, folds, size)):
            result |= {f"message_heads.{i}": a, f"product_heads.{i}": b}
        return result

    @classmethod
    def from_dict(cls, plan: Plan, dims: Mapping[str, int], saved: Mapping[str, Any]) -> SeparatorNets:
        return cls(plan, dims, *_read(saved))

    @classmethod
    def settings_of_state(cls, state: Mapping[str, Tensor]) -> dict[str, Any] | None:
        first = state.get("message_heads.0")
        if first is None or first.ndim != 4:
            return None
        layers = sum(name.startswith("hidden.weights.") for name in state)
        hidden = [int(state[f"hidden.weights.{i}"].shape[2]) for i in range(layers)]
        return {"hidden": hidden, "folds": int(first.shape[1]), "dtype": str(first.dtype).removeprefix("torch.")}


def head_families(plan: Plan, dims: Mapping[str, int]) -> tuple[list[list[int]], dict[int, tuple[int, ...]]]:
    """Nodes grouped by the shapes of their heads, and the sizes below each node."""
    shapes = {n: s for n, s in enumerate(plan.operator_shapes(dims)) if n}
    return equal_shapes(shapes), {n: tuple(s[1:]) for n, s in shapes.items()}


def head_shapes(
    plan: Plan, families: Sequence[Sequence[int]], sizes: Mapping[int, Sequence[int]], folds: int, size: int
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Shapes of both heads of each family of separators.

    Args:
        plan: plan with the ranks.
        families: nodes of equal shape.
        sizes: sizes below each node.
        folds: networks per separator.
        size: number of inputs of a head.
    """
    return [
        ((len(nodes), folds, plan[nodes[0]].rank - 1, size), (len(nodes), folds, math.prod(sizes[nodes[0]]), size))
        for nodes in families
    ]


def _read(saved: Mapping[str, Any]) -> tuple[tuple[int, ...], int, torch.dtype]:
    """Checked settings of networks in a file."""
    try:
        hidden = several(whole(1), expected="widths of hidden layers").check("hidden", saved["hidden"])
        folds = whole(1).check("folds", saved["folds"])
        dtype = floating_dtype().check("dtype", getattr(torch, str(saved["dtype"]), None))
    except (ArgumentError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"Nets of stage 1: expected widths, folds and a dtype, got {saved!r} ({error})."
        ) from error
    return hidden, folds, dtype
