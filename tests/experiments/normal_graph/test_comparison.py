"""How often, and by how much, one rule is at least as good as the next."""

from __future__ import annotations

import math

import pytest

from torchpbp.experiments.normal_graph.comparison import compare_rules

VALUES = {"ml": [1.0, 2.0, 3.0], "kl": [1.0, 3.0, 2.0], "vit": [0.0, 0.0, 9.0], "truth": [5.0, 5.0, 5.0]}


def lines(repeats: int) -> list[dict[str, float | int | str]]:
    return [
        {"case": "c", "repeat": i, "rule": rule, "score": v}
        for rule, column in VALUES.items()
        for i, v in enumerate(column[:repeats])
    ]


def test_how_often_one_rule_is_at_least_as_good_as_the_next() -> None:
    other = [{"case": "d", "repeat": 0, "rule": rule, "test_score": 1.0} for rule in ("ml", "kl")]
    result = compare_rules([*lines(3), *other], ("score", "test_score", "absent"), ("score", "c"), {})
    metrics = result.metrics
    assert metrics["score_holds/c/ml>=kl"] == 2  # a tie counts
    assert metrics["score_holds/c/kl>=vit"] == 2
    assert not {"score_holds/c/vit>=var", "score/d/ml", "test_score/c/ml"} & set(metrics)
    assert metrics["score_gain/c/kl>=vit"] == pytest.approx((1 + 3 - 7) / 3)
    assert metrics["score_gain_standard_error/c/ml>=kl"] == pytest.approx(1 / math.sqrt(3))  # of 0, -1 and 1
    assert metrics["score/c/kl"] == 2.0
    assert metrics["score_standard_error/c/truth"] == 0.0
    assert metrics["test_score_holds/d/ml>=kl"] == 1
    assert (metrics["repeats/c"], metrics["repeats/d"]) == (3, 1)
    assert "2/3 (-1.00 ± 3.1)" in result.described()


def test_a_single_repeat_has_no_standard_error() -> None:
    metrics = compare_rules(lines(1), ("score",), ("score", "c"), {}).metrics
    assert metrics["score_standard_error/c/ml"] is None
    assert metrics["score_gain/c/kl>=vit"] == 1.0
