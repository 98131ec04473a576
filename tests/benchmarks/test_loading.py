"""The benchmark of model files, in its tiniest form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.loading import FIT, PLAIN, WHOLE, main


def test_one_run_prints_fit_load_and_ratio_with_threads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    try:
        main(["--sites", "4", "--rows", "50", "--rounds", "2", "--threads", "1", "--output", str(tmp_path)])
    finally:
        torch.set_num_threads(threads)
    printed = capsys.readouterr().out
    assert printed.startswith("a chain of 4 sites")
    assert "1 thread(s)" in printed
    assert all(name in printed for name in (PLAIN, WHOLE, FIT))
    content = json.loads((tmp_path / "loading.json").read_text())
    comparison = content["comparisons"][0]
    assert content["environment"]["threads"] == 1
    assert comparison["reference"] == PLAIN
    assert {name: len(times) for name, times in comparison["seconds"].items()} == {PLAIN: 2, WHOLE: 2, FIT: 1}
    assert comparison["ratios"][WHOLE] == pytest.approx(comparison["best"][WHOLE] / comparison["best"][PLAIN])
    assert (tmp_path / "loading.png").read_bytes().startswith(b"\x89PNG")
