"""What refinement minimises: losses per row, differentiable in the model's operators, and the scores that judge them.

Each objective has two sides. ``loss`` is what descent follows: it goes through the smooth link, so that a negative
estimate still has a gradient. ``score`` is what held-out rows are judged by: the cost of the answers the model really
gives, clipped and normalised.

A value that a row lacks (-1, or NaN) is summed over, and nothing is asked about it. So refinement by likelihood is right
wherever what is missing depends on nothing but values that are there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchpbp.errors import QueryError, ShapeError
from torchpbp.inference.observable import Observable, negative_mass
from torchpbp.inputs.evidence import Evidence
from torchpbp.inputs.missing_values import observed
from torchpbp.models.refinement.link import LINK_SCALE, log_link, log_probabilities
from torchpbp.models.two_stage_model import TwoStageModel

GRID = 65
"""Points at which a continuous variable's density is normalised during descent."""
WORST = 690.0
"""Largest cost of one row, -log of the smallest double: an answer of 0 stays comparable."""

UserLoss = Callable[[TwoStageModel, Evidence], Tensor]


class Objective(ABC):
    """A cost per row of data."""

    name: str

    @abstractmethod
    def loss(self, model: TwoStageModel, rows: Evidence, generator: torch.Generator) -> Tensor:
        """(batch,) differentiable costs of rows, -1 or NaN where a value is missing."""

    @torch.no_grad()
    def score(self, model: TwoStageModel, rows: Evidence, generator: torch.Generator) -> Tensor:
        """(batch,) costs of the model's answers."""
        return self.loss(model, rows, generator)

    @property
    def guards(self) -> tuple[Objective, ...]:
        """Objectives whose held-out score must not get worse."""
        return (self,)

    def check(self, model: TwoStageModel) -> None:
        """Refuse a model that the objective does not fit."""
        return


@dataclass(frozen=True)
class JointLikelihood(Objective):
    """-log P(row). Where some operators are negative it is normalised by the model's total mass.

    Args:
        scale: of the link, as a share of the sum of absolute terms.
    """

    scale: float = LINK_SCALE
    name = "nll"

    def loss(self, model: TwoStageModel, rows: Evidence, generator: torch.Generator) -> Tensor:
        return self.log_mass(model, Evidence(1)) - self.log_mass(model, rows)

    @torch.no_grad()
    def score(self, model: TwoStageModel, rows: Evidence, generator: torch.Generator) -> Tensor:
        # Signed operators do not keep their total mass at 1 by themselves.
        return (model.log_evidence() - model.log_evidence(rows)).clamp(max=WORST)

    def log_mass(self, model: TwoStageModel, rows: Evidence) -> Tensor:
        """(batch,) linked log P(rows), not normalised."""
        value, size, log_scale = model.mass(rows)
        size = torch.where(size > 0, size, torch.ones_like(size))
        return log_link(value / size, self.scale) + size.log() + log_scale

    @property
    def guards(self) -> tuple[Objective, ...]:
        return self, ConditionalLikelihood(self.scale)


@dataclass(frozen=True)
class ConditionalLikelihood(Objective):
    """Leave-some-out composite likelihood: -Σ log P(x | the visible values) over the hidden values of a row.

    Each row hides a random share of its values, from none to all, anew each time.

    Args:
        scale: of the link, as a share of an estimate's absolute mass.
    """

    scale: float = LINK_SCALE
    name = "conditional"

    def loss(self, model: TwoStageModel, rows: Evidence, generator: torch.Generator) -> Tensor:
        visible, hidden = hide(rows, generator)
        estimates = model.estimates(visible, list(hidden), every_leaf=True)
        total = torch.zeros(rows.batch, dtype=model.root.weight.dtype, device=model.root.weight.device)
        for v, estimate in estimates.items():
            observable = model.observables[v]
            if observable.continuous:
                cost = -_log_density(observable, estimate, rows.real[v], self.scale)
            else:
                cost = -_log_probability(estimate, rows.hard[v], self.scale)
            total = total + cost * hidden[v]
        return total

    @torch.no_grad()
    def score(self, model: TwoStageModel, rows: Evidence, generator: torch.Generator) -> Tensor:
        visible, hidden = hide(rows, generator)
        total = torch.zeros(rows.batch, dtype=model.root.weight.dtype, device=model.root.weight.device)
        for v, estimate in model.estimates(visible, list(hidden), every_leaf=True).items():
            cost = -model.observables[v].log_score(estimate, rows, model.floor)
            total = total + cost.clamp(max=WORST) * hidden[v]
        return total

    @property
    def guards(self) -> tuple[Objective, ...]:
        return JointLikelihood(self.scale), self


@dataclass(frozen=True)
class ClassLikelihood(Objective):
    """-log P(variable | all others): cross-entropy of a discrete variable that is to be predicted, where a row has it.

    Only its own held-out score guards it: what it gains, the joint likelihood usually pays for.

    Args:
        variable: the class.
        scale: of the link.
    """

    variable: str
    scale: float = LINK_SCALE
    name = "class"

    def loss(self, model: TwoStageModel, rows: Evidence, generator: torch.Generator) -> Tensor:
        estimate = model.estimates(rows, [self.variable])[self.variable]
        return -_log_probability(estimate, rows.hard[self.variable], self.scale)

    @torch.no_grad()
    def score(self, model: TwoStageModel, rows: Evidence, generator: torch.Generator) -> Tensor:
        estimate = model.estimates(rows, [self.variable])[self.variable]
        return -model.observables[self.variable].log_score(estimate, rows, model.floor)

    def check(self, model: TwoStageModel) -> None:
        if self.variable not in model.states:
            raise QueryError(
                f"ClassLikelihood of '{self.variable}': expected a discrete observable, one of {', '.join(model.states)}."
            )


class CustomLoss(Objective):
    """Any differentiable function of model and rows.

    Args:
        function: takes the model and rows, -1 or NaN where a value is missing, and returns (batch,) costs.
    """

    name = "loss"

    def __init__(self, function: UserLoss) -> None:
        self.function = function

    def loss(self, model: TwoStageModel, rows: Evidence, generator: torch.Generator) -> Tensor:
        costs = self.function(model, rows)
        if costs.shape != (rows.batch,):
            raise ShapeError(
                f"Loss function: expected one cost per row, shape ({rows.batch},), got {tuple(costs.shape)}. Do not average."
            )
        return costs


def hide(rows: Evidence, generator: torch.Generator) -> tuple[Evidence, dict[str, Tensor]]:
    """Hide a random share of each row's values.

    Returns:
        What stays visible, and name -> (batch,) whether a value is hidden; one that was missing before is not.
    """
    names = [*rows.hard, *rows.real]
    share = torch.rand(1, rows.batch, generator=generator)
    mask = (torch.rand(len(names), rows.batch, generator=generator) < share).unbind()
    hidden = {}
    hard, real = {}, {}
    for v, gone in zip(names, mask, strict=True):
        if v in rows.hard:
            hidden[v] = gone.to(rows.hard[v].device) & observed(rows.hard[v])
            hard[v] = rows.hard[v].masked_fill(hidden[v], -1)
        else:
            hidden[v] = gone.to(rows.real[v].device) & observed(rows.real[v])
            real[v] = rows.real[v].masked_fill(hidden[v], torch.nan)
    return Evidence(rows.batch, hard, {}, real), hidden


def random_cells(model: TwoStageModel, count: int, generator: torch.Generator) -> Evidence:
    """Evidence on values drawn uniformly, a random share hidden: also cells that no data ever fall into."""
    device = model.root.weight.device
    hard, real = {}, {}
    for v, observable in model.observables.items():
        if observable.continuous:
            low, high = observable.bounds.tolist()
            real[v] = (low + (high - low) * torch.rand(count, generator=generator, dtype=torch.float64)).to(device)
        else:
            hard[v] = torch.randint(observable.map.dim, (count,), generator=generator).to(device)
    return hide(Evidence(count, hard, {}, real), generator)[0]


def negative_share(model: TwoStageModel, cells: Evidence) -> Tensor:
    """Mean share of negative mass in the estimates of all observables, given evidence; differentiable."""
    shares = []
    for v, estimate in model.estimates(cells, list(model.observables)).items():
        observable = model.observables[v]
        if observable.continuous:
            estimate = observable.values_at(estimate, _grid(observable))
        shares.append(negative_mass(estimate).mean())
    return torch.stack(shares).mean()


def _grid(observable: Observable) -> Tensor:
    low, high = observable.bounds.tolist()
    return torch.linspace(low, high, GRID, dtype=torch.float64, device=observable.bounds.device)


def _log_probability(estimate: Tensor, states: Tensor, scale: float) -> Tensor:
    """(batch,) linked log-probability of one state per row; 0 where it is missing."""
    found = log_probabilities(estimate, scale).gather(1, states.clamp(min=0).unsqueeze(1)).squeeze(1)
    return found.masked_fill(~observed(states), 0.0)


def _log_density(observable: Observable, estimate: Tensor, values: Tensor, scale: float) -> Tensor:
    """(batch,) linked log-density at one value per row, normalised on a grid; 0 where the value is missing."""
    points = _grid(observable)
    known = observed(values)
    values = torch.where(known, values, points[GRID // 2])  # anything: NaN would spoil the gradient
    heights = observable.values_at(estimate, points)
    top = heights.detach().abs().amax(dim=1, keepdim=True)
    top = torch.where(top > 0, top, torch.ones_like(top))
    own = (estimate * observable.map.evidence(values).to(estimate)).sum(dim=1, keepdim=True)
    step = float(points[1] - points[0])
    mass = torch.trapezoid(log_link(heights / top, scale).exp(), dx=step, dim=1)
    return (log_link(own / top, scale).squeeze(1) - mass.log()).masked_fill(~known, 0.0)
