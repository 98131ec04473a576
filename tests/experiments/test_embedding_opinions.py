"""Classifiers of pen digits combined and brought to the right confidence."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from torchpbp import KernelPBP, templates
from torchpbp.datasets import load_digits
from torchpbp.errors import DataError, ShapeError
from torchpbp.experiments.embedding.opinions import FLOOR, Opinion, companion_opinion, fit_companion, fit_temperature
from torchpbp.experiments.embedding.report import judge, report


def calibrated(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Log-probabilities of ten classes, and classes drawn from them."""
    generator = torch.Generator().manual_seed(seed)
    logs = torch.log_softmax(2 * torch.randn(rows, 10, generator=generator, dtype=torch.float64), dim=1)
    return logs, torch.multinomial(logs.exp(), 1, generator=generator).squeeze(1)


def loss(logs: Tensor, digits: Tensor) -> float:
    return float(torch.nn.functional.nll_loss(torch.log_softmax(logs, dim=1), digits))


@pytest.mark.parametrize("factor", [0.4, 1.0, 3.0])
def test_the_temperature_undoes_too_much_and_too_little_confidence(factor: float) -> None:
    logs, digits = calibrated(20_000)
    changed = torch.log_softmax(factor * logs, dim=1)
    temperature = fit_temperature(changed, digits)
    assert temperature == pytest.approx(factor, rel=0.05)
    best = loss(changed / temperature, digits)
    assert all(loss(changed / t, digits) > best for t in (0.98 * temperature, 1.02 * temperature))


def test_rows_that_are_all_right_or_all_wrong_give_a_finite_temperature() -> None:
    logs, _ = calibrated(50)
    assert fit_temperature(logs, logs.argmax(dim=1)) == pytest.approx(1 / 20)
    assert fit_temperature(logs, logs.argmin(dim=1)) == pytest.approx(20)


def test_a_temperature_of_invalid_input_raises() -> None:
    logs, digits = calibrated(5)
    with pytest.raises(ShapeError, match=r"expected \(rows, classes\) log-probabilities"):
        fit_temperature(logs, digits[:4])
    with pytest.raises(DataError, match="Put a floor under them"):
        fit_temperature(logs.masked_fill(logs < -3, -math.inf), digits)
    with pytest.raises(DataError, match="one or more rows"):
        fit_temperature(logs[:0], digits[:0])


def test_joined_opinions_multiply_the_more_the_more_points_are_hidden() -> None:
    a, b = calibrated(30)[0], calibrated(30, seed=1)[0]
    joined = Opinion({0: a}, {0: a, 4: a}).joined(Opinion({0: b}, {0: b, 4: b}), weight=0.5, gain=0.125)
    for got, other in ((joined.val[0], b.exp().sqrt()), (joined.tests[0], b.exp().sqrt()), (joined.tests[4], b.exp())):
        product = a.exp() * other
        assert torch.allclose(got.exp(), product / product.sum(dim=1, keepdim=True))


def test_a_digit_the_companion_never_saw_has_the_least_probability() -> None:
    digits = load_digits()
    x, y = digits.train_x[:200], digits.train_y[:200]
    known = y != 7
    learner = KernelPBP(templates.pen_clique(), bandwidth=20.0, evidence_bandwidth=10.0)
    classifier = fit_companion(learner, x[known], y[known], copies=1, slant=0.1, seed=0, verbose=False)
    opinion = companion_opinion(classifier, {0: x}, {0: x[:9]})
    told = opinion.val[0]
    assert told.shape == (200, 10)
    assert torch.allclose(told.exp().sum(dim=1), torch.ones(200, dtype=torch.float64))
    assert bool((told[:, 7] <= FLOOR + 1e-6).all())
    right = (told.argmax(dim=1) == y)[known]
    assert float(right.double().mean()) > 0.9
    assert torch.allclose(opinion.tests[0], told[:9])


def test_the_report_judges_test_rows_with_the_confidence_of_validation_rows() -> None:
    logs, digits = calibrated(4000)
    digits[1000:2000] = digits[:1000]
    logs[1000:2000] = logs[:1000]
    timid = torch.log_softmax(0.4 * logs, dim=1)
    opinion = Opinion({0: timid[:1000], 4: timid[1000:2000]}, {0: timid[2000:], 4: timid[2000:]})
    metrics, table = report({"pbp": opinion}, digits[:1000], digits[2000:])
    before = judge(timid[2000:], digits[2000:])
    assert metrics["test/accuracy"] == before["accuracy"] == metrics["hidden/4/pbp"]
    assert metrics["test/calibration_error_before"] == before["calibration_error"]
    assert metrics["test/calibration_error"] < 0.05 < before["calibration_error"]
    assert metrics["test/log_loss"] < metrics["test/log_loss_before"] == before["log_loss"]
    assert list(table["hidden"]) == [0, 4]
    # Other test rows must not move the temperature.
    other = report({"pbp": opinion}, digits[:1000], digits[2000:].flip(0))[0]
    assert other["temperature/pbp"] == metrics["temperature/pbp"]
