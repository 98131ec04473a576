"""Networks, rows and single measurements of the benchmarks."""

from __future__ import annotations

import gc
import importlib
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.counting import write_table
from benchmarks.networks import draw_evidence, loopy_eight
from benchmarks.runner import agree
from benchmarks.scale import exponent, larger_half, memory_map
from benchmarks.trace import BETWEEN, CALLS, FILES, FUNCTIONS, count_calls, traced
from benchmarks.versions import CASES
from benchmarks.work import evidence_rows, measure, stacked
from torchpbp import PBP, DiscreteNetwork, templates


def test_no_garbage_is_collected_while_measuring() -> None:
    seen: list[bool] = []
    wall, processor = measure(lambda: seen.append(gc.isenabled()), 3)
    assert seen == [False] * 3
    assert gc.isenabled()
    assert wall > 0
    assert processor >= 0


def test_exponents_are_fitted_to_the_larger_half() -> None:
    flat_then_square = {x: float(max(100, x) ** 2) for x in (1, 10, 100, 1_000, 10_000)}
    assert exponent(flat_then_square) == pytest.approx(2.0)
    assert exponent({10: 1.0, 100: 10.0}) == pytest.approx(1.0)
    assert exponent({10: 1.0}) is None
    assert larger_half([1_000, 1, 100, 10, 10_000]) == [100, 1_000, 10_000]
    assert larger_half([7]) == [7]


def test_a_memory_map_repeats_the_drawn_rows() -> None:
    drawn = {"x": torch.tensor([0, 1, 2]), "y": torch.tensor([3, 4, 5])}
    table = memory_map(drawn, 7)
    assert table.tolist() == [[0, 3], [1, 4], [2, 5], [0, 3], [1, 4], [2, 5], [0, 3]]
    assert not table.flags.writeable


def test_the_table_that_is_counted_has_its_rows_in_several_files(tmp_path: Path) -> None:
    truth = DiscreteNetwork.random(templates.naive_bayes(3), seed=1)
    assert write_table(truth, str(tmp_path), 1_003) > 0
    assert len(list(tmp_path.iterdir())) == 9
    assert PBP(truth.graph).count(tmp_path).rows == 1_003


def test_evidence_differs_between_rows_and_leaves_one_variable_open() -> None:
    network = DiscreteNetwork.random(loopy_eight(), seed=1)
    evidence = draw_evidence(network, 200)
    patterns = {tuple(x[i] >= 0 for x in evidence.values()) for i in range(200)}
    assert len(patterns) == 2**4 - 1
    assert not any(all(pattern) for pattern in patterns)
    assert network.log_evidence(evidence).isfinite().all()


def test_rows_of_evidence_and_back() -> None:
    rows = list(evidence_rows({"a": np.array([0, -1]), "b": np.array([2, 1])}))
    assert rows == [{"a": 0, "b": 2}, {"b": 1}]
    table = stacked([{}, {"a": np.array([0.25, 0.75])}], {"a": 2})["a"]
    assert np.isnan(table[0]).all()
    assert table[1].tolist() == [0.25, 0.75]


@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if not case.measures_itself and name != "import"]
)
def test_the_cases_of_two_checkouts_repeat_their_answers(name: str) -> None:
    case = CASES[name]
    work = case.make(**case.arguments | case.tiny)
    first, second = (work.answer(work.run()) for _ in range(2))
    agree(case.tolerance)({"first": first, "second": second})
    assert all(np.isfinite(values).any() for values in first.values())


def test_calls_between_files_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "traced_one.py").write_text(
        "from traced_two import double\ndef three():\n    return sum(map(double, [1, 2])) + own()\ndef own(): return 1\n"
    )
    (tmp_path / "traced_two.py").write_text("def double(x): return 2 * same(x)\ndef same(x): return x\n")
    monkeypatch.syspath_prepend(tmp_path)
    three = importlib.import_module("traced_one").three
    assert count_calls(three, tmp_path) == {FILES: 2, FUNCTIONS: 4, BETWEEN: 2}
    assert count_calls(three, tmp_path / "elsewhere") == {FILES: 0, FUNCTIONS: 0, BETWEEN: 0}


def test_a_trace_counts_a_call_that_has_been_made_before() -> None:
    make, arguments = CALLS["posterior"]
    work = traced(make, arguments)
    first, second = (work.answer(work.run()) for _ in range(2))
    assert first == second
    assert 1 < first[FILES] <= first[FUNCTIONS]
