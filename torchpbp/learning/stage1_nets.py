"""Stage-1 networks as part of a model: predictions of each separator's message from its outside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from torchpbp.inference.leaf_features import LeafFeatures
from torchpbp.planning.plan import Plan


class PredictedMessage(NamedTuple):
    """Predictions of the inside of a separator from its outside.

    Args:
        message: (batch, rank) prediction of the message θ (S1A); its first entry is the constant 1.
        products: (batch, sizes below…) prediction of the products of the messages below, or of the joint features of a leaf's
            observables (S1B), which stage 2 predicts from the message.
    """

    message: Tensor
    products: Tensor


class Stage1Nets(nn.Module, ABC):
    """Trained networks of stage 1, a submodule of the model."""

    @abstractmethod
    def predict(self, leaves: LeafFeatures) -> dict[int, PredictedMessage]:
        """Predicted messages and products of separators, from the observed leaves outside of each.

        Args:
            leaves: features of a batch of rows; implementations must ignore features of unobserved leaves.

        Returns:
            Tree node below each separator -> its prediction.
        """


class RegressionNets(Stage1Nets):
    """Networks trained by regression, which a file describes by a few settings."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Settings for files, besides the plan and the tensors: plain numbers, strings and lists."""

    @classmethod
    @abstractmethod
    def saved_shapes(cls, plan: Plan, dims: Mapping[str, int], saved: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors in the state, by name, checked before anything is allocated.

        Args:
            plan: plan of the model.
            dims: feature dimensions of each observable.
            saved: result of :meth:`to_dict`, read from a file.

        Raises:
            CheckpointError: invalid settings.
        """

    @classmethod
    @abstractmethod
    def from_dict(cls, plan: Plan, dims: Mapping[str, int], saved: Mapping[str, Any]) -> RegressionNets:
        """Networks with uninitialised parameters of these shapes."""

    @classmethod
    @abstractmethod
    def settings_of_state(cls, state: Mapping[str, Tensor]) -> dict[str, Any] | None:
        """Settings as in :meth:`to_dict`, inferred from the shapes in a state dict; None for states of other classes."""
