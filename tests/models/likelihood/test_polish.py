"""Gauss–Newton steps: what they move along, the curvature of the prior, and where they end."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.functional import hessian

from torchpbp import DiscreteNetwork, templates
from torchpbp.models.likelihood.expectation import ExpectationStep
from torchpbp.models.likelihood.layout import FamilyLayout
from torchpbp.models.likelihood.polish import polish

GRAPHS = {
    "hmm": templates.hmm(4, states=3, observed_states=4),
    "diamond": templates.diamond(observed_states=3, leaves=1),
    "factorial_hmm": templates.factorial_hmm(3, 2, states=2, observed_states=3),
}


def start(name: str, seed: int = 1) -> tuple[FamilyLayout, torch.Tensor]:
    network = DiscreteNetwork.random(GRAPHS[name], seed=seed)
    layout = FamilyLayout(network.graph)
    return layout, layout.vector(dict(network.factors))


def test_steps_are_first_order_changes_of_logits() -> None:
    layout, vector = start("hmm")
    direction = torch.randn(layout.parameters, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    small = 1e-6
    moved = layout.moved(vector, layout.relative(vector, small * direction))
    assert torch.allclose((layout.logits(moved) - layout.logits(vector)) / small, direction, atol=1e-4)


@pytest.mark.parametrize("size", [0.1, 1.0, 50.0])
def test_steps_of_any_size_end_at_distributions(size: float) -> None:
    layout, vector = start("diamond")
    change = size * torch.randn(len(vector), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    moved = layout.moved(vector, change)
    assert moved.min() >= 0
    assert moved.isfinite().all()
    assert torch.allclose(layout.sums(moved[None]), torch.ones(1, dtype=torch.float64))


def test_steps_are_straight_lines_of_probabilities() -> None:
    layout, vector = start("diamond")
    change = layout.relative(vector, torch.full((layout.parameters,), 0.3, dtype=torch.float64))
    assert change.min() > -0.5
    half, whole = layout.moved(vector, change / 2), layout.moved(vector, change)
    assert torch.allclose(half - vector, (whole - vector) / 2, atol=1e-12)


def test_curvature_of_the_prior_is_its_second_derivative() -> None:
    layout, vector = start("diamond")

    def logs(logits: torch.Tensor) -> torch.Tensor:
        raised = torch.ones_like(vector).index_put((layout.places,), logits.exp())
        return (raised / layout.sums(raised[None])[0]).log().sum()

    assert torch.allclose(layout.prior_curvature(vector), -hessian(logs, layout.logits(vector)), atol=1e-10)


@pytest.mark.parametrize("prior", [0.0, 1.0])
@pytest.mark.parametrize("name", GRAPHS)
def test_every_step_gains_and_the_gradient_vanishes_at_the_end(name: str, prior: float) -> None:
    rows = DiscreteNetwork.random(GRAPHS[name], seed=2).sample(3_000, seed=3)
    step = ExpectationStep(GRAPHS[name], {v: rows[v] for v in GRAPHS[name].observed}, torch.ones(3_000))
    layout, vector = start(name)
    end = polish(step, vector, prior, 1e-4, 2_000)
    gains = torch.tensor(end.objective).diff()
    assert end.converged
    assert len(gains) > 3
    assert gains.min() > -1e-6
    counts = step(end.vector[None])[1]
    better = float(step.log_likelihood(layout.maximised(counts, prior)))
    better += prior * float(layout.maximised(counts, prior).clamp(min=1e-300).log().sum())
    assert better - end.objective[-1] < 0.01  # an EM step gains no more


def test_steps_stop_at_their_limit() -> None:
    rows = DiscreteNetwork.random(GRAPHS["hmm"], seed=2).sample(3_000, seed=3)
    step = ExpectationStep(GRAPHS["hmm"], {v: rows[v] for v in GRAPHS["hmm"].observed}, torch.ones(3_000))
    end = polish(step, start("hmm")[1], 1.0, 1e-4, 4)
    assert not end.converged
    assert len(end.objective) <= 5
