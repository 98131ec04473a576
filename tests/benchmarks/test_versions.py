"""Two checkouts side by side: here, this one twice."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.version_worker import case
from benchmarks.versions import CASES, HERE, LIKELIHOOD, Ratios, main


def test_medians_and_quartiles_are_shown() -> None:
    shown = str(Ratios("fit, diamond", [1.0, 2.0, 3.0, 4.0, 5.0], [0.5, 0.5, 0.5, 0.5, 0.5], 0.25))
    assert re.sub(r"\s+", " ", shown) == "fit, diamond 3.000 (2.000 to 4.000) 0.500 (0.500 to 0.500) 0.2500"


@pytest.mark.parametrize("name", [*CASES, *LIKELIHOOD[:7], LIKELIHOOD[-1]])
def test_each_case_repeats_its_answer(name: str) -> None:
    work, answer = case(name, tiny=True)
    first, second = (answer(work()).detach().clone() for _ in range(2))
    assert first.numel() > 0
    assert first.isfinite().all()
    assert first.allclose(second)


@pytest.mark.slow
def test_a_checkout_against_itself(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--other", str(HERE), "--rounds", "2", "--tiny", "--case", CASES[0], "--case", CASES[-1]])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("2 pairs, 1 thread(s)")
    assert [line[:44].strip() for line in lines if "(" in line][2:] == [CASES[0], CASES[-1]]


@pytest.mark.slow
def test_folder_without_the_package_raises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--other", str(tmp_path), "--rounds", "1"])
    assert "expected a folder with the package torchpbp" in capsys.readouterr().err
