"""What experiments share: checks of settings, seeds, and flat results."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from torchpbp import EM, PBP, templates
from torchpbp.errors import DataError, StructureError
from torchpbp.experiments.running.experiment import ascending, check_positive, check_takes_graph, seeds_of
from torchpbp.experiments.running.results import environment, metrics_of, write_results


def test_sizes_are_sorted_whole_and_different() -> None:
    found = ascending("sizes", [1e3, 50, 1000, 7])  # type: ignore[list-item]  # as on a command line
    assert found == [7, 50, 1000]
    assert all(type(n) is int for n in found)
    assert ascending("label_only", [5, 0], least=0) == [0, 5]


@pytest.mark.parametrize(
    ("values", "least", "message"),
    [
        ([], 1, r"sizes: expected one or more positive whole numbers, got \[\]"),
        ([10, 0], 1, r"sizes: expected one or more positive whole numbers, got \[10, 0\]"),
        ([2.5], 1, r"positive whole numbers, got \[2\.5\]"),
        ([9], 10, r"sizes: expected one or more whole numbers of at least 10, got \[9\]"),
        ([-1], 0, r"sizes: expected one or more whole numbers, 0 for none, got \[-1\]"),
    ],
)
def test_sizes_that_make_no_experiment(values: list[Any], least: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        ascending("sizes", values, least)


def test_the_number_at_fault_is_named() -> None:
    check_positive(rows=1, epochs=[1, 2])
    with pytest.raises(DataError, match="epochs: expected at least 1, got 0"):
        check_positive(rows=1, epochs=0)
    with pytest.raises(DataError, match=r"states: expected at least 1, got \[2, 0\]"):
        check_positive(states=[2, 0])
    with pytest.raises(DataError, match=r"states: expected at least 1, got \[\]"):
        check_positive(states=[])


def test_learners_with_a_graph_of_their_own_are_refused() -> None:
    check_takes_graph("Networks", PBP)
    check_takes_graph("Networks", EM)
    with pytest.raises(
        StructureError, match=r"Networks: .* takes the model's graph, got a PBP with a graph of its own\. Choose l=a"
    ):
        check_takes_graph("Networks", PBP(templates.hmm(6)), "l=a")


def test_seeds_of_repeats_differ_and_do_not_depend_on_how_many_are_asked_for() -> None:
    drawn = [tuple(seeds_of(seed, repeat, 2)) for seed in range(3) for repeat in range(3)]
    assert len({s for pair in drawn for s in pair}) == 18
    assert seeds_of(1, 2, 5)[:2] == seeds_of(1, 2, 2)


def test_a_table_becomes_flat_metrics(tmp_path: Path) -> None:
    table = pd.DataFrame({"who": ["a", "b"], "rows": [10, 20], "kl": [0.5, math.inf], "spread": [math.nan, 0.25]})
    metrics = metrics_of(table, ("who", "rows"), {"kl": "kl", "kl_standard_error": "spread"})
    assert metrics == {
        "kl/a/10": 0.5,
        "kl_standard_error/a/10": None,  # none for a single repeat
        "kl/b/20": None,
        "kl_standard_error/b/20": 0.25,
    }
    metrics |= environment()
    assert metrics["threads"] == torch.get_num_threads()
    folder = write_results(tmp_path / "new", metrics, table)
    assert json.loads((folder / "metrics.json").read_text()) == metrics
    assert pd.read_csv(folder / "metrics.csv")["rows"].tolist() == [10, 20]
    assert {p.name for p in folder.iterdir()} == {"metrics.json", "metrics.csv"}
