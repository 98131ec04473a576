"""Stage 1: prediction of the inside of each separator from its outside, and the regressors for it.

A regressor takes the plan, moments and, for row regressors, rows, and returns a :class:`Stage1` with the second moments of
predictions for compression and stage 2.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from torchpbp.errors import StructureError
from torchpbp.learning.compression import Message, PredictedCores, compress_messages
from torchpbp.learning.message_nets import InstrumentNets
from torchpbp.moments.moments import Moments
from torchpbp.moments.rows import TrainingRows
from torchpbp.planning.plan import Group, Plan, SeparatorPlan


class Penalties(NamedTuple):
    """Ridge penalties λ of the regressions on instruments, and of stage 2: a number, or (separators,) one for each."""

    stage1: float | Tensor
    stage2: float | Tensor

    def of_nodes(self, nodes: Sequence[int]) -> Penalties:
        """Penalties of some separators: numbers, or (separators, 1, 1) and (separators, 1) tensors."""
        index = [n - 1 for n in nodes]
        first = self.stage1[index][:, None, None] if isinstance(self.stage1, Tensor) else self.stage1
        return Penalties(first, self.stage2[index][:, None] if isinstance(self.stage2, Tensor) else self.stage2)


@dataclass(frozen=True)
class PredictedProducts:
    """S1B of separators with equal shapes, stacked: predictions of y, the joint features below, from the same instrument as θ.

    Stage 2 finds W with predictions ≈ W · predicted. Tensors may have a class dimension after the dimension of separators.

    Args:
        nodes: the separators' tree nodes.
        sizes: sizes of the factors below.
        mean: (separators, ∏ sizes below) E[y].
        predictions: (separators, ∏ sizes below, m) predictions of y.
        predicted: (separators, message dim without the constant, m) predictions of θ.
        message_mean: (separators, message dim without the constant) E[θ]; None for centred messages.
    """

    nodes: Sequence[int]
    sizes: tuple[int, ...]
    mean: Tensor
    predictions: Tensor
    predicted: Tensor
    message_mean: Tensor | None = None


class Predictions(NamedTuple):
    """Results of stage 1 for stage 2.

    Args:
        root: E[⊗ θ] over the root's children.
        products: S1B of all solved separators.
        strengths: separator -> canonical correlations of the message's dimensions.
        significant: separator -> number of statistically significant dimensions of the message.
        known: operators that need no regression.
        nets: trained networks to keep in the model, if any.
    """

    root: Tensor
    products: list[PredictedProducts]
    strengths: dict[int, Tensor]
    significant: dict[int, int]
    known: dict[int, Tensor]
    nets: InstrumentNets | None = None


class Stage1(ABC):
    """Moments of stage 1: regressions and messages of all separators."""

    @abstractmethod
    def predictions(self, penalties: Penalties) -> Predictions:
        """Both regressions of stage 1, S1A and S1B, of all separators."""


class CompressedStage1(Stage1):
    """Stage 1 whose messages are the best predicted directions of core features, by an SVD without gradient."""

    def predictions(self, penalties: Penalties) -> Predictions:
        messages = compress_messages(self.cores(), float(penalties.stage1))
        root, products = self.products(messages)
        return Predictions(
            root,
            products,
            {n: m.strengths for n, m in messages.items()},
            {n: m.significant for n, m in messages.items()},
            {},
            self.nets(messages),
        )

    def nets(self, messages: Mapping[int, Message]) -> InstrumentNets | None:
        """Trained networks for the compressed messages, to keep in the model; None if stage 1 has none."""
        return None

    @abstractmethod
    def cores(self) -> list[PredictedCores]:
        """S1A: covariances of core features and instruments, grouped by shape."""

    @abstractmethod
    def products(self, messages: Mapping[int, Message]) -> tuple[Tensor, list[PredictedProducts]]:
        """S1B: the root tensor E[⊗ θ], and the products below each separator predicted from its instrument.

        Args:
            messages: compressed messages, by node.
        """


class Regressor(ABC):
    """Settings of a stage-1 method."""

    @abstractmethod
    def required_tables(self, plan: Plan) -> list[Group]:
        """Groups of variables whose joint tables learning needs, for discrete variables."""

    @abstractmethod
    def required_pairs(self, plan: Plan) -> list[tuple[Group, Group]]:
        """Pairs of groups whose second moments learning needs, for variables with kernel features."""

    def required_separators(self, plan: Plan) -> list[tuple[SeparatorPlan, list[Group]]]:
        """Separators and the groups below each, whose moments with instruments learning needs for kernel features."""
        return []

    @abstractmethod
    def learn(self, plan: Plan, moments: Moments, rows: TrainingRows | None, penalties: Penalties) -> Stage1:
        """Fit the regressions of all separators.

        Args:
            plan: core groups, instruments and ranks.
            moments: moments named by the ``required_…`` methods.
            rows: rows of this process, for a :class:`RowRegressor`.
            penalties: penalties of both stages.
        """

    def nets(
        self, plan: Plan, dims: Mapping[str, int], widths: Mapping[str, int], classes: int | None
    ) -> InstrumentNets | None:
        """Networks with initial weights that become part of the model; None for methods without networks.

        Args:
            plan: core groups, instruments and ranks.
            dims: feature dimensions of each observable.
            widths: widths of the networks' input of each observable.
            classes: number of classes of the condition variable; None without one.
        """
        return None


class SavedRegressor(Regressor):
    """The regressor of a model from a file, which holds its name only: answers need none, further fits do.

    Args:
        name: the regressor as it prints.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def required_tables(self, plan: Plan) -> list[Group]:
        raise StructureError(
            f"The model was learned with {self.name} and read from a file, which does not hold the settings of its regressor. Set "
            f"model.regressor = {self.name.partition('(')[0]}(…) before learning."
        )

    required_pairs = required_tables  # type: ignore[assignment]

    def learn(self, plan: Plan, moments: Moments, rows: TrainingRows | None, penalties: Penalties) -> Stage1:
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.name


class RowRegressor(Regressor):
    """A stage-1 method that needs the rows, not only moments."""

    def required_tables(self, plan: Plan) -> list[Group]:
        tables = dict.fromkeys(g for s in plan.separators for g in (s.core, *s.instrument))
        below = (tuple(v for g in plan.targets[n] for v in g) for n in range(len(plan.tree)))
        return list(tables | dict.fromkeys(below))

    def required_pairs(self, plan: Plan) -> list[tuple[Group, Group]]:
        return list(dict.fromkeys((s.core, s.core) for s in plan.separators))
