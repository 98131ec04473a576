"""The command line, and every benchmark at tiny sizes without other libraries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import digits, hmm, planning, queries, scale, side_by_side, training
from benchmarks.cluster_counting import write_table
from benchmarks.command import main
from benchmarks.side_by_side import RunOptions
from benchmarks.this_library.scaling import memory_map
from benchmarks.workers import Workers

ALL = ["training", "hmm", "queries", "digits", "scale", "planning"]
LIBRARIES = {"pgmpy", "pyagrum", "pomegranate", "hmmlearn", "scikit-learn"}


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which no other library is installed."""
    monkeypatch.setattr(side_by_side, "installed", lambda library: library not in LIBRARIES)
    monkeypatch.setattr(queries, "installed", lambda library: library not in LIBRARIES)
    monkeypatch.setattr(digits, "CLASSIFIERS", {"PBP, kernel chain": digits.KernelChain, "SVM": digits.SupportVectors})


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_all_benchmarks_run_and_say_what_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--tiny", "--rounds", "1", "--output", str(tmp_path)])
    printed = capsys.readouterr()
    for name in ALL:
        assert f"== {name} ==" in printed.out
        content = json.loads((tmp_path / f"{name}.json").read_text())
        assert content["size"] == "tiny"
        assert content["environment"]["threads"] == 1
        assert content["records"]
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        if name not in ("scale", "planning"):  # which have no other libraries
            assert any("pip install -c constraints.txt" in reason for reason in content["left_out"].values())
    for library in LIBRARIES:
        assert f"not installed (pip install -c constraints.txt {library})" in printed.out
    assert "6/6" in printed.err  # the progress bar


def test_the_list_tells_what_each_is(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--list"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ALL
    for line, module in zip(lines, (training, hmm, queries, digits, scale, planning), strict=True):
        assert str(module.__doc__).splitlines()[0] in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "expected some of training, hmm, queries, digits, scale, planning, got nothing"),
        (["--threads", "0"], "expected a whole number of at least 1, got '0'"),
        (["--rounds", "few"], "expected a whole number of at least 1, got 'few'"),
        (["--quick", "--tiny"], "not allowed with argument"),
    ],
)
def test_errors_of_the_command_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert message in capsys.readouterr().err


def test_networks_of_pgmpy_are_left_out_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "installed", lambda library: False)
    report = queries.Report("queries")
    assert queries.example_networks(report, ("alarm",)) == {}
    assert report.left_out == {
        "alarm (its file comes with pgmpy)": "not installed (pip install -c constraints.txt pgmpy)"
    }


def test_exponents_are_fitted_to_the_larger_half() -> None:
    flat_then_square = {x: float(max(100, x) ** 2) for x in (1, 10, 100, 1_000, 10_000)}
    assert scale.exponent(flat_then_square) == pytest.approx(2.0)
    assert scale.exponent({10: 1.0, 100: 10.0}) == pytest.approx(1.0)
    assert scale.exponent({10: 1.0}) is None
    assert scale.larger_half([1_000, 1, 100, 10, 10_000]) == [100, 1_000, 10_000]
    assert scale.larger_half([7]) == [7]


def test_a_memory_map_holds_the_drawn_rows_over_and_over() -> None:
    drawn = {"x": torch.tensor([0, 1, 2]), "y": torch.tensor([3, 4, 5])}
    found = memory_map(drawn, 7)
    assert found.tolist() == [[0, 3], [1, 4], [2, 5], [0, 3], [1, 4], [2, 5], [0, 3]]
    assert not found.flags.writeable


def test_the_table_that_is_counted_has_its_rows_in_several_files(tmp_path: Path) -> None:
    from torchpbp import PBP, DiscreteNetwork, templates

    truth = DiscreteNetwork.random(templates.naive_bayes(3), seed=1)
    assert write_table(truth, str(tmp_path), 1_003) > 0
    assert len(list(tmp_path.iterdir())) == 9
    assert PBP(truth.graph).count(tmp_path).rows == 1_003


def test_evidence_differs_between_rows_and_leaves_something_to_ask() -> None:
    from benchmarks.em import loopy_eight
    from torchpbp import DiscreteNetwork

    network = DiscreteNetwork.random(loopy_eight(), seed=1)
    evidence = queries.draw_evidence(network, 200)
    patterns = {tuple(x[i] >= 0 for x in evidence.values()) for i in range(200)}
    assert len(patterns) == 2**4 - 1
    assert not any(all(pattern) for pattern in patterns)
    assert network.log_evidence(evidence).isfinite().all()


def test_sizes() -> None:
    assert [RunOptions(Workers(), size).choose(3, 2, 1) for size in ("full", "quick", "tiny")] == [3, 2, 1]
