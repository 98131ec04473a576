"""The timing helper: who is called when, what is reported and what is written. No test looks at how long things take."""

from __future__ import annotations

import gc
import json
import re
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

from benchmarks.timing import Comparison, compare, draw_comparisons, environment, write_comparisons
from torchpbp.errors import ArgumentError

ROOT = Path(__file__).parents[2]
KNOWN = Comparison("sums", "slow", {"fast": [2.0, 1.0, 4.0], "slow": [8.0, 5.0, 10.0]}, {"fast": 3, "slow": 1})


def test_implementations_take_turns_in_a_rotating_order() -> None:
    called: list[str] = []
    implementations = {name: (lambda name=name: called.append(name)) for name in "abc"}
    result = compare(implementations, "order", rounds=3, least_seconds=0.0, verbose=False)
    assert "".join(called) == "aabbcc" + "abc" + "bca" + "cab"  # unmeasured and sizing calls, then the rounds
    assert {name: len(values) for name, values in result.seconds.items()} == {"a": 3, "b": 3, "c": 3}
    assert result.calls == {"a": 1, "b": 1, "c": 1}


def test_quick_callables_are_repeated_and_seconds_are_per_call(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    called: Counter[str] = Counter()

    def work(name: str, seconds: float) -> None:
        clock[0] += seconds
        called[name] += 1

    implementations = {"quick": lambda: work("quick", 0.25), "slow": lambda: work("slow", 4.0)}
    result = compare(implementations, "clock", rounds=2, least_seconds=1.0, verbose=False)
    assert result.calls == {"quick": 4, "slow": 1}
    assert called == {"quick": 2 + 2 * 4, "slow": 2 + 2}
    assert result.seconds == {"quick": [0.25, 0.25], "slow": [4.0, 4.0]}
    assert result.ratios == {"quick": 1.0, "slow": 16.0}


def test_best_ratio_and_spread() -> None:
    assert KNOWN.best == {"fast": 1.0, "slow": 5.0}
    assert KNOWN.ratios == {"fast": 0.2, "slow": 1.0}
    assert KNOWN.spread == {"fast": 4.0, "slow": 2.0}
    lines = str(KNOWN).splitlines()
    assert lines[0] == "sums"
    assert lines[2].split() == ["fast", "0.2", "1", "4.00"]


def test_the_first_is_the_reference_unless_another_is_named() -> None:
    both = {"a": int, "b": int}
    assert compare(both, "t", rounds=1, least_seconds=0.0, verbose=False).reference == "a"
    assert compare(both, "t", rounds=1, reference="b", least_seconds=0.0, verbose=False).reference == "b"


def test_no_garbage_is_collected_while_measuring_and_the_switch_is_restored() -> None:
    seen: list[bool] = []

    def fail() -> None:
        seen.append(gc.isenabled())
        if len(seen) == 2:
            raise RuntimeError("stop")

    assert gc.isenabled()
    with pytest.raises(RuntimeError, match="stop"):
        compare({"a": fail}, "t", verbose=False)
    assert seen == [True, False]  # the unmeasured call, then the first measured one
    assert gc.isenabled()


def test_invalid_arguments_raise() -> None:
    with pytest.raises(ArgumentError, match="t: expected at least one callable to time, got none"):
        compare({}, "t")
    with pytest.raises(ArgumentError, match="rounds: expected at least 1, got 0"):
        compare({"a": int}, "t", rounds=0)
    with pytest.raises(ArgumentError, match=r"reference: expected one of \['a'\], got 'b'"):
        compare({"a": int}, "t", reference="b")
    with pytest.raises(ArgumentError, match="expected at least one comparison to write, got none"):
        write_comparisons("nowhere", "t", [])


def test_progress_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    compare({"a": int, "b": int}, "progress", rounds=2, least_seconds=0.0)
    captured = capsys.readouterr()
    assert "6/6" in captured.err
    assert captured.out == ""


def test_environment_tells_threads_and_versions() -> None:
    found = environment(["pytest", "no-such-package"])
    assert found["threads"] == torch.get_num_threads()
    assert found["versions"]["pytest"] == pytest.__version__
    assert found["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert found["versions"]["no-such-package"] is None


def test_written_files_hold_all_measurements(tmp_path: Path) -> None:
    write_comparisons(tmp_path / "results", "sums", [KNOWN], packages=["pytest"])
    assert {path.name for path in (tmp_path / "results").iterdir()} == {"sums.json", "sums.png"}
    content = json.loads((tmp_path / "results" / "sums.json").read_text())
    (written,) = content["comparisons"]
    assert Comparison(**{k: written[k] for k in ("title", "reference", "seconds", "calls")}) == KNOWN
    assert written["ratios"] == KNOWN.ratios
    assert content["environment"]["versions"]["pytest"] == pytest.__version__
    assert (tmp_path / "results" / "sums.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_shows_ratios_and_threads() -> None:
    first, second = draw_comparisons([KNOWN, KNOWN], threads=2).axes
    assert [label.get_text() for label in first.get_yticklabels()] == ["fast", "slow"]
    assert [text.get_text() for text in first.texts] == ["0.2", "1"]
    assert second.get_xlabel().endswith("(2 threads)")


def test_the_example_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "benchmarks" / "README.md").read_text("utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(block, {"ours": lambda: None, "theirs": lambda: sum(range(10))})
    assert (tmp_path / "benchmarks" / "results" / "posterior.json").exists()
