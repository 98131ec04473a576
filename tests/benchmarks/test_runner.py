"""A runner compares answers before it times; only a missing package or the time limit leaves an implementation out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from benchmarks import workers as workers_module
from benchmarks.report import Claim, Report
from benchmarks.runner import Comparison, Options, Runner, WrongAnswer, agree, summary
from benchmarks.work import Answer, Implementation
from benchmarks.workers import WorkerError, Workers
from tests.benchmarks.adders import absent, adder

ABSENT = {"no-such-package": "not installed (pip install -c constraints.txt no-such-package)"}


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers() as running:
        yield running


def adding(label: str, *numbers: float, threads: int | None = None, fault: str = "") -> Implementation:
    return Implementation(label, adder, {"numbers": list(numbers), "fault": fault}, threads=threads)


def same_sums(answers: Mapping[str, Answer]) -> None:
    agree(1e-9)({label: {"sum": answer["sum"]} for label, answer in answers.items()})


@pytest.mark.slow
def test_equal_answers_are_timed_in_a_process_per_library_and_number_of_threads(workers: Workers) -> None:
    runner = Runner("sums", Options(rounds=3), workers)
    implementations = [adding("one", 1.0, 2.0), adding("other", 2.0, 1.0), adding("two threads", 3.0, threads=2)]
    result = runner.compare("three", implementations, same_sums, least_seconds=0.0)
    assert {label: len(times) for label, times in result.wall.items()} == {"one": 3, "other": 3, "two threads": 3}
    processes = [float(answer["process"]) for answer in result.answers.values()]
    assert processes[0] == processes[1] != os.getpid()
    assert processes[2] not in (processes[0], os.getpid())
    assert [float(answer["threads"]) for answer in result.answers.values()] == [1, 1, 2]
    assert [row[""] for row in runner.report.tables["three"]] == ["one", "other", "two threads"]
    assert runner.report.measurements[0]["wall"] == result.wall
    assert runner.report.left_out == {}


@pytest.mark.slow
def test_long_work_is_measured_once(workers: Workers) -> None:
    runner = Runner("sums", Options(rounds=3, limit=1e-9), workers)
    result = runner.compare("three", [adding("one", 3.0)], limit=60)
    assert len(result.wall["one"]) == 1


@pytest.mark.slow
def test_a_wrong_answer_ends_the_run_before_anything_is_timed(workers: Workers, monkeypatch: Any) -> None:
    monkeypatch.setattr(workers_module, "timed", lambda *_: pytest.fail("timed"))
    runner = Runner("sums", Options(), workers)
    with pytest.raises(WrongAnswer, match="liar: expected the answers of right to 1e-09, got sum off by 1"):
        runner.compare("one", [adding("right", 1.0), adding("liar", 1.0, fault="wrong")], same_sums)
    assert runner.report.measurements == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("error", "sums, one: broken: ValueError: cannot add"),
        ("unprepared", "sums, one: broken: RuntimeError: cannot prepare"),
        ("dies", "sums, one: broken: its process ended, perhaps for lack of memory"),
    ],
)
def test_an_implementation_that_raises_ends_the_run(workers: Workers, fault: str, message: str) -> None:
    runner = Runner("sums", Options(), workers)
    with pytest.raises(WorkerError, match=message):
        runner.compare("one", [adding("right", 1.0), adding("broken", 1.0, fault=fault)], same_sums)


@pytest.mark.slow
def test_a_missing_package_and_the_time_limit_leave_out(workers: Workers) -> None:
    runner = Runner("sums", Options(rounds=1, limit=1.0), workers)
    slow = adding("slow", 1.0, fault="slow")
    result = runner.compare("one", [adding("before", 1.0), slow, Implementation("gone", absent), adding("after", 1.0)])
    assert list(result.wall) == list(result.answers) == ["before", "after"]
    assert result.bounds == {"slow": 1.0}
    assert runner.report.left_out == ABSENT | {"one: slow": "more than 1 s"}
    runner.report.claim("speed", 2.0, at_least=1)
    runner.report.claim("speed", 0.5, at_least=1)
    runner.report.claim("speed", None, at_least=1)
    assert summary([runner.report, Report("others", left_out=ABSENT)]) == (
        "3 targets: 1 met, 1 missed, 1 not measured. Left out: "
        f"no-such-package: {ABSENT['no-such-package']}; sums, one: slow: more than 1 s."
    )


@pytest.mark.slow
def test_numbers_come_from_a_process_of_their_own(workers: Workers) -> None:
    runner = Runner("sums", Options(), workers)
    one, other = (runner.numbers("three", adding("one", 3.0)) for _ in range(2))
    assert one is not None
    assert other is not None
    assert one["sum"] == other["sum"] == 3.0
    assert one["process"] != other["process"]
    assert runner.numbers("gone", Implementation("gone", absent)) is None


def test_ratios_are_those_of_best_rounds() -> None:
    times = Comparison("sums", {"fast": [2.0, 1.0, 4.0], "slow": [8.0, 5.0, 10.0]})
    assert times.seconds("slow") == 5.0
    assert times.ratio("slow", "fast") == 5.0
    assert times.ratio("slow", "gone") is None
    assert times.table()[1] == {"": "slow", "ratio": 5.0, "best, s": 5.0, "worst/best": 2.0}


def test_answers_are_compared_where_both_have_them() -> None:
    first = {"x": np.array([[0.5, 0.5], [np.nan, np.nan]])}
    agree(1e-9)({"a": first, "b": {"x": np.array([[0.5, 0.5 + 1e-12]])}})  # fewer rows
    with pytest.raises(WrongAnswer, match=r"b: expected the answers of a to 1e-09, got x off by 0\.1"):
        agree(1e-9)({"a": first, "b": {"x": np.array([[0.6, 0.4], [np.nan, np.nan]])}})
    with pytest.raises(WrongAnswer, match=r"b: expected answers about \['x'\], got \['y'\]"):
        agree(1e-9)({"a": first, "b": {"y": np.array([1.0])}})


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_answers_that_are_not_finite_are_wrong(value: float) -> None:
    with pytest.raises(WrongAnswer, match=f"b: expected the answers of a to 1e-09, got x off by {value}"):
        agree(1e-9)({"a": {"x": np.array([[0.5]])}, "b": {"x": np.array([[value]])}})


def test_parts_are_chosen_by_any_text_in_their_name() -> None:
    with Workers() as none:
        runner = Runner("sums", Options(only=("chain", "GRID")), none)
        assert [runner.wanted(part) for part in ("Chain of 2,000 sites", "7 x 7 grid", "star")] == [True, True, False]
        assert Runner("sums", Options(), none).wanted("star")


def test_claims_compare_with_targets() -> None:
    assert Claim("speed", 60.0, at_least=50).met is True
    assert Claim("speed", 40.0, at_least=50).met is False
    assert Claim("error", 1.6, at_most=1.5).met is False
    assert Claim("error", None, at_most=1.5).met is None
    assert str(Claim("speed", 40.0, at_least=50)).split() == ["MISSED", "speed:", "40", "(at", "least", "50)"]
    assert "not measured" in str(Claim("error", None, at_most=1.5))
