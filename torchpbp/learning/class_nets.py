"""Stage-1 networks of a model with one operator tree per class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchpbp.errors import CheckpointError
from torchpbp.inference.leaf_features import LeafFeatures
from torchpbp.learning.separator_nets import SeparatorNets
from torchpbp.learning.stage1_nets import PredictedMessage, RegressionNets
from torchpbp.planning.plan import Plan


class ClassNets(RegressionNets):
    """Stage-1 networks of each class. Predictions have a leading class dimension.

    Args:
        members: networks of the classes, in order; classes may share networks.
    """

    def __init__(self, members: Sequence[SeparatorNets]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def predict(self, leaves: LeafFeatures) -> dict[int, PredictedMessage]:
        parts = [m.predict(leaves) for m in self.members if isinstance(m, SeparatorNets)]
        return {
            n: PredictedMessage(*(torch.stack(tensors) for tensors in zip(*(p[n] for p in parts), strict=True)))
            for n in parts[0]
        }

    def to_dict(self) -> dict[str, Any]:
        return {"members": [m.to_dict() for m in self.members if isinstance(m, SeparatorNets)]}

    @classmethod
    def saved_shapes(cls, plan: Plan, dims: Mapping[str, int], saved: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        if not isinstance(saved.get("members"), list) or not saved["members"]:
            raise CheckpointError(f"Nets of stage 1: expected those of each class, got {saved!r}.")
        return {
            f"members.{i}.{name}": shape
            for i, member in enumerate(saved["members"])
            for name, shape in SeparatorNets.saved_shapes(plan, dims, member).items()
        }

    @classmethod
    def from_dict(cls, plan: Plan, dims: Mapping[str, int], saved: Mapping[str, Any]) -> ClassNets:
        return cls([SeparatorNets.from_dict(plan, dims, member) for member in saved["members"]])

    @classmethod
    def settings_of_state(cls, state: Mapping[str, Tensor]) -> dict[str, Any] | None:
        members: list[dict[str, Any] | None] = []
        while member := _starting_with(f"members.{len(members)}.", state):
            members.append(SeparatorNets.settings_of_state(member))
        return {"members": members} if members and all(members) else None


def _starting_with(start: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(start): t for name, t in state.items() if name.startswith(start)}
