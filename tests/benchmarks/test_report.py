"""Tables, figure and files of a report."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.report import Report, draw, format_table


def test_the_figure_shows_all_curves() -> None:
    report = Report("sums")
    panel = report.panel("speed", "rows", "seconds")
    for label, x, y in (("a", 1, 2.0), ("a", 10, 3.0), ("guess", 1, 5.0), ("b", 1, None)):
        panel.add(label, x, y)
    panel.dashed.add("guess")
    figure = draw(report.panels, threads=2)
    (axes,) = figure.axes
    assert [line.get_label() for line in axes.lines] == ["a", "guess"]
    assert [line.get_linestyle() for line in axes.lines] == ["-", "--"]
    assert figure.get_suptitle() == "2 threads per process; dashed: extrapolated, or a lower bound"


def test_a_table_has_a_column_for_each_name() -> None:
    rows = [{"learner": "PBP", "seconds": 0.125}, {"learner": "EM", "seconds": 123456.0, "rows": 1000}]
    assert format_table(rows).splitlines() == [
        "learner  seconds   rows",
        "PBP        0.125      -",
        "EM       123,456  1,000",
    ]


def test_files_hold_measurements_targets_and_versions(tmp_path: Path) -> None:
    report = Report("sums")
    report.add("learners", learner="PBP", seconds=0.5)
    report.claim("speed", 2.0, at_least=1)
    report.panel("speed", "rows", "seconds").add("PBP", 1, 0.5)
    report.write(tmp_path, tiny=True, threads=1)
    content = json.loads((tmp_path / "sums.json").read_text())
    assert content["tables"] == {"learners": [{"learner": "PBP", "seconds": 0.5}]}
    assert content["claims"][0]["met"] is True
    assert content["tiny"] is True
    assert content["environment"]["threads"] == 1
    assert "torch" in content["environment"]["versions"]
    assert (tmp_path / "sums.png").read_bytes().startswith(b"\x89PNG")
