"""One hidden variable with three observables."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from torchpbp import NormalGraphLearner
from torchpbp.errors import ArgumentError
from torchpbp.experiments.grid import Run
from torchpbp.experiments.normal_graph.one_embedding import embedding_network, ng_one_embedding


def test_the_network_is_that_of_the_paper() -> None:
    truth = embedding_network()
    assert [truth.states[v] for v in ("S", "X1", "X2", "X3")] == [4, 2, 2, 3]
    rows = truth.sample(20_000, seed=1)
    shares = torch.bincount(rows["X3"]).double() / 20_000
    torch.testing.assert_close(shares, truth.posterior("X3")[0], rtol=0, atol=0.015)
    assert truth.posterior("X1")[0, 0].item() == pytest.approx((0.1 + 0.1 + 0.9 + 0.3) / 4)


def test_cases_and_measures() -> None:
    options: dict[str, Any] = {
        "rows": 60,
        "mismatched": [2],
        "split_rows": 40,
        "generalised": [4],
        "swept_iterations": [1, 3],
    }
    result = ng_one_embedding(partial(NormalGraphLearner, epochs=5), Run(), **options, starts=4, repeats=3)
    table, metrics = result.table, result.metrics
    assert table is not None
    cases = ["matched_4", "mismatched_2", "split_4", "inner_iterations_1", "inner_iterations_3"]
    assert [metrics[f"repeats/{case}"] for case in cases] == [3, 3, 3, 4, 4]
    assert {k.split("/")[1] for k in metrics if k.startswith("test_")} == {"split_4"}
    values = table[(table["case"] == "matched_4") & (table["rule"] == "vit")]["aggregated"]
    assert metrics["aggregated/matched_4/vit"] == pytest.approx(values.mean())
    assert set(result.main) <= set(metrics)


def test_bad_settings() -> None:
    with pytest.raises(ArgumentError, match=r"^task\.split_rows: expected a whole number of at least 2, got 1"):
        ng_one_embedding(NormalGraphLearner, Run(), split_rows=1)
    with pytest.raises(ArgumentError, match=r"^task\.repeats: expected a whole number of at least 1, got 0"):
        ng_one_embedding(NormalGraphLearner, Run(), repeats=0)
