"""Readout of a target: from estimates that may be negative to probabilities."""

from __future__ import annotations

import math

import pytest
import torch

from torchpbp.inference.readout import SHARPNESS, SOFTNESS, Readout, soft_positive


def draws(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_soft_positive_is_positive_and_close_to_the_positive_part() -> None:
    z = torch.tensor([-1e8, -3.0, -0.1, 0.0, 0.1, 3.0, 1e8], dtype=torch.float64)
    q = soft_positive(z, 0.15)
    assert bool((q > 0).all())
    assert bool((q.diff() > 0).all())
    assert float((q - z.clamp(min=0)).abs().max()) <= 0.075
    assert float(q[3]) == 0.075
    # (z + √(z² + ε²)) / 2 = ε² / 4|z| far below 0, where the sum would cancel
    assert float(q[0]) == pytest.approx(0.15**2 / 4e8, rel=1e-9)
    assert torch.autograd.gradcheck(lambda x: soft_positive(x, 0.15), draws(20).requires_grad_())


def test_probabilities_follow_the_formula() -> None:
    readout = Readout("y")
    estimate, hidden = draws(6, 4), torch.linspace(0, 1, 6, dtype=torch.float64)
    with torch.no_grad():
        readout.sharpness.copy_(torch.tensor([1.0, -2.0, 0.5]))
        found = readout(estimate, hidden).exp()
    assert bool((estimate < 0).any())
    z = estimate / torch.where(estimate > 0, estimate, 0.01 * estimate).norm(dim=1, keepdim=True)
    q = (z + (z.square() + SOFTNESS**2).sqrt()) / 2
    power = q ** (1 - 2 * hidden + 0.5 * hidden.square()).exp().unsqueeze(1)
    torch.testing.assert_close(found, power / power.sum(dim=1, keepdim=True))
    torch.testing.assert_close(found.sum(dim=1), torch.ones(6, dtype=torch.float64))


def test_a_positive_factor_per_row_does_not_matter() -> None:
    readout, estimate, hidden = Readout("y"), draws(5, 3), torch.zeros(5)
    scaled = estimate * torch.tensor([1e-200, 1e-3, 1.0, 1e5, 1e200], dtype=torch.float64).unsqueeze(1)
    torch.testing.assert_close(readout(estimate, hidden)[1:4], readout(scaled, hidden)[1:4])


def test_rows_without_information_are_uniform() -> None:
    answer = Readout("y")(torch.zeros(2, 4), torch.ones(2)).exp()
    torch.testing.assert_close(answer, torch.full((2, 4), 0.25))


def test_negative_estimates_have_a_gradient() -> None:
    """The logarithm of a clipped estimate has none there."""
    estimate = torch.tensor([[1.0, -0.5, -0.2]], dtype=torch.float64, requires_grad=True)
    Readout("y")(estimate, torch.zeros(1))[0, 1].backward()
    assert float(estimate.grad[0, 1]) > 0.1


def test_the_probability_of_a_state_falls_with_its_estimate_far_below_zero() -> None:
    """A norm of all estimates makes it rise again below minus the largest other estimate."""
    estimate = torch.tensor([1.0, 0.2, 0.0], dtype=torch.float64).repeat(200, 1)
    estimate[:, 2] = torch.linspace(-50, 0, 200, dtype=torch.float64)
    log_probability = Readout("y")(estimate, torch.zeros(200))[:, 2]
    assert bool((log_probability.diff() > 0).all())


def test_training_turns_a_large_negative_estimate_of_the_right_state() -> None:
    """Estimates are products over leaves: descent has to lead a factor through zero, not to make it larger."""
    factors = torch.tensor([3.0, -1.5, 2.0], dtype=torch.float64, requires_grad=True)
    others = torch.tensor([1.0, -0.5], dtype=torch.float64)
    readout, optimiser = Readout("y"), torch.optim.SGD([factors], lr=0.01)
    for _ in range(200):
        estimate = torch.cat([others, factors.prod().unsqueeze(0)]).unsqueeze(0)
        optimiser.zero_grad()
        (-readout(estimate, torch.zeros(1))[0, 2]).backward()
        optimiser.step()
    assert float(factors.detach().prod()) > 1


def test_gradients_agree_with_finite_differences() -> None:
    readout = Readout("y")
    names = [name for name, _ in readout.named_parameters()]
    assert names == ["log_softness", "sharpness"]
    inputs = [draws(4, 3).requires_grad_(), *(p.detach().clone().requires_grad_() for p in readout.parameters())]
    hidden = torch.tensor([0.0, 0.3, 0.6, 1.0], dtype=torch.float64)

    def answer(estimate: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        moved = dict(zip(names, parameters, strict=True))
        result: torch.Tensor = torch.func.functional_call(readout, moved, (estimate, hidden))
        return result

    assert torch.autograd.gradcheck(answer, inputs)


def test_parameters_start_as_documented_and_the_target_is_printed() -> None:
    readout = Readout("digit")
    assert float(readout.log_softness.detach().exp()) == pytest.approx(SOFTNESS)
    assert readout.sharpness.detach().tolist() == [math.log(SHARPNESS), 0.0, 0.0]
    assert repr(readout) == "Readout(target='digit')"
    assert set(readout.state_dict()) == {"log_softness", "sharpness"}


def test_single_precision_estimates_stay_in_single_precision() -> None:
    assert Readout("y")(draws(3, 2).float(), torch.zeros(3)).dtype == torch.float32
