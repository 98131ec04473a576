"""The experiment of label sequences: its measures and its table."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.experiments.labelling.rows import DATA, PAIRS, TRAINER
from torchpbp.errors import ArgumentError
from torchpbp.experiments.grid import Run
from torchpbp.experiments.labelling.task import labelling, measured

TINY: dict[str, Any] = {
    "sizes": [20],
    "label_only": [0, 300],
    "repeats": 2,
    "test_rows": 30,
    "steps": 10,
    "refining_steps": 4,
}


def test_measures() -> None:
    exact = torch.tensor([[[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]], dtype=torch.float64)
    answer = torch.tensor([[[0.25, 0.75, 0.0], [0.5, 0.25, 0.25]]], dtype=torch.float64)
    found = measured(answer.log(), exact, torch.tensor([[0, 0]]))
    kl = (0.5 * math.log(2) + 0.5 * math.log(2 / 3) + math.log(2)) / 2
    assert found == pytest.approx({"kl": kl, "log_loss": (math.log(4) + math.log(2)) / 2, "accuracy": 0.5})
    assert measured(exact.clamp(min=1e-300).log(), exact, torch.tensor([[0, 0]]))["kl"] == 0


def test_table_and_metrics() -> None:
    result = labelling(DATA, PAIRS, TRAINER, Run(5), **{**TINY, "through_steps": 4})
    table, metrics = result.table, result.metrics
    assert table is not None
    assert len(table) == 2 * (1 + 2 * 6)  # repeats, softmax + label_only · (crf, pbp: three stages)
    assert not table.duplicated(["series", "rows", "repeat"]).any()
    assert (table["kl"] > 0).all()
    mean = table[table["series"] == "pbp fitted +300 labels"]["kl"].mean()
    assert metrics["kl/pbp fitted +300 labels/20"] == pytest.approx(mean)
    assert 0.5 < metrics["accuracy/exact"] < 1
    assert set(result.main) <= set(metrics)
    # Heads do not depend on those trained beside them.
    alone = labelling(DATA, PAIRS, TRAINER, Run(5), **{**TINY, "label_only": [0]}).metrics
    assert alone["kl/pbp refined/20"] == pytest.approx(metrics["kl/pbp refined/20"], rel=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": [5]}, r"^task.sizes: expected a sequence, each a whole number of at least 10, got \[5\]"),
        ({"label_only": [-1]}, r"^task.label_only: .* of at least 0, got \[-1\]"),
        ({"repeats": 0}, "^task.repeats: expected a whole number of at least 1, got 0"),
        ({"window": 2}, "^task.window: expected an odd number of sites, got 2"),
    ],
)
def test_bad_settings(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        labelling(DATA, PAIRS, TRAINER, Run(), **{**TINY, **options})
