"""The command line, and every benchmark at tiny sizes without other libraries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import digits, report, runner, training
from benchmarks.command import BENCHMARKS, main
from benchmarks.this_library import kernel_chains
from benchmarks.versions import HERE
from benchmarks.work import Work

LIBRARIES = {"pgmpy", "pyagrum", "pomegranate", "hmmlearn", "scikit-learn"}


@pytest.mark.slow
def test_all_run_and_the_last_line_says_what_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = report.installed_version
    monkeypatch.setattr(runner, "installed_version", lambda name: None if name in LIBRARIES else installed(name))
    main(["--tiny", "--output", str(tmp_path)])
    printed = capsys.readouterr()
    for name in BENCHMARKS.keys() - {"versions"}:
        assert f"== {name} ==" in printed.out
        content = json.loads((tmp_path / f"{name}.json").read_text())
        assert content["tiny"] is True
        assert content["tables"]
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    last = printed.out.splitlines()[-1]
    for library in LIBRARIES:
        assert f"{library}: not installed (pip install -c constraints.txt {library})" in last


@pytest.mark.slow
def test_a_checkout_against_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = ["posterior of one row", "PBPLayer, one row", "training step"]
    main(["versions", "--other", str(HERE), "--tiny", "--only", *cases, "--output", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert [case for case in cases if any(line.startswith(case) for line in lines)] == cases


def broken(**_: object) -> Work:
    raise TypeError("unexpected keyword argument 'iterations'")


@pytest.mark.slow
def test_an_error_ends_the_run_with_a_non_zero_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "em_fit", broken)
    with pytest.raises(SystemExit) as ended:
        main(["training", "--tiny", "--output", str(tmp_path)])
    message = "EM, 0.0001: TypeError: unexpected keyword argument 'iterations'"
    assert message in str(ended.value.code)  # a text: Python prints it and exits with 1
    assert not (tmp_path / "training.json").exists()


def test_a_classifier_no_better_than_chance_is_a_wrong_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "CHANCE", 1.1)
    monkeypatch.setattr(digits, "CLASSIFIERS", {"PBP, kernel chain": kernel_chains})
    with pytest.raises(SystemExit, match="WrongAnswer: digits: PBP, kernel chain: expected digits"):
        main(["digits", "--tiny", "--output", str(tmp_path)])


def test_the_list_has_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--list"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(BENCHMARKS)
    for line, module in zip(lines, BENCHMARKS.values(), strict=True):
        assert str(module.__doc__).splitlines()[0] in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "names: expected some of training, hmm, queries, digits, scale, planning, startup, trace, vers"),
        (["--threads", "0"], "expected a whole number of at least 1, got '0'"),
        (["--rounds", "few"], "expected a whole number of at least 1, got 'few'"),
        (["versions"], "versions: expected --other <folder of another checkout of torchpbp>"),
        (["versions", "--other", "tests"], "--other: expected a folder with the package torchpbp, got 'tests'"),
        (["training", "--only", "diamond"], "expected --output as well"),
    ],
)
def test_errors_of_the_command_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert message in capsys.readouterr().err
