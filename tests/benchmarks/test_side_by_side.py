"""Comparisons of implementations: results are compared before timing; failures and timeouts are reported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from benchmarks.implementation import evidence_rows, stacked
from benchmarks.report import Claim, Panel, Report, draw
from benchmarks.side_by_side import RunOptions, agree, time_side_by_side
from benchmarks.workers import Workers
from tests.benchmarks.adders import Absent, Adder
from torchpbp.errors import DataError


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers() as found:
        yield found


def only_sums(tolerance: float = 1e-9) -> Any:
    check = agree(tolerance)
    return lambda answers: check({label: {"sum": answer["sum"]} for label, answer in answers.items()})


@pytest.mark.slow
def test_right_answers_are_timed_in_a_process_of_their_own(workers: Workers) -> None:
    settings = RunOptions(workers, rounds=3)
    implementations = [Adder("one", [1.0, 2.0]), Adder("other", [2.0, 1.0]), Adder("two threads", [3.0], threads=2)]
    outcome = time_side_by_side(settings, implementations, "sums", only_sums())
    assert outcome.comparison is not None
    assert {label: len(values) for label, values in outcome.comparison.seconds.items()} == dict.fromkeys(
        ["one", "other", "two threads"], 3
    )
    assert outcome.left_out == {}
    processes = [float(answer["process"][0]) for answer in outcome.answers.values()]
    assert processes[0] == processes[1] != os.getpid()
    assert processes[2] not in (processes[0], os.getpid())
    assert [float(a["threads"][0]) for a in outcome.answers.values()] == [1, 1, 2]


@pytest.mark.slow
def test_who_would_exceed_the_budget_is_measured_once(workers: Workers) -> None:
    outcome = time_side_by_side(RunOptions(workers, rounds=3, budget=0.0), [Adder("one", [1.0])], "sums")
    assert outcome.comparison is not None
    assert len(outcome.comparison.seconds["one"]) == 1


@pytest.mark.slow
def test_a_wrong_answer_stops_everything_before_timing(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.side_by_side._rounds", lambda *_: pytest.fail("timed"))
    implementations = [Adder("right", [1.0]), Adder("liar", [1.0], "wrong")]
    with pytest.raises(DataError, match="liar: expected the answers of right to 1e-09, got sum off by 1"):
        time_side_by_side(RunOptions(workers), implementations, "sums", only_sums())


@pytest.mark.slow
def test_who_fails_is_left_out_with_the_reason(workers: Workers) -> None:
    implementations = [Adder("right", [1.0]), Adder("broken", [1.0], "error"), Absent("absent", [1.0])]
    outcome = time_side_by_side(RunOptions(workers, rounds=1), implementations, "sums")
    assert outcome.left_out == {
        "absent": "not installed (pip install -c constraints.txt no-such-package)",
        "broken": "ValueError: cannot add",
    }
    assert list(outcome.answers) == ["right"]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["slow", "dies"])
def test_a_lost_process_does_not_stop_the_others_of_its_library(workers: Workers, fault: str) -> None:
    implementations = [Adder("before", [1.0]), Adder("lost", [1.0], fault), Adder("after", [1.0])]
    outcome = time_side_by_side(RunOptions(workers, rounds=1, limit=1.0), implementations, "sums")
    assert list(outcome.answers) == ["before", "after"]
    assert outcome.comparison is not None
    assert set(outcome.comparison.seconds) == {"before", "after"}
    assert ("1 s" if fault == "slow" else "process ended") in outcome.left_out["lost"]
    assert outcome.too_slow == ({"lost": 1.0} if fault == "slow" else {})


def test_agreement_looks_at_what_both_answer() -> None:
    first = {"x": np.array([[0.5, 0.5], [np.nan, np.nan]])}
    agree(1e-9)({"a": first, "b": {"x": np.array([[0.5, 0.5 + 1e-12]])}})  # fewer rows
    with pytest.raises(DataError, match=r"b: expected the answers of a to 1e-09, got x off by 0\.1"):
        agree(1e-9)({"a": first, "b": {"x": np.array([[0.6, 0.4], [np.nan, np.nan]])}})
    with pytest.raises(DataError, match=r"b: expected answers about \['x'\], got \['y'\]"):
        agree(1e-9)({"a": first, "b": {"y": np.array([1.0])}})


def test_results_that_are_not_finite_are_wrong() -> None:
    with pytest.raises(DataError, match="b: expected the answers of a to 1e-09, got x off by inf"):
        agree(1e-9)({"a": {"x": np.array([[0.5]])}, "b": {"x": np.array([[np.inf]])}})
    with pytest.raises(DataError, match="b: expected the answers of a to 1e-09, got x off by nan"):
        agree(1e-9)({"a": {"x": np.array([[0.5]])}, "b": {"x": np.array([[np.nan]])}})


def test_rows_of_evidence_and_back() -> None:
    rows = list(evidence_rows({"a": np.array([0, -1]), "b": np.array([2, 1])}))
    assert rows == [{"a": 0, "b": 2}, {"b": 1}]
    table = stacked([{}, {"a": np.array([0.25, 0.75])}], {"a": 2})["a"]
    assert np.isnan(table[0]).all()
    assert table[1].tolist() == [0.25, 0.75]


def test_claims() -> None:
    assert Claim("speed", 60.0, at_least=50).met is True
    assert Claim("speed", 40.0, at_least=50).met is False
    assert Claim("error", 1.6, at_most=1.5).met is False
    assert Claim("error", None, at_most=1.5).met is None
    assert str(Claim("speed", 40.0, at_least=50)).split() == ["MISSED", "speed:", "40", "(at", "least", "50)"]
    assert "not measured" in str(Claim("error", None, at_most=1.5))


def test_the_figure_shows_all_curves(tmp_path: Any) -> None:
    panel = Panel("speed", "rows", "seconds", dashed=["guess"])
    for label, x, y in (("a", 1, 2.0), ("a", 10, 3.0), ("guess", 1, 5.0), ("b", 1, None)):
        panel.add(label, x, y)
    report = Report("sums", panels=[panel], claims=[Claim("speed", 1.0, at_least=2)])
    (axes,) = draw(report.panels, threads=2).axes
    assert [line.get_label() for line in axes.lines] == ["a", "guess"]
    assert [line.get_linestyle() for line in axes.lines] == ["-", "--"]
    assert "MISSED" in str(report)
