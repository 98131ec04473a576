"""Nets of stage 1 that stay with a model: what the outside of each separator tells about its message."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from torchpbp.inference.leaf_features import LeafFeatures
from torchpbp.planning.plan import Plan


class PredictedMessage(NamedTuple):
    """What the outside of a separator tells about its inside.

    Args:
        message: (batch, rank) the message θ, predicted (S1A); its first entry is the constant 1.
        products: (batch, sizes below…) the products of the messages below, or the joint features of a leaf's observables
            (S1B): what stage 2 predicts from the message.
    """

    message: Tensor
    products: Tensor


class Stage1Nets(nn.Module, ABC):
    """Trained nets of stage 1, a submodule of the model: in its state, in its file, on its device."""

    @abstractmethod
    def predict(self, leaves: LeafFeatures) -> dict[int, PredictedMessage]:
        """Messages and products of separators, given what is seen outside of each.

        Args:
            leaves: features of a batch of rows; what a row does not observe must not have any influence.

        Returns:
            Tree node below each separator -> its prediction.
        """


class RegressionNets(Stage1Nets):
    """Nets trained by regression, which are made again from the plan and a few settings in a file."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """What a file holds besides the plan and the tensors: plain numbers, strings and lists."""

    @classmethod
    @abstractmethod
    def saved_shapes(cls, plan: Plan, dims: Mapping[str, int], saved: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors in the state, by name, checked before anything is allocated.

        Args:
            plan: of the model.
            dims: feature dimensions of each observable.
            saved: from :meth:`to_dict`, read from a file.

        Raises:
            CheckpointError: settings that are no settings of such nets.
        """

    @classmethod
    @abstractmethod
    def from_dict(cls, plan: Plan, dims: Mapping[str, int], saved: Mapping[str, Any]) -> RegressionNets:
        """Nets of these shapes, whose numbers are yet to be copied in."""

    @classmethod
    @abstractmethod
    def settings_of_state(cls, state: Mapping[str, Tensor]) -> dict[str, Any] | None:
        """Settings as of :meth:`to_dict`, read off the shapes in the nets' state; None where it is not a state of such nets."""
