"""A single block between random messages."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchpbp import NormalGraphLearner
from torchpbp.baselines.normal_graph import learn_block
from torchpbp.baselines.normal_graph.rules import Rule, block_log_likelihood
from torchpbp.errors import ArgumentError
from torchpbp.experiments.grid import Run
from torchpbp.experiments.normal_graph.single_block import draw_messages, ng_single_block

SMALL: dict[str, Any] = {
    "inputs": [2, 3],
    "outputs": [3, 2],
    "exponents": [1, 20],
    "rows": 30,
    "iterations": 5,
    "repeats": 3,
}


def metrics_of(**options: Any) -> dict[str, Any]:
    return ng_single_block(NormalGraphLearner, Run(), **{**SMALL, **options}).metrics


def test_ml_beats_the_others_on_the_rows_of_its_block() -> None:
    """Soft messages: the measure is the one that ML maximises, so no other rule may pass it."""
    metrics = metrics_of(rows=60, iterations=300)
    for case in ("2x3_exponent_1", "3x2_exponent_20"):
        best = metrics[f"log_likelihood/{case}/ml"]
        for rule in ("kl", "vit", "var", "random matrix"):
            assert best >= metrics[f"log_likelihood/{case}/{rule}"] - 1e-3
        assert metrics[f"log_likelihood_holds/{case}/ml>=kl"] == 3


def test_metrics_are_those_of_the_block() -> None:
    metrics = metrics_of()
    f, b, reference = draw_messages([Run().seeds(repeat, 1)[0] for repeat in range(3)], 30, 2, 3, 1)
    ones = torch.ones(30, dtype=torch.float64)
    values, _, _ = learn_block(f, b, ones, Rule("kl"), 5)
    assert metrics["log_likelihood/2x3_exponent_1/kl"] == pytest.approx(float(values[-1].mean()))
    random = block_log_likelihood(reference, f, b, ones)
    assert metrics["log_likelihood/2x3_exponent_1/random matrix"] == pytest.approx(float(random.mean()))
    half = (torch.arange(30) < 15).double()
    _, held_out, _ = learn_block(f, b, half, Rule("var"), 5)
    assert metrics["test_log_likelihood/2x3_exponent_1/var"] == pytest.approx(float(held_out[-1].mean()))


def test_larger_exponents_make_sharper_messages() -> None:
    peaks = [float(draw_messages([0, 1], 200, 4, 4, e)[0].amax(dim=-1).mean()) for e in (1, 5, 50)]
    assert peaks[0] < peaks[1] < peaks[2]
    for values in draw_messages([0, 1], 5, 3, 4, 1000):
        torch.testing.assert_close(values.sum(dim=-1), torch.ones(values.shape[:-1], dtype=torch.float64))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": [2]}, "expected one number per case in each, got 1, 2 and 2"),
        ({"rows": 1}, "^task.rows: expected a whole number of at least 2"),
        ({"iterations": 0}, "^task.iterations: expected a whole number of at least 1, got 0"),
    ],
)
def test_bad_settings(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        metrics_of(**options)
