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
from torchpbp.errors import ArgumentError, StructureError
from torchpbp.experiments.running.experiment import check_takes_graph, one_or_more, row_counts, seeds_of
from torchpbp.experiments.running.grid import measure_grid
from torchpbp.experiments.running.results import environment, metrics_of, write_results
from torchpbp.experiments.running.run_folder import run_folder
from torchpbp.settings import several, whole


def test_sizes_are_sorted_whole_and_different() -> None:
    sizes = row_counts().check("sizes", [1e3, 50, 1000, 7])  # as on a command line
    assert sizes == (7, 50, 1000)
    assert all(type(n) is int for n in sizes)
    assert row_counts(least=0).check("label_only", [5, 0]) == (0, 5)


@pytest.mark.parametrize(
    ("values", "least", "message"),
    [
        ([], 1, r"sizes: expected one or more whole numbers of at least 1, got \[\]"),
        ([10, 0], 1, r"sizes: expected one or more whole numbers of at least 1, got \[10, 0\]"),
        ([2.5], 1, r"of at least 1, got \[2\.5\]"),
        ([9], 10, r"sizes: expected one or more whole numbers of at least 10, got \[9\]"),
        ([-1], 0, r"sizes: expected one or more whole numbers of at least 0, got \[-1\]"),
        ("12", 1, "sizes: expected one or more"),
        ([True], 1, "sizes: expected one or more"),
        ([float("nan"), float("inf")], 1, "sizes: expected one or more"),
        (5, 1, "sizes: expected one or more"),
    ],
)
def test_sizes_that_make_no_experiment(values: Any, least: int, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        row_counts(least).check("sizes", values)


def test_an_empty_list_is_not_one_or_more() -> None:
    constraint = one_or_more(several(whole(1)))
    assert constraint.check("states", [2, 1]) == (2, 1)
    for values in ([2, 0], []):
        with pytest.raises(ArgumentError, match="states: expected one or more"):
            constraint.check("states", values)


def test_points_are_measured_in_order_and_kept_for_a_resumed_run(tmp_path: Path) -> None:
    calls: list[tuple[Any, ...]] = []

    def measure(repeat: int, name: str) -> dict[str, Any]:
        calls.append((repeat, name))
        if (repeat, name) == (1, "a") and len(calls) == 3:
            raise ZeroDivisionError
        return {"value": 10 * repeat + len(name)}

    points = [(repeat, name) for repeat in (0, 1) for name in ("a", "bb")]
    with pytest.raises(ZeroDivisionError), run_folder(tmp_path, {}, False):
        list(measure_grid("test", points, measure, tmp_path, False))
    with run_folder(tmp_path, {}, True):
        results = list(measure_grid("test", points, measure, tmp_path, False, always=points[:1]))
    assert results == [(point, {"value": 10 * point[0] + len(point[1])}) for point in points]
    assert calls == [(0, "a"), (0, "bb"), (1, "a"), (0, "a"), (1, "a"), (1, "bb")]


def test_learners_with_a_graph_of_their_own_are_rejected() -> None:
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
